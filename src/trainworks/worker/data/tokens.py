"""Token sequences out of memory-mapped shards: whole, packed of several documents, or with some tokens hidden.

A marked token is its number in the vocabulary with two bits beside it:

    START     it begins a document: attention and positions begin anew
    COUNTED   the loss counts it where it is predicted
"""

from __future__ import annotations

from bisect import bisect_left, insort
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

Tokens = NDArray[np.unsignedinteger]

COUNTED, START = 1 << 31, 1 << 30
_NUMBER = START - 1
_ROOM = 0xFFFFFFFF
"""Stands where a row has no token yet."""
_NOT_COUNTED = -100
"""The label of a token that the loss leaves out."""
MARKED_DTYPE = np.dtype("<u4")
VALUE_DTYPE = np.dtype("<f4")
"""A row may have a number behind its marked tokens, in as many bits."""


def pack(documents: Sequence[Tokens], row: int, filler: int) -> tuple[Tokens, int]:
    """Best-fit decreasing: each document, longest first, goes into the row where it leaves the least room.

    A document longer than a row is cut into rows that share their border token, so that every token is still predicted
    from the one before; its last piece is packed like a document. Rows keep the order in which they were begun (Ding et
    al., "Fewer Truncations Improve Language Modeling", 2024). Documents are closed by the end-of-text token, and what
    is left of a row is filled with `filler`.

    Returns:
        Rows [n, row] of T + 1 tokens, and how many of their tokens are filler.
    """
    pieces = [piece for document in documents for piece in _cut(document, row)]
    rows: list[list[Tokens]] = []
    open_rows: list[tuple[int, int]] = []  # (room, row), sorted
    for number in sorted(range(len(pieces)), key=lambda index: (-len(pieces[index]), index)):
        size = len(pieces[number])
        place = bisect_left(open_rows, (size, 0))
        if place < len(open_rows):
            room, chosen = open_rows.pop(place)
        else:
            room, chosen = row, len(rows)
            rows.append([])
        rows[chosen].append(pieces[number])
        if room > size:
            insort(open_rows, (room - size, chosen))
    packed = np.full((len(rows), row), filler, dtype=documents[0].dtype if documents else np.uint16)
    for target, parts in zip(packed, rows, strict=True):
        joined = np.concatenate(parts)
        target[: len(joined)] = joined
    return packed, packed.size - sum(len(piece) for piece in pieces)


def _cut(document: Tokens, row: int) -> list[Tokens]:
    last_start = max(len(document) - 2, 0)  # a piece of one token alone would predict nothing
    return [document[start : start + row] for start in range(0, last_start + 1, row - 1)]


def marked_rows(documents: Sequence[Tokens], row: int, *, filler: int, one_per_row: bool = False) -> tuple[Tokens, int]:
    """Rows [n, row] of T + 1 marked tokens, and how many of them are filler, which the loss does not count.

    Tokens of documents have COUNTED where it applies. With `one_per_row` documents are not joined: each has at most a
    row.
    """
    pieces = [piece.astype(MARKED_DTYPE) for document in documents for piece in _cut(document, row)]
    for piece in pieces:
        piece[0] |= START
    if one_per_row:
        rows = np.full((len(pieces), row), _ROOM, dtype=MARKED_DTYPE)
        for target, piece in zip(rows, pieces, strict=True):
            target[: len(piece)] = piece
    else:
        rows = pack(pieces, row, _ROOM)[0].astype(MARKED_DTYPE) if pieces else np.empty((0, row), MARKED_DTYPE)
    is_room = rows == _ROOM
    rows[is_room] = filler
    first = is_room.copy()
    first[:, 1:] &= ~is_room[:, :-1]
    rows[first] |= START
    return rows, int(is_room.sum())


class MarkedTokens(TokenView):
    """Rows of marked tokens as `x` and `labels`, both [n, T], and as `positions` [n, T] of several documents.

    A token that begins a document is never a label: no other document is to predict it. Rows with one document each
    (`one_per_row`) have no positions, as no token has to be kept from seeing another.
    """

    def __init__(self, tokens: Dataset, *, one_per_row: bool) -> None:
        super().__init__(tokens, arrays=3)
        self._one_per_row = one_per_row

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x`, `labels` and `positions`, each [n, T] int64."""
        marked = np.asarray(self._tokens.gather(indices, samples)["tokens"])
        arrays = _inputs_and_labels(marked)
        if self._one_per_row:
            return arrays
        at = np.arange(marked.shape[1] - 1)
        starts = np.maximum.accumulate(np.where(marked[:, :-1] & START > 0, at, 0), axis=1)
        return arrays | {"positions": at - starts}  # distance of each token from the start of its document


class SampleTokens(TokenView):
    """Samples of C conversations: an answer alone, or a preferred one and another one.

    `x` and `labels` are [n, C, T], and `lengths` [n, C] the tokens of each conversation, at most T + 1. With
    `has_values` a row of T + 1 marked tokens has a number behind them; `values` [n] are those of the samples.
    """

    def __init__(self, tokens: Dataset, *, conversations: int, has_values: bool) -> None:
        super().__init__(tokens, arrays=2)
        self._conversations, self._has_values = conversations, has_values

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x`, `labels` and `lengths` in int64, `values` in fp32."""
        marked = np.asarray(self._tokens.gather(indices, samples)["tokens"])
        marked = marked.reshape(len(marked), self._conversations, -1)
        values = {}
        if self._has_values:
            marked, bits = marked[..., :-1], marked[:, 0, -1]
            values = {"values": bits.astype(MARKED_DTYPE).view(VALUE_DTYPE)}
        is_room = marked[..., 1:] & START > 0  # the next document of a row is what fills it up
        lengths = np.where(is_room.any(-1), is_room.argmax(-1) + 1, marked.shape[-1])
        return _inputs_and_labels(marked) | {"lengths": lengths} | values


def _inputs_and_labels(marked: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """`x` and `labels` [..., T] of marked rows [..., T + 1]."""
    numbers = marked & _NUMBER
    counts = (marked & COUNTED > 0) & (marked & START == 0)
    labels = np.where(counts[..., 1:], numbers[..., 1:], _NOT_COUNTED)
    return {"x": np.ascontiguousarray(numbers[..., :-1]), "labels": labels}


class TokenDataset:
    """Shards cut into sequences of T + 1 tokens that share their border token with the next; or rows already packed.

    A sequence never crosses two shards. A row is copied straight from the file, without a matrix of indices.
    `window` shards are shuffled together, all of them when None. `shards` are those in the folder when None.
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
        overlap = 1 if card.packed is None else 0
        self._window = window
        self._shards = shards or LocalShards(folder, card.shards)
        self._num_rows = [max(0, (shard.items - overlap) // self._stride) for shard in card.shards.values()]
        self._first_of_shard = np.cumsum([0, *self._num_rows])

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


class MaskedTokens(TokenView):
    """`x` and `labels` [n, T]: round(0.15 T) tokens of every sequence are predicted, 80 % of them hidden, 10 % replaced
    by any token, 10 % left.

    Every sequence predicts the same number, as in BERT's own code, so that the mean over a micro-batch, over ranks and
    over accumulation is the mean over all predicted tokens of the global batch. What is drawn depends on the seed and
    on the number g of the sample alone: it is the same on any number of ranks, and another in every epoch.

    `tokens` gathers [n, T + 1], of which the first T are taken. `mask` replaces a hidden token, and any of 0 ...
    `vocabulary` - 1 a replaced one. Those in `spared`, ends of documents, are predicted only if there are too few
    others.
    """

    def __init__(self, tokens: Dataset, *, mask: int, vocabulary: int, spared: Sequence[int], seed: int) -> None:
        super().__init__(tokens, arrays=2)
        self._mask, self._vocabulary, self._spared = mask, vocabulary, list(spared)
        self._seed = seed

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x` and `labels`, both [n, T] int64."""
        x = np.ascontiguousarray(self._tokens.gather(indices, samples)["tokens"][:, :-1])
        labels = np.full_like(x, _NOT_COUNTED)
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
