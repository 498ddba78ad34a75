"""Several datasets as one. The source of the g-th sample is a pure function of (seed, g).

Samples are dealt in blocks of M. Of the first n = b * M samples, source s gets

    D_s(n) = floor(n * W_s) - floor(n * W_(s-1)),   W_s = w_1 + ... + w_s,  W_last = 1

so that its share is right to less than one sample at the end of every block, for any weights. Within a
block the sources come in an order that is a keyed permutation. The k-th sample of source s in the whole run is its own
sample k: each source goes through its own epochs, and nothing of it repeats before all of it was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.worker.data.card import fingerprint
from trainworks.worker.data.order import Indices, Order, as_key, permute
from trainworks.worker.data.reader import Dataset
from trainworks.worker.data.tokens import TokenDataset

_BLOCK = 4096


class Dealer:
    """Deals samples to sources by weight.

    Args:
        weights: one per source, positive; only their ratios count. Whole numbers and floats are taken exactly.
        seed: of the run.
    """

    def __init__(self, weights: Sequence[float], seed: int | Sequence[int]) -> None:
        exact = [Fraction(weight) for weight in weights]
        total = sum(exact)
        self._bounds = [bound / total for bound in accumulate(exact)]
        smallest = min(exact) / total
        self.block = max(_BLOCK, 1 << (int(1 / smallest)).bit_length())  # M * w_s >= 1: D_s never decreases
        self._seed = as_key(seed)
        self._dealt = lru_cache(maxsize=4)(self._deal)

    def __call__(self, samples: Indices) -> tuple[Indices, Indices]:
        """Source and number within the source, both [n], of samples g [n]."""
        blocks, places = np.divmod(samples, self.block)
        sources, numbers = np.empty_like(samples), np.empty_like(samples)
        for block in np.unique(blocks):
            rows = blocks == block
            of_place, number_of_place = self._dealt(int(block))
            sources[rows], numbers[rows] = of_place[places[rows]], number_of_place[places[rows]]
        return sources, numbers

    def first_numbers(self, num_samples: int) -> list[int]:
        """D_s: samples of each source among the first `num_samples`, a multiple of the block."""
        ends = [num_samples * bound.numerator // bound.denominator for bound in self._bounds]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def _deal(self, block: int) -> tuple[Indices, Indices]:
        """Source and number of every place in a block."""
        before, after = self.first_numbers(block * self.block), self.first_numbers((block + 1) * self.block)
        counts = np.subtract(after, before)
        in_order = np.repeat(np.arange(len(counts)), counts)
        sources = in_order[
            permute(np.arange(self.block), num_items=self.block, seed=(*self._seed, len(counts)), epoch=block)
        ]
        numbers = np.empty_like(sources)
        for source, (first, count) in enumerate(zip(before, counts, strict=True)):
            numbers[sources == source] = first + np.arange(count)
        return sources, numbers


class MixedOrder:
    """Samples of several sources, whose items are numbered one source after the other."""

    def __init__(self, orders: Sequence[Order], sizes: Sequence[int], dealer: Dealer) -> None:
        self._orders = orders
        self._first_of_source = np.cumsum([0, *sizes])
        self._dealer = dealer

    def __call__(self, samples: Indices) -> Indices:
        """The items of samples g [n]."""
        sources, numbers = self._dealer(samples)
        items = np.empty_like(samples)
        for source in np.unique(sources):
            rows = sources == source
            items[rows] = self._first_of_source[source] + self._orders[source](numbers[rows])
        return items


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
        """Order of the items; each part has its own order and epochs."""
        orders = [part.order((*as_key(seed), number)) for number, part in enumerate(self._parts)]
        return MixedOrder(orders, [len(part) for part in self._parts], Dealer(self._weights, seed))

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """Arrays gathered by the parts, in the order of `indices`."""
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
