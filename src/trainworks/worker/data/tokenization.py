"""How text becomes tokens, as one object: a tokenizer and, for conversations, a chat template with its special tokens.

The training data settle it. Held-out data are prepared with the same object, prepared folders keep it beside their
shards, and checkpoints record its fingerprint, so that a run, its evaluation and its export cannot differ in silence.

<folder>/tokenizer.json    of prepared data
         chat.json         template, special tokens, and where the template is from; absent for text
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainworks.config.finetune import Chat
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import write_atomic
from trainworks.worker.data.card import CARD, STYLE, TOKENIZER, fingerprint, first_card, read_card

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""End-of-document tokens: the first that the tokenizer has is used. A trained tokenizer has the first."""
BUILT_IN = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Template for tokenizers without one: each message closed by the end-of-text token, if there is one."""
TEMPLATE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENS_MAP = "special_tokens_map.json"
_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_SHOWN_DIGITS = 12


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The token that closes a document; None if the tokenizer has none, and documents then follow each other."""
    known = (tokenizer.token_to_id(name) for name in END_OF_TEXT)
    return next((token for token in known if token is not None), None)


def parse_tokenizer(content: bytes, place: str) -> Tokenizer:
    """The tokenizer of the content of a tokenizer.json; `place` is for errors.

    Raises:
        EnvironmentProblem: it is not a tokenizer.
    """
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain Exception
        raise EnvironmentProblem(f"`{place}` is not a tokenizer.json: {error}") from None


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """A chat template, and the special tokens that it may name."""

    template: str
    tokens: dict[str, str]
    origin: str = field(compare=False)
    """Where the template is from."""

    @classmethod
    def read(cls, folder: Path) -> ChatStyle:
        """The style that a folder of prepared data was made with.

        Raises:
            EnvironmentProblem: its file cannot be read.
        """
        file = folder / STYLE
        try:
            return cls(**json.loads(_read(file)))
        except (ValueError, TypeError) as error:
            raise EnvironmentProblem(f"`{file}` is not a chat template: {error}", hint=_AGAIN) from None


_AGAIN = "delete the folder, and prepare the data again"


@dataclass(frozen=True, slots=True)
class Tokenization:
    """A tokenizer.json and, for conversations, a chat template."""

    tokenizer_json: bytes
    chat: ChatStyle | None
    """None for text."""
    place: str = field(compare=False)
    """Where it was found, for errors."""

    @classmethod
    def read(cls, folder: Path) -> Tokenization:
        """The tokenization of prepared data; of a mixture, that of all its sources.

        Raises:
            EnvironmentProblem: a file is missing or damaged, or was changed after the data were prepared.
            UsageError: the folder holds no prepared data, or sources of a mixture differ.
        """
        card = read_card(folder)
        if card.parts:
            return agreed([cls.read(Path(part.folder)) for part in card.parts])
        style = ChatStyle.read(folder) if card.chats is not None else None
        found = cls(_read(folder / TOKENIZER), style, str(folder))
        if card.tokenization not in (None, found.fingerprint):
            raise EnvironmentProblem(
                f"tokenizer or chat template in `{folder}` were changed after the data were prepared with them: "
                f"fingerprint {_short(found)} instead of {card.tokenization[:_SHOWN_DIGITS]}",
                hint=_AGAIN,
            )
        return found

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer, the template and its special tokens."""
        return fingerprint([self.tokenizer_sha256, self.chat_facts])

    @property
    def tokenizer_sha256(self) -> str:
        """SHA-256 of tokenizer.json."""
        return hashlib.sha256(self.tokenizer_json).hexdigest()

    @property
    def chat_facts(self) -> list[object] | None:
        """What makes conversations different text; None for text."""
        return None if self.chat is None else [self.chat.template, sorted(self.chat.tokens.items())]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, parsed anew.

        Raises:
            EnvironmentProblem: the file is not a tokenizer.
        """
        return parse_tokenizer(self.tokenizer_json, self.place)

    @property
    def padding(self) -> int:
        """Token that fills rows up, as trl chooses it: for padding, else at the end of a text.

        Raises:
            UsageError: there is neither.
        """
        named, loaded = self.chat.tokens if self.chat else {}, self.tokenizer
        known = (loaded.token_to_id(named[name]) for name in ("pad_token", "eos_token") if name in named)
        token = next((each for each in known if each is not None), end_of_text(loaded))
        if token is None:
            raise UsageError(
                "the tokenizer has no token for padding, and `transformers` finds the end of a sequence by it",
                place=self.place,
                hint="name one as `pad_token` in tokenizer_config.json beside it",
            )
        return token

    def write(self, folder: Path) -> None:
        """Write the files of prepared data that `read` reads."""
        write_atomic(folder / TOKENIZER, self.tokenizer_json)
        if self.chat is not None:
            write_atomic(folder / STYLE, json.dumps(asdict(self.chat)))

    def with_chat_template(self, chat: Chat | None) -> Tokenization:
        """The same with the template of the run file, if that names one.

        Raises:
            EnvironmentProblem: the template cannot be read.
            UsageError: the data are conversations without a template.
        """
        if chat is None:
            return self
        if chat.template is not None:
            tokens = _closed(self.chat.tokens if self.chat else {}, self.tokenizer)
            return replace(self, chat=ChatStyle(_text(Path(chat.template)), tokens, chat.template))
        if self.chat is None:
            raise UsageError(
                f"`{self.place}` was prepared as text, without a chat template for the conversations beside it",
                hint="set `data.tokenizer` to the tokenizer.json of the model, or name a file in `data.chat.template`",
            )
        return self


def agreed(found: Sequence[Tokenization]) -> Tokenization:
    """The one tokenization of several sources; text has no template, and goes with conversations in any.

    Raises:
        UsageError: they differ.
    """
    first = next((each for each in found if each.chat is not None), found[0])
    for other in found:
        pair = f"`{first.place}` ({_short(first)}) and `{other.place}` ({_short(other)})"
        if other.tokenizer_json != first.tokenizer_json:
            raise UsageError(
                f"{pair} are different tokenizers", hint="prepare all data of a run with the same `data.tokenizer`"
            )
        if other.chat is not None and other.chat != first.chat:
            raise UsageError(
                f"{pair} have different chat templates or special tokens",
                hint="prepare all data of a run with the same `data.chat.template`, or set `data.tokenizer` to the "
                "tokenizer.json of the prepared folder, whose template then counts",
            )
    return first


def _short(tokenization: Tokenization) -> str:
    return tokenization.fingerprint[:_SHOWN_DIGITS]


def find_tokenization(tokenizer: Path, chat: Chat | None) -> Tokenization:
    """A tokenizer.json and, for conversations, the template of the run file, else the one beside it, else `BUILT_IN`.

    Raises:
        EnvironmentProblem: a file cannot be read.
    """
    found = Tokenization(_read(tokenizer), None, str(tokenizer))
    loaded = found.tokenizer  # checks the file
    if chat is None:
        return found
    folder = tokenizer.parent
    if (folder / CARD).is_file() and (folder / STYLE).is_file():
        style = ChatStyle.read(folder)
    else:
        settings = _mapping(folder / TOKENIZER_CONFIG)
        if "added_tokens_decoder" not in settings:  # as in `transformers`, the older file of special tokens then counts
            settings = {**settings, **_mapping(folder / TOKENS_MAP)}
        tokens = special_tokens(settings)
        if (folder / TEMPLATE).is_file():
            style = ChatStyle(_text(folder / TEMPLATE), tokens, str(folder / TEMPLATE))
        elif (own := _own_template(settings.get("chat_template"))) is not None:
            style = ChatStyle(own, tokens, str(folder / TOKENIZER_CONFIG))
        else:
            style = ChatStyle(BUILT_IN, _closed(tokens, loaded), "built-in")
    return replace(found, chat=style).with_chat_template(chat)


def fingerprint_of(folder: Path) -> str | None:
    """Fingerprint of the tokenization of prepared data; None for images, and for a folder without prepared data."""
    if not (folder / CARD).is_file() or first_card(folder)[0].kind != "tokens":
        return None
    return read_card(folder).tokenization or Tokenization.read(folder).fingerprint


def template_origin(folder: Path) -> str | None:
    """Where the chat template of prepared data is from; None for data without conversations."""
    if first_card(folder)[0].kind != "tokens" or (chat := Tokenization.read(folder).chat) is None:
        return None
    return chat.origin


def _mapping(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(_read(file))
    except ValueError as error:
        raise EnvironmentProblem(f"cannot read `{file}`: {error}") from None
    return content if isinstance(content, dict) else {}


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens that a template may name, from the content of tokenizer_config.json."""
    return {name: text for name in _TOKENS if (text := _text_of_token(settings.get(name)))}


def _text_of_token(value: Any) -> str | None:
    """A token is a text, or a mapping with one."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _own_template(value: Any) -> str | None:
    """A template, or the default one of several."""
    if isinstance(value, list):
        named = (each for each in value if isinstance(each, dict))
        value = next((each.get("template") for each in named if each.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _closed(tokens: dict[str, str], tokenizer: Tokenizer) -> dict[str, str]:
    """Special tokens with one that ends a message: the end-of-text token where the tokenizer names none."""
    end = end_of_text(tokenizer)
    return {"eos_token": "" if end is None else str(tokenizer.id_to_token(end))} | tokens


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read `{file}`: {error.strerror}") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentProblem(f"cannot read chat template `{file}`: {error}") from None
