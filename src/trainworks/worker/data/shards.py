"""The files of a dataset, by number, as bytes in memory that the operating system reads when they are touched."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainworks.worker.data.order import Indices

__all__ = ["LocalShards", "Shards", "mapped"]

Bytes = NDArray[np.uint8]


class Shards(Protocol):
    """Where a dataset gets its files from."""

    def open(self, number: int) -> Bytes:
        """The content of shard `number`; valid until the next call."""
        ...

    def fetch(self, numbers: Indices) -> None:
        """These are needed now or soon, in this order; returns at once."""
        ...


class LocalShards:
    """Files of a folder, mapped once and for all."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._maps = [mapped(folder / name) for name in names]

    def open(self, number: int) -> Bytes:
        """The content of shard `number`."""
        return self._maps[number]

    def fetch(self, numbers: Indices) -> None:
        """They are here."""


def mapped(path: Path) -> Bytes:
    """A file's content; an empty file cannot be mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
