"""Parse a tokenizer.json, and find the token that ends a document."""

from __future__ import annotations

from tokenizers import Tokenizer

from trainworks.errors import EnvironmentProblem

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""End-of-document tokens: the first that the tokenizer has is used. A trained tokenizer has the first."""


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The token that closes a document; None if the tokenizer has none, and documents then follow each other."""
    known = (tokenizer.token_to_id(name) for name in END_OF_TEXT)
    return next((token for token in known if token is not None), None)


def parse_tokenizer(content: bytes, place: str) -> Tokenizer:
    """The tokenizer of the content of a tokenizer.json.

    Args:
        content: of the file.
        place: of the file, for errors.

    Raises:
        EnvironmentProblem: it is not a tokenizer.
    """
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain Exception
        raise EnvironmentProblem(f"`{place}` is not a tokenizer.json: {error}") from None
