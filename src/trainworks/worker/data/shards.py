"""The files of a dataset, by number, as bytes in memory that the operating system reads when they are touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import EnvironmentProblem
from trainworks.worker.data.card import Shard
from trainworks.worker.data.order import Indices

Bytes = NDArray[np.uint8]


class Shards(Protocol):
    """Source of the files of a dataset."""

    def open(self, number: int) -> Bytes:
        """The content of shard `number`; valid until the next call."""
        ...

    def fetch(self, numbers: Indices) -> None:
        """These are needed now or soon, in this order; returns at once."""
        ...


class LocalShards:
    """Memory-mapped files of a folder.

    Raises:
        EnvironmentProblem: a file is missing, or has another size than the card says.
    """

    def __init__(self, folder: Path, shards: Mapping[str, Shard]) -> None:
        self._maps = [_checked(folder / name, shard) for name, shard in shards.items()]

    def open(self, number: int) -> Bytes:
        """The content of shard `number`."""
        return self._maps[number]

    def fetch(self, numbers: Indices) -> None:
        """They are here."""


def _checked(path: Path, shard: Shard) -> Bytes:
    """A whole file. Rows are cut out of it without looking at its end, so a shorter one must not be read."""
    found = path.stat().st_size if path.is_file() else None
    if found != shard.num_bytes:
        problem = "missing" if found is None else f"{found:,} bytes instead of {shard.num_bytes:,}"
        raise EnvironmentProblem(
            f"the prepared data is damaged: {path.name}: {problem}",
            place=str(path),
            hint=f"list every damaged shard with `trainworks data verify {path.parent}`; delete the folder to have it "
            "prepared again",
        )
    return mapped(path)


def mapped(path: Path) -> Bytes:
    """A file's content; an empty file cannot be mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
