"""Several datasets as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.worker.data.card import fingerprint
from trainworks.worker.data.mixture import Dealer, MixedOrder
from trainworks.worker.data.order import Indices, Order, as_key
from trainworks.worker.data.reader import Dataset
from trainworks.worker.data.tokens import TokenDataset

__all__ = ["MixedDataset"]


class MixedDataset:
    """Items of several datasets, numbered one dataset after the other, taken by weight.

    Args:
        parts: that gather the same arrays.
        weights: of each; their sizes when None.
    """

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float] | None) -> None:
        self._parts = parts
        self._weights = [float(len(part)) for part in parts] if weights is None else weights
        self._first_of_part = np.cumsum([0, *(len(part) for part in parts)])
        self.fingerprint = fingerprint(
            [(part.fingerprint, weight) for part, weight in zip(parts, self._weights, strict=True)]
        )
        self.sample_bytes = max(part.sample_bytes for part in parts)

    def __len__(self) -> int:
        return int(self._first_of_part[-1])

    def order(self, seed: int | Sequence[int]) -> Order:
        """Which item comes when; each part has an order, and epochs, of its own."""
        orders = [part.order((*as_key(seed), number)) for number, part in enumerate(self._parts)]
        return MixedOrder(orders, [len(part) for part in self._parts], Dealer(self._weights, seed))

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """What the parts gather, in the order of `indices`."""
        part_of = np.searchsorted(self._first_of_part, indices, side="right") - 1
        gathered: dict[str, NDArray[Any]] = {}
        first = self._parts[0]
        if isinstance(first, TokenDataset):
            gathered["tokens"] = np.empty((len(indices), first.sequence_length + 1), dtype=np.int64)
        for number in np.unique(part_of):
            rows = np.flatnonzero(part_of == number)
            part, items = self._parts[number], indices[rows] - self._first_of_part[number]
            if isinstance(part, TokenDataset):
                part.copy(items, gathered["tokens"], rows)
                continue
            for name, array in part.gather(items, samples[rows]).items():
                if name not in gathered:
                    gathered[name] = np.empty((len(indices), *array.shape[1:]), dtype=array.dtype)
                gathered[name][rows] = array
        return gathered
