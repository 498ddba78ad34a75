"""A tokenizer.json, and the token that ends a document."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from trainworks.errors import EnvironmentProblem

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""End-of-document tokens: the first that the tokenizer has is used. A trained tokenizer has the first."""


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The token that closes a document; None if the tokenizer has none, and documents then follow each other."""
    known = (tokenizer.token_to_id(name) for name in END_OF_TEXT)
    return next((token for token in known if token is not None), None)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """A tokenizer.json.

    Raises:
        EnvironmentProblem: it is none.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise EnvironmentProblem(f"`{path}` is not a tokenizer.json: {error}") from None
    return tokenizer
