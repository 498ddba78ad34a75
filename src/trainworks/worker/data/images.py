"""Batches of labelled images, decoded by threads."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import EnvironmentProblem
from trainworks.worker.data.card import DatasetCard
from trainworks.worker.data.extras import extra
from trainworks.worker.data.image_index import ImageFile, ImageShard
from trainworks.worker.data.order import FullShuffle, Indices, Order, WindowShuffle
from trainworks.worker.data.shards import Shards

Pixels = NDArray[np.uint8]

_MOST_THREADS = 8
_SEED_OF_CROPS = 0x1A6E


class _Images:
    """Base of image folders and image shards.

    Args:
        fingerprint: of the data.
        image_size: S, width and height of what is gathered.
        augment: crop at random and mirror half of the images, keyed by seed and sample number; the centre otherwise.
        seed: of the run.
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
            pixels[row] = _decode(*encoded[row], self._image_size, key)

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
        encoded = [(self._read(path), path) for path in (self._files[index].path for index in indices)]
        return {"images": self._decoded(encoded, samples), "labels": self._labels[indices]}

    def _read(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise EnvironmentProblem(f"cannot read image `{path}`: {error.strerror}") from None


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


def _decode(content: Any, name: str, size: int, key: tuple[int, int] | None) -> Pixels:
    """Pixels [S, S, 3] of an encoded image: the shorter side becomes S (8/7 of it for a random crop), then a crop."""
    image_module = extra("PIL.Image", "images")
    try:
        with image_module.open(io.BytesIO(content)) as image:
            short = size if key is None else size * 8 // 7
            image.draft("RGB", (short, short))  # a JPEG is decoded at a fraction of its size if that is enough
            scale = short / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            resized = image.convert("RGB").resize((width, height), image_module.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError) as error:
        raise EnvironmentProblem(f"cannot decode image `{name}`: {error}", hint="replace or remove it") from None
    left, top, mirrored = _crop(width - size, height - size, key)
    pixels: Pixels = np.asarray(resized)[top : top + size, left : left + size]
    return pixels[:, ::-1] if mirrored else pixels


def _crop(room_x: int, room_y: int, key: tuple[int, int] | None) -> tuple[int, int, bool]:
    """Left, top, and whether to mirror; the centre without a key (seed, sample)."""
    if key is None:
        return room_x // 2, room_y // 2, False
    x, y, mirror = np.random.SeedSequence([_SEED_OF_CROPS, *key]).generate_state(3, np.uint32).tolist()
    return x % (room_x + 1), y % (room_y + 1), bool(mirror & 1)
