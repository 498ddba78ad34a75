"""Order of the items as a pure function of (seed, g): without state to save or restore.

Sample g of the run (g = 0, 1, 2 ...) belongs to epoch e = g // N at position p = g mod N, N items being one pass over
the data. Within an epoch the order is a keyed permutation P(seed, e): p -> item, computed where it is needed and never
stored. Optimizer step s takes g = s * global_batch ... (s + 1) * global_batch - 1, for any number of ranks, so a
run that is resumed mid-epoch, with more or fewer ranks, repeats and skips nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 4
_CHUNK = 1 << 13
"""Positions permuted at a time: their working set stays in the first-level cache."""

Indices = NDArray[np.int64]


Order = Callable[[Indices], Indices]
"""Sample numbers g [n] to items [n]."""


def permute(positions: Indices, *, num_items: int, seed: int | Sequence[int], epoch: int) -> Indices:
    """A keyed permutation of 0 ... N - 1, N = `num_items` >= 1, evaluated at `positions` [n] only.

    A balanced Feistel network over the smallest 4^k >= N, walked until it lands inside (Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", 2002). Every seed, which may be several numbers, and epoch give another order.
    Halves of up to 32 bits fit the 32-bit arithmetic, so there may be 2^62 items.
    """
    half_bits = max(1, (max(num_items - 1, 1).bit_length() + 1) // 2)
    keys = _keys(to_key(seed), epoch)
    items = np.empty(len(positions), dtype=np.int64)
    for first in range(0, len(positions), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        walked = _feistel(positions[chunk], half_bits, keys)
        outside = np.flatnonzero(walked >= num_items)
        while len(outside):
            walked[outside] = again = _feistel(walked[outside], half_bits, keys)
            outside = outside[again >= num_items]
        items[chunk] = walked
    return items


def to_key(seed: int | Sequence[int]) -> tuple[int, ...]:
    """One number or several as a key."""
    return (seed,) if isinstance(seed, int) else tuple(seed)


@lru_cache(maxsize=4096)
def _keys(seed: tuple[int, ...], epoch: int) -> tuple[np.uint32, ...]:
    return tuple(np.random.SeedSequence([*seed, epoch]).generate_state(_ROUNDS, np.uint32))


def _feistel(values: Indices, half_bits: int, keys: tuple[np.uint32, ...]) -> Indices:
    mask = np.uint32((1 << half_bits) - 1)
    left = (values >> half_bits).astype(np.uint32)
    right = values.astype(np.uint32)
    right &= mask
    for key in keys:
        mixed = _mix(right, key)
        mixed &= mask
        mixed ^= left
        left, right = right, mixed
    joined = left.astype(np.int64)
    joined <<= half_bits
    joined |= right
    return joined


def _mix(values: NDArray[np.uint32], key: np.uint32) -> NDArray[np.uint32]:
    """`lowbias32` (C. Wellons, "Prospecting for Hash Functions", 2018) of values ^ key, in place from there on."""
    mixed = values ^ key
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> np.uint32(16)
    return mixed


class FullShuffle:
    """Every epoch a permutation of all items: any item may come next. For data that can be read anywhere at once."""

    def __init__(self, num_items: int, seed: int | Sequence[int]) -> None:
        self._num_items = num_items
        self._seed = seed

    def __call__(self, samples: Indices) -> Indices:
        """The items of samples g [n]."""
        epochs, positions = np.divmod(samples, self._num_items)
        return _map_by_key(
            epochs,
            lambda epoch, rows: permute(positions[rows], num_items=self._num_items, seed=self._seed, epoch=epoch),
        )


class WindowShuffle:
    """Every epoch the shards in another order, and the items mixed within windows of about `window` shards.

    Reads at one time touch `window` + 1 shards, so a node needs room for only three windows. The price is that a batch
    mixes the items of `window` shards only; docs/concepts/data.md has figures. `ahead` is called at each new window,
    with the shards of that window and the next.
    """

    def __init__(
        self,
        shard_sizes: Sequence[int],
        seed: int | Sequence[int],
        *,
        window: int,
        ahead: Callable[[Indices], None] = lambda shards: None,
    ) -> None:
        self._sizes = np.asarray(shard_sizes, dtype=np.int64)
        self._first_of_shard = np.cumsum(self._sizes) - self._sizes
        self._num_items = int(self._sizes.sum())
        self._window_items = max(1, -(-self._num_items * window // max(1, int((self._sizes > 0).sum()))))
        self._seed = to_key(seed)
        self._ahead = ahead
        self._entered: tuple[int, int] | None = None
        self._shard_order = lru_cache(maxsize=4)(self._make_shard_order)

    def __call__(self, samples: Indices) -> Indices:
        """The items of samples g [n]."""
        epochs, positions = np.divmod(samples, self._num_items)
        if len(samples):
            epoch, window = int(epochs[-1]), int(positions[-1]) // self._window_items
            if (epoch, window) != self._entered:
                self._entered = epoch, window
                self._ahead(np.concatenate([self.shards_of(epoch, window), self.shards_of(epoch, window + 1)]))
        return _map_by_key(epochs, lambda epoch, rows: self._epoch_indices(epoch, positions[rows]))

    def shards_of(self, epoch: int, window: int) -> Indices:
        """The shards of a window, in their order; windows past the end are the next epoch's."""
        num_windows = -(-self._num_items // self._window_items)
        epoch, window = epoch + window // num_windows, window % num_windows
        shards, ends = self._shard_order(epoch)
        first, last = window * self._window_items, min((window + 1) * self._window_items, self._num_items) - 1
        return shards[np.searchsorted(ends, first, side="right") : np.searchsorted(ends, last, side="right") + 1]

    def _make_shard_order(self, epoch: int) -> tuple[Indices, Indices]:
        """The shards as this epoch has them in a row, and where each of them ends."""
        shards = permute(np.arange(len(self._sizes)), num_items=len(self._sizes), seed=(*self._seed, 1), epoch=epoch)
        return shards, np.cumsum(self._sizes[shards])

    def _epoch_indices(self, epoch: int, positions: Indices) -> Indices:
        windows = positions // self._window_items
        places = _map_by_key(windows, lambda window, rows: self._window_indices(epoch, window, positions[rows]))
        shards, ends = self._shard_order(epoch)
        which = np.searchsorted(ends, places, side="right")
        return self._first_of_shard[shards[which]] + places - (ends[which] - self._sizes[shards[which]])

    def _window_indices(self, epoch: int, window: int, positions: Indices) -> Indices:
        first = window * self._window_items
        size = min(self._window_items, self._num_items - first)
        return first + permute(positions - first, num_items=size, seed=(*self._seed, 2, window), epoch=epoch)


def _map_by_key(keys: Indices, of_rows: Callable[[int, NDArray[np.bool_] | slice], Indices]) -> Indices:
    """`of_rows` for the rows of every key; nearly always there is one."""
    if len(keys) and keys[0] == keys[-1] and (keys == keys[0]).all():
        return of_rows(int(keys[0]), slice(None))
    items = np.empty_like(keys)
    for key in np.unique(keys):
        rows = keys == key
        items[rows] = of_rows(int(key), rows)
    return items
