"""Token sequences out of memory-mapped shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from trainworks.worker.data.card import DatasetCard
from trainworks.worker.data.order import FullShuffle, Indices, Order, WindowShuffle
from trainworks.worker.data.shards import LocalShards, Shards


class TokenDataset:
    """Shards cut into sequences of T + 1 tokens that share their border token with the next; or rows already packed.

    A sequence never crosses two shards. A row is copied straight from the file, without a matrix of indices.

    Args:
        folder: folder of the card, with its shards unless `shards` is given.
        card: of the tokens.
        sequence_length: T.
        shards: source of the files.
        window: shards that are shuffled together; None shuffles all.
    """

    def __init__(
        self,
        folder: Path,
        card: DatasetCard,
        sequence_length: int,
        *,
        shards: Shards | None = None,
        window: int | None = None,
    ) -> None:
        self.sequence_length = sequence_length
        self.fingerprint = card.fingerprint
        self.sample_bytes = (sequence_length + 1) * 8
        self._dtype = np.dtype(card.dtype)
        self._stride = sequence_length if card.packed is None else sequence_length + 1
        self._overlap = 1 if card.packed is None else 0
        self._window = window
        self._shards = shards or LocalShards(folder, card.shards)
        self._num_rows = [self._rows_in(shard.items) for shard in card.shards.values()]
        self._first_of_shard = np.cumsum([0, *self._num_rows])

    def _rows_in(self, tokens: int) -> int:
        return max(0, (tokens - self._overlap) // self._stride)

    def __len__(self) -> int:
        return int(self._first_of_shard[-1])

    def order(self, seed: int | Sequence[int]) -> Order:
        """Order of the sequences."""
        if self._window is None or self._window >= len(self._num_rows):
            return FullShuffle(len(self), seed)
        return WindowShuffle(self._num_rows, seed, window=self._window, ahead=self._shards.fetch)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[np.int64]]:
        """`tokens` [n, T + 1] of the sequences `indices` [n]."""
        tokens = np.empty((len(indices), self.sequence_length + 1), dtype=np.int64)
        self.copy(indices, tokens, np.arange(len(indices)))
        return {"tokens": tokens}

    def copy(self, indices: Indices, tokens: NDArray[np.int64], rows_of_tokens: Indices) -> None:
        """Write the sequences `indices` [n] into rows of `tokens` [any, T + 1]; a mixture is so copied only once."""
        shard_of = np.searchsorted(self._first_of_shard, indices, side="right") - 1
        for number in np.unique(shard_of):
            chosen = np.flatnonzero(shard_of == number)
            rows = self._rows(int(number))
            sequences = indices[chosen] - self._first_of_shard[number]
            for row, sequence in zip(rows_of_tokens[chosen].tolist(), sequences.tolist(), strict=True):
                tokens[row] = rows[sequence]

    def _rows(self, number: int) -> NDArray[np.unsignedinteger]:
        """All sequences [rows, T + 1] of a shard as a view of the file, in which neighbours overlap."""
        content = self._shards.open(number).view(self._dtype)
        size = self._dtype.itemsize
        shape = (self._num_rows[number], self.sequence_length + 1)
        return as_strided(content, shape, (self._stride * size, size), writeable=False)
