"""Token sequences out of memory-mapped shards, whole or with some tokens hidden, as BERT learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from trainworks.worker.data.card import DatasetCard
from trainworks.worker.data.order import FullShuffle, Indices, Order, WindowShuffle
from trainworks.worker.data.reader import Dataset, TokenView
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


_SHARE = 0.15
_HIDDEN, _REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that are hidden and replaced; the rest stay unchanged."""
_NOT_ASKED = -100
"""The label of a token that the loss leaves out."""


class MaskedTokens(TokenView):
    """`x` and `labels` [n, T]: round(0.15 T) tokens of every sequence are predicted, 80 % of them hidden, 10 % replaced
    by any token, 10 % left.

    Every sequence predicts the same number, as in BERT's own code, so that the mean over a micro-batch, over ranks and
    over accumulation is the mean over all predicted tokens of the global batch. What is drawn depends on the seed and
    on the number g of the sample alone: it is the same on any number of ranks, and another in every epoch.

    Args:
        tokens: gathers `tokens` [n, T + 1], of which the first T are taken.
        mask: token that replaces a hidden one.
        vocabulary: tokens that may replace one: 0 ... vocabulary - 1.
        spared: tokens that are predicted only if there are too few others; ends of documents.
        seed: of the run.
    """

    def __init__(self, tokens: Dataset, *, mask: int, vocabulary: int, spared: Sequence[int], seed: int) -> None:
        super().__init__(tokens, arrays=2)
        self._mask, self._vocabulary, self._spared = mask, vocabulary, list(spared)
        self._seed = seed

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x` and `labels`, both [n, T] int64."""
        x = np.ascontiguousarray(self._tokens.gather(indices, samples)["tokens"][:, :-1])
        labels = np.full_like(x, _NOT_ASKED)
        for row, sample in enumerate(samples.tolist()):
            self._hide(x[row], labels[row], np.random.default_rng([self._seed, sample]))
        return {"x": x, "labels": labels}

    def _hide(self, x: NDArray[np.int64], labels: NDArray[np.int64], draw: np.random.Generator) -> None:
        count = max(1, round(_SHARE * len(x)))
        late = draw.random(len(x)) + np.isin(x, self._spared)
        chosen = np.argsort(late, kind="stable")[:count]
        labels[chosen] = x[chosen]
        fate, other = draw.random(count), draw.integers(0, self._vocabulary, count)
        x[chosen] = np.where(fate < _HIDDEN, self._mask, np.where(fate < _HIDDEN + _REPLACED, other, x[chosen]))
