"""Open folders of prepared data as one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.config.data import Data
from trainworks.config.finetune import Chat
from trainworks.host.folders import cache_folder
from trainworks.worker.data.card import DatasetCard, fingerprint, read_card
from trainworks.worker.data.images import FolderImages, ShardedImages, read_files
from trainworks.worker.data.order import Indices, Order, permute, to_key
from trainworks.worker.data.reader import Dataset
from trainworks.worker.data.shards import WINDOW, LocalShards, Shards, StreamedShards
from trainworks.worker.data.store import ShardCache
from trainworks.worker.data.tokens import MarkedTokens, SampleTokens, TokenDataset

_BLOCK = 4096


class Dealer:
    """Deals samples to sources by weight. The source of the g-th sample is a pure function of (seed, g).

    Samples are dealt in blocks of M. Of the first n = b * M samples, source s gets

        D_s(n) = floor(n * W_s) - floor(n * W_(s-1)),   W_s = w_1 + ... + w_s,  W_last = 1

    so that its share is right to less than one sample at the end of every block, for any weights. Within a block the
    sources come in an order that is a keyed permutation. The k-th sample of source s in the whole run is its own sample
    k: each source goes through its own epochs, and nothing of it repeats before all of it was seen.
    Only the ratios of the weights count; whole numbers and floats are taken exactly.
    """

    def __init__(self, weights: Sequence[float], seed: int | Sequence[int]) -> None:
        exact = [Fraction(weight) for weight in weights]
        total = sum(exact)
        self._bounds = [bound / total for bound in accumulate(exact)]
        smallest = min(exact) / total
        self.block = max(_BLOCK, 1 << (int(1 / smallest)).bit_length())  # M * w_s >= 1: D_s never decreases
        self._seed = to_key(seed)
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
    """Items of several datasets, numbered one dataset after the other, taken by weight, or else by their size."""

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
        orders = [part.order((*to_key(seed), number)) for number, part in enumerate(self._parts)]
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


def open_dataset(folder: Path, data: Data, *, augment: bool = True, seed: int = 1) -> Dataset:
    """The dataset of a folder that `prepare` made; images are cropped and mirrored by `seed` if `augment` is set.

    Raises:
        UsageError: the cache is too small for the shuffle.
        EnvironmentProblem: the card is damaged.
    """
    card = read_card(folder)
    if card.kind == "mixture":
        parts = [open_dataset(Path(part.folder), data, augment=augment, seed=seed) for part in card.parts]
        weights = [part.weight for part in card.parts if part.weight is not None]
        return MixedDataset(parts, weights or None)
    if card.kind == "image-files":
        return FolderImages(card, read_files(folder), data.image_size or 0, augment=augment, seed=seed)
    window = data.shuffle_shards or (WINDOW if card.store else None)
    shards = _shards(folder, card, data)
    if card.kind == "images":
        return ShardedImages(card, shards, data.image_size or 0, augment=augment, seed=seed, window=window)
    if card.pairs or card.labels:
        chat = Chat(pairs=card.pairs, margins=card.margins, labels=card.labels)
        rows = TokenDataset(folder, card, chat.row_tokens(data.sequence_length) - 1, shards=shards, window=window)
        return SampleTokens(rows, conversations=chat.conversations, has_values=chat.has_values)
    tokens = TokenDataset(folder, card, data.sequence_length, shards=shards, window=window)
    return MarkedTokens(tokens, one_per_row=card.one_per_row) if card.marked else tokens


def _shards(folder: Path, card: DatasetCard, data: Data) -> Shards:
    if card.store is None:
        return LocalShards(folder, card.shards)
    cache = ShardCache(cache_folder("data", "shards"), data.cache_bytes)
    window = min(data.shuffle_shards or WINDOW, len(card.shards))
    return StreamedShards(card, cache, window=window, limit_bytes=data.cache_bytes)
