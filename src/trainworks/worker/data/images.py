r"""Images of a source and their classes, in folders or shards, and batches of them, decoded by threads.

A shard is, all little-endian:  magic b"TWIMG1\0\0" | n: u64 | offsets: u64[n + 1], from the start of the file |
labels: u32[n], padded to 8 bytes | the encoded images, one after the other (JPEG, PNG, WebP).
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from trainworks.config.data import STDLIB, DataSource
from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import naming_full_disk, write_atomic
from trainworks.host.corpus import anchored_source
from trainworks.worker.data.card import (
    CARD,
    DAMAGED,
    DatasetCard,
    Progress,
    ReencodingGain,
    Shard,
    fingerprint,
    hash_file,
    making,
    read_card,
)
from trainworks.worker.data.order import FullShuffle, Indices, Order, WindowShuffle
from trainworks.worker.data.shards import Bytes, Shards, prepared_folder
from trainworks.worker.data.split import Side, split_prepared
from trainworks.worker.data.store import extra

FILES = "files.jsonl"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_SHARD_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image and its class."""

    path: str
    label: int
    num_bytes: int


def prepare_images(source: DataSource, cache: Path, side: Side | None = None) -> Path:
    """A folder with a card for a source of images, or one side of it; folders of images are read where they are.

    Raises:
        UsageError: no images, or not in one folder per class.
        EnvironmentProblem: a store does not answer.
    """
    folder = prepared_folder(source, cache)
    if folder is not None:
        if read_card(folder).kind not in ("images", "image-files"):
            raise UsageError(f"`{source.source}` holds prepared text, not images")
        return folder if side is None else split_prepared(folder, side, cache)
    classes, files = image_files(source)
    if side is not None:
        files = [file for file in files if side.has(f"{classes[file.label]}/{Path(file.path).name}".encode())]
    facts = fingerprint([classes, [(Path(file.path).name, file.label, file.num_bytes) for file in files]])
    card = DatasetCard(kind="image-files", source=source.source, fingerprint=facts, classes=classes)
    folder = cache / f"images-{fingerprint([source.source, facts])[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps([file.path, file.label, file.num_bytes]) for file in files)
    write_atomic(folder / FILES, "\n".join(lines) + "\n")
    write_atomic(folder / CARD, card.model_dump_json(indent=2) + "\n")
    return folder


class Encoder(Protocol):
    """Encodes images anew on their way into shards."""

    gain: ReencodingGain
    share: float
    """Bytes after encoding over bytes before."""

    def encoded(self, files: Sequence[ImageFile]) -> Iterable[bytes | str]:
        """The stored form of each image in order, or why it cannot be decoded.

        Raises:
            EnvironmentProblem: a file cannot be read.
        """


class _PackedShard(Spec):
    """A finished shard, its source and what is missing in it."""

    shard: Shard
    source_bytes: int
    damaged: tuple[tuple[str, str], ...] = ()
    """Path and problem of each image that is left out."""


def make_image_shards(
    source: DataSource, folder: Path, progress: Progress, encoder: Encoder | None = None
) -> DatasetCard:
    """Pack the images of folders into shards of about 64 MB: by the encoder, or else unchanged and without decoding.

    They are dealt to the shards like cards, one by one: neighbouring files, which belong to one class, end up in
    different shards, and every shard holds about every class. What the encoder cannot decode is left out and named in
    `damaged.jsonl`.

    Raises:
        UsageError: no images, or none that can be decoded.
        EnvironmentProblem: a file cannot be read.
    """
    classes, files = image_files(source)
    total, done = sum(file.num_bytes for file in files), 0
    num_shards = max(1, round(total * (encoder.share if encoder else 1.0) / _SHARD_BYTES))
    packed: dict[str, _PackedShard] = {}
    with making(folder) as work, naming_full_disk(folder):
        for number in range(num_shards):
            name, dealt = f"images-{number:05d}.bin", files[number::num_shards]
            known = work / f"{name}.json"  # from an earlier try; its presence marks a complete shard
            found = _packed_before(known)
            if found is None or not (work / name).is_file() or hash_file(work / name) != found.shard.sha256:
                found = _write_shard(work / name, dealt, encoder)
                write_atomic(known, found.model_dump_json())
            packed[name] = found
            done += sum(file.num_bytes for file in dealt)
            progress(done, total)
        card = _card_of(source, classes, packed, encoder)
        if card.damaged:
            named = ({"image": path, "problem": why} for each in packed.values() for path, why in each.damaged)
            write_atomic(work / DAMAGED, "".join(json.dumps(line) + "\n" for line in named))
        write_atomic(work / CARD, card.model_dump_json(indent=2) + "\n")
        for name in packed:
            (work / f"{name}.json").unlink(missing_ok=True)
    return card


def _packed_before(known: Path) -> _PackedShard | None:
    """The shard that an earlier try finished; None if there is none, or another version wrote it otherwise."""
    try:
        return _PackedShard.model_validate_json(known.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _card_of(
    source: DataSource, classes: tuple[str, ...], packed: dict[str, _PackedShard], encoder: Encoder | None
) -> DatasetCard:
    shards = {name: each.shard for name, each in packed.items()}
    damaged = [pair for each in packed.values() for pair in each.damaged]
    if not any(shard.items for shard in shards.values()):
        raise UsageError(f"none of the {len(damaged)} images of `{source.source}` can be decoded: {damaged[0][1]}")
    read = sum(each.source_bytes for each in packed.values())
    return DatasetCard(
        kind="images",
        source=source.source,
        fingerprint=fingerprint([classes, *(shard.sha256 for shard in shards.values())]),
        shards=shards,
        classes=classes,
        damaged=len(damaged),
        gain=encoder.gain.model_copy(update={"source_bytes": read}) if encoder else None,
    )


def read_files(folder: Path) -> list[ImageFile]:
    """The images that `prepare_images` found."""
    return [ImageFile(*json.loads(line)) for line in (folder / FILES).read_text().splitlines()]


def image_files(source: DataSource) -> tuple[tuple[str, ...], list[ImageFile]]:
    """Names of the classes, sorted, and all images.

    Raises:
        UsageError: no images, or not in one folder per class.
    """
    root = Path(anchored_source(source.source))
    if source.scheme is not None or source.source == STDLIB or not root.is_dir():
        raise UsageError(
            f"`{source.source}` is not a folder of images",
            hint="name a folder with one folder per class, or images that `trainworks data prepare` wrote",
        )
    classes = tuple(sorted(folder.name for folder in root.iterdir() if folder.is_dir() and any(_images_in(folder))))
    if not classes:
        loose = any(_images_in(root))
        raise UsageError(
            f"`{source.source}` holds no folders of images" + (", but loose ones" if loose else ""),
            hint=f"one folder per class, with {', '.join(_SUFFIXES)} in it",
        )
    return classes, [
        ImageFile(str(path), label, path.stat().st_size)
        for label, name in enumerate(classes)
        for path in sorted(_images_in(root / name))
    ]


def _images_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())


def _write_shard(path: Path, files: Sequence[ImageFile], encoder: Encoder | None) -> _PackedShard:
    if encoder is None:
        with ThreadPoolExecutor(8) as pool:
            stored: list[bytes | str] = list(pool.map(read_image, files))
    else:
        stored = list(encoder.encoded(files))
    kept = [(file, image) for file, image in zip(files, stored, strict=True) if isinstance(image, bytes)]
    damaged = [(file.path, why) for file, why in zip(files, stored, strict=True) if isinstance(why, str)]
    content = joined([image for _, image in kept], [file.label for file, _ in kept])
    write_atomic(path, content)
    shard = Shard(items=len(kept), num_bytes=len(content), sha256=hash_file(path))
    return _PackedShard(shard=shard, source_bytes=sum(file.num_bytes for file, _ in kept), damaged=tuple(damaged))


def read_image(file: ImageFile) -> bytes:
    """The encoded image in a file.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    try:
        return Path(file.path).read_bytes()
    except OSError as error:
        raise EnvironmentProblem(f"cannot read image `{file.path}`: {error.strerror}") from None


_MAGIC = b"TWIMG1\0\0"


def joined(images: Sequence[bytes], labels: Sequence[int]) -> bytes:
    """The content of a shard."""
    label_bytes = np.asarray(labels, dtype="<u4").tobytes()
    label_bytes += b"\0" * (-len(label_bytes) % 8)
    begin = len(_MAGIC) + 8 + 8 * (len(images) + 1) + len(label_bytes)
    offsets = begin + np.cumsum([0, *(len(image) for image in images)], dtype="<u8")
    head = _MAGIC + np.uint64(len(images)).astype("<u8").tobytes()
    return b"".join([head, offsets.astype("<u8").tobytes(), label_bytes, *images])


class ImageShard:
    """A view of a shard's content.

    Raises:
        EnvironmentProblem: it is none.
    """

    def __init__(self, content: Bytes) -> None:
        if len(content) < 16 or content[:8].tobytes() != _MAGIC:
            raise EnvironmentProblem("not a shard of images", hint="trainworks data verify")
        count = int(content[8:16].view("<u8")[0])
        after = 16 + 8 * (count + 1)
        self._content = content
        self._offsets = content[16:after].view("<u8")
        self.labels: NDArray[np.uint32] = content[after : after + 4 * count].view("<u4")

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, number: int) -> Bytes:
        """One image as it was found."""
        return self._content[int(self._offsets[number]) : int(self._offsets[number + 1])]


Pixels = NDArray[np.uint8]

_MOST_THREADS = 8
_SEED_OF_CROPS = 0x1A6E


class _Images:
    """Base of image folders and image shards, which gathers images of S = `image_size` pixels squared.

    With `augment` they are cropped at random and half of them mirrored, keyed by seed and sample number; else their
    centre is taken.
    """

    def __init__(self, fingerprint: str, image_size: int, *, augment: bool, seed: int) -> None:
        extra("PIL.Image", "images")
        self.fingerprint = fingerprint
        self.sample_bytes = 3 * image_size**2
        self._image_size = image_size
        self._augment = augment
        self._seed = seed
        self._threads = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="image-decoder")

    def _decoded(self, encoded: Sequence[tuple[Any, str]], samples: Indices) -> Pixels:
        """Pixels [n, S, S, 3] of (bytes, name) pairs."""
        pixels = np.empty((len(encoded), self._image_size, self._image_size, 3), dtype=np.uint8)

        def decode(row: int) -> None:
            key = (self._seed, int(samples[row])) if self._augment else None
            pixels[row] = decode_crop(*encoded[row], self._image_size, key)

        for _ in self._threads.map(decode, range(len(encoded))):
            pass
        return pixels


class FolderImages(_Images):
    """Images in files of their own."""

    def __init__(self, card: DatasetCard, files: list[ImageFile], image_size: int, *, augment: bool, seed: int) -> None:
        super().__init__(card.fingerprint, image_size, augment=augment, seed=seed)
        self._files = files
        self._labels = np.array([file.label for file in files], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._files)

    def order(self, seed: int | Sequence[int]) -> Order:
        """Order of the images."""
        return FullShuffle(len(self), seed)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`images` [n, S, S, 3] uint8 and `labels` [n] int64."""
        encoded = [(read_image(file), file.path) for file in (self._files[index] for index in indices)]
        return {"images": self._decoded(encoded, samples), "labels": self._labels[indices]}


class ShardedImages(_Images):
    """Images in shards, of this machine or of a store."""

    def __init__(
        self, card: DatasetCard, shards: Shards, image_size: int, *, augment: bool, seed: int, window: int | None
    ) -> None:
        super().__init__(card.fingerprint, image_size, augment=augment, seed=seed)
        self._names = list(card.shards)
        self._shards = shards
        self._window = window
        self._sizes = [shard.items for shard in card.shards.values()]
        self._first_of_shard = np.cumsum([0, *self._sizes])

    def __len__(self) -> int:
        return int(self._first_of_shard[-1])

    def order(self, seed: int | Sequence[int]) -> Order:
        """Order of the images."""
        if self._window is None or self._window >= len(self._sizes):
            return FullShuffle(len(self), seed)
        return WindowShuffle(self._sizes, seed, window=self._window, ahead=self._shards.fetch)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`images` [n, S, S, 3] uint8 and `labels` [n] int64."""
        shard_of = np.searchsorted(self._first_of_shard, indices, side="right") - 1
        encoded: list[tuple[Any, str]] = [(b"", "")] * len(indices)
        labels = np.empty(len(indices), dtype=np.int64)
        for number in np.unique(shard_of):
            shard = ImageShard(self._shards.open(int(number)))
            for row in np.flatnonzero(shard_of == number):
                place = int(indices[row] - self._first_of_shard[number])
                encoded[row] = shard.encoded(place), f"{self._names[number]}, image {place}"
                labels[row] = shard.labels[place]
        return {"images": self._decoded(encoded, samples), "labels": labels}


def decode_crop(content: Any, name: str, size: int, key: tuple[int, int] | None) -> Pixels:
    """Pixels [S, S, 3] of an encoded image: the shorter side becomes S (8/7 of it for a random crop), then a crop.

    Args:
        content: bytes of the encoded image.
        name: of the image, for errors.
        size: S.
        key: seed and sample number of a random crop; the centre when None.

    Raises:
        EnvironmentProblem: it cannot be decoded.
    """
    image_module = extra("PIL.Image", "images")
    with naming_image(name), image_module.open(io.BytesIO(content)) as image:
        short = size if key is None else size * 8 // 7
        image.draft("RGB", (short, short))  # a JPEG is decoded at a fraction of its size if that is enough
        turned = upright(image)
        scale = short / min(turned.size)
        width, height = (max(size, round(side * scale)) for side in turned.size)
        resized = turned.convert("RGB").resize((width, height), image_module.Resampling.BILINEAR)
    left, top, mirrored = _crop(width - size, height - size, key)
    pixels: Pixels = np.asarray(resized)[top : top + size, left : left + size]
    return pixels[:, ::-1] if mirrored else pixels


def upright(image: Any) -> Any:
    """An image of Pillow as a camera's viewer shows it: turned by its EXIF tag, and grey of 16 bits scaled to 8."""
    extra("PIL.ImageOps", "images").exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # Pillow clips it: nearly all of it would be white
        grey = np.clip(np.asarray(image), 0, 0xFFFF) >> 8
        return extra("PIL.Image", "images").fromarray(grey.astype(np.uint8))
    return image


@contextmanager
def naming_image(name: str, verb: str = "decode") -> Iterator[None]:
    """Turn what a format of Pillow raises inside the block into an error that names the image.

    Raises:
        EnvironmentProblem: the image is damaged, larger than Pillow takes, or no image.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # every format has exceptions of its own
        reason = (
            (str(error) or type(error).__name__).splitlines()[0].partition(" <")[0]
        )  # an object's address says nothing
        raise EnvironmentProblem(f"cannot {verb} image `{name}`: {reason}", hint="replace or remove it") from None


def _crop(room_x: int, room_y: int, key: tuple[int, int] | None) -> tuple[int, int, bool]:
    """Left, top, and whether to mirror; the centre without a key (seed, sample)."""
    if key is None:
        return room_x // 2, room_y // 2, False
    x, y, mirror = np.random.SeedSequence([_SEED_OF_CROPS, *key]).generate_state(3, np.uint32).tolist()
    return x % (room_x + 1), y % (room_y + 1), bool(mirror & 1)
