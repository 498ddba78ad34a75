"""Card of a folder of prepared data.

<folder>/dataset.json           the card; written last, so that the folder is complete or absent
         tokenizer.json         of tokens, see tokenization.py
         chat.json              of conversations, see tokenization.py
         tokens-00000.bin ...   little-endian uint16 (uint32 for vocabularies over 65,536, and for marked tokens)
         images-00000.bin ...   encoded images, see images.py
         damaged.jsonl          source images that could not be decoded and are left out, each with its problem
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from trainworks.config.data import Reencoding
from trainworks.config.spec import Spec
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.files import fsync_folder

CARD = "dataset.json"
DAMAGED = "damaged.jsonl"
STYLE = "chat.json"
TOKENIZER = "tokenizer.json"
_READ_BYTES = 1 << 20

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class Shard(Spec):
    """One file of prepared data."""

    items: int
    """Tokens, or images."""
    num_bytes: int
    """Checksum of the file."""
    sha256: str


class Part(Spec):
    """One source of a mixture."""

    folder: str
    """Prepared data: a folder of this machine."""
    weight: float | None = None
    """Its share of the samples over the sum of all weights; its size when None."""


class ChatCounts(Spec):
    """Conversations of prepared data."""

    conversations: int = 0
    """All of the source; one whose answers need several samples counts as several."""
    cut: int = 0
    """Those whose end did not fit."""
    dropped: int = 0
    """Those left out: longer than allowed, or no answer fits."""
    answer_tokens: int = 0
    """Tokens that the loss counts."""


class ReencodingGain(Spec):
    """What encoding images anew changed: bytes of all of them, and speed and loss of a sample."""

    how: Reencoding
    source_bytes: int
    """Files of the source, without the damaged ones."""
    sample: int
    """Images of the sample."""
    image_size: int
    """Pixels per side of the crops that were decoded for the rates."""
    source_images_per_s: float
    """Images that one core decodes and crops in a second of processor time: those of the source."""
    images_per_s: float
    """The same for the stored images."""
    psnr_db: float | None
    """10 log10(255^2 / mean squared error) over all pixels of the sample, against the source images at the stored
    size; None if all pixels are equal."""


class DatasetCard(Spec):
    """Contents of a folder of prepared data."""

    kind: Literal["tokens", "images", "image-files", "mixture"] = "tokens"
    source: str
    fingerprint: str
    """SHA-256 over the shards' own: the same fingerprint is the same training data."""
    shards: dict[str, Shard] = Field(default_factory=dict)
    """Shards in order of their file names."""
    vocabulary: int = 0
    dtype: str = "<u2"
    num_bytes_of_text: int = 0
    packed: int | None = None
    """Tokens per row of packed documents; None if documents follow each other and sequences are cut out of them."""
    marked: bool = False
    """Tokens have marks: where documents begin, and which tokens the loss counts."""
    one_per_row: bool = False
    """A packed row has one document."""
    pairs: bool = False
    """Two rows, of a preferred answer and of another one, are a sample."""
    margins: bool = False
    """Rows of a pair have its margin behind their tokens."""
    labels: bool = False
    """Rows have the label of their answer behind their tokens."""
    chats: ChatCounts | None = None
    padding_tokens: int = 0
    """Tokens that only fill up rows of packed documents."""
    tokenization: str | None = None
    """Fingerprint of the tokenizer and the chat template; None for images, and in cards of earlier versions."""
    tokenizer_sha256: str | None = None
    """SHA-256 of the tokenizer alone, in cards of earlier versions."""
    classes: tuple[str, ...] = ()
    """Names of the labels 0, 1, 2 ... of images."""
    damaged: int = 0
    """Images of the source that could not be decoded and are left out."""
    gain: ReencodingGain | None = None
    """None for images that are stored as they were found."""
    parts: tuple[Part, ...] = ()
    """Sources of a mixture."""
    store: str | None = None
    """Address that the shards are streamed from; None if they are beside the card."""

    @property
    def form(self) -> tuple[bool, ...]:
        """What a row is; sources of a run, and its held-out data, have the same."""
        return self.marked, self.one_per_row, self.pairs, self.margins, self.labels

    @property
    def companions(self) -> list[str]:
        """Files beside the shards and the card."""
        tokenizer = [TOKENIZER] if self.kind == "tokens" else []
        style = [STYLE] if self.chats is not None else []
        return [*tokenizer, *style, *([DAMAGED] if self.damaged else [])]

    @property
    def num_items(self) -> int:
        """Tokens or images in all shards."""
        return sum(shard.items for shard in self.shards.values())

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards; 0 for images."""
        return self.num_items if self.kind == "tokens" else 0

    @property
    def num_bytes(self) -> int:
        """Tokens of all shards."""
        return sum(shard.num_bytes for shard in self.shards.values())


@dataclass(frozen=True, slots=True)
class DataFolders:
    """Prepared data of a run on this machine."""

    train: Path
    evaluation: Mapping[str, Path] = field(default_factory=dict)
    """Folders by the name of the held-out set; none for a run that does not evaluate, and for a module, whose file
    reads the data."""


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """The folder beside `folder` in which it is made; renamed at the end, kept for another try after a failure."""
    beside = folder.with_name(f".{folder.name}.making")
    beside.mkdir(parents=True, exist_ok=True)
    try:
        yield beside
    except DiskFullError as error:
        hint = f"free some space and ask again: what is finished is kept in `{beside}` and not made again"
        raise DiskFullError(error.message, hint=hint) from None
    if folder.exists():  # without a card: not ours to keep
        shutil.rmtree(folder)
    beside.rename(folder)
    fsync_folder(folder.parent)


def fingerprint(facts: Iterable[object]) -> str:
    """SHA-256 of the facts that make data what it is."""
    return hashlib.sha256(json.dumps(list(facts)).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_card(folder: Path) -> DatasetCard:
    """The card of a complete folder of prepared data.

    Raises:
        UsageError: there is none.
        EnvironmentProblem: it is damaged, or of another version.
    """
    try:
        return DatasetCard.model_validate_json((folder / CARD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"`{folder}` holds no prepared data: no {CARD}", hint="trainworks data prepare") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise EnvironmentProblem(
            f"`{folder / CARD}` is not a card of this version: {where}: {first['msg']}", hint="prepare the data again"
        ) from None


def first_card(folder: Path) -> tuple[DatasetCard, Path]:
    """Card and folder of prepared data, or of a mixture's first source: all have the same tokenizer and classes."""
    card = read_card(folder)
    return first_card(Path(card.parts[0].folder)) if card.parts else (card, folder)
