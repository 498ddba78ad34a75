"""Rows of whole documents, and the marks that tell a row's tokens apart.

A marked token is its number in the vocabulary with two bits beside it:

    START     it begins a document: attention and positions begin anew
    COUNTED   the loss counts it where it is predicted
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.worker.data.order import Indices
from trainworks.worker.data.reader import Dataset, TokenView

Tokens = NDArray[np.unsignedinteger]

COUNTED, START = 1 << 31, 1 << 30
_NUMBER = START - 1
_ROOM = 0xFFFFFFFF
"""Stands where a row has no token yet."""
_NOT_COUNTED = -100
"""The label of a token that the loss leaves out."""
MARKED_DTYPE = np.dtype("<u4")


def pack(documents: Sequence[Tokens], row: int, filler: int) -> tuple[Tokens, int]:
    """Best-fit decreasing: each document, longest first, goes into the row where it leaves the least room.

    A document longer than a row is cut into rows that share their border token, so that every token is still
    predicted from the one before; its last piece is packed like a document. Rows keep the order in which they
    were begun (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

    Args:
        documents: tokens of each, closed by the end-of-text token.
        row: tokens per row, T + 1.
        filler: token that fills what is left of a row.

    Returns:
        Rows [n, row], and how many of their tokens are filler.
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
    """Rows [n, row] of marked tokens, and how many of them are filler, which the loss does not count.

    Args:
        documents: tokens of each, with COUNTED where it applies.
        row: tokens per row, T + 1.
        filler: token that fills what is left of a row.
        one_per_row: do not join documents; each has at most a row.
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

    A token that begins a document is never a label: no other document is to predict it.

    Args:
        tokens: gathers marked `tokens` [n, T + 1].
        one_per_row: every row has one document: no token has to be kept from seeing another.
    """

    def __init__(self, tokens: Dataset, *, one_per_row: bool) -> None:
        super().__init__(tokens, arrays=3)
        self._one_per_row = one_per_row

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x`, `labels` and `positions`, each [n, T] int64."""
        marked = np.asarray(self._tokens.gather(indices, samples)["tokens"])
        arrays = _inputs_and_labels(marked)
        return arrays if self._one_per_row else arrays | {"positions": _positions(marked[:, :-1] & START > 0)}


class PairedTokens(TokenView):
    """Rows of marked tokens two by two, a preferred answer and another one, as `x` and `labels`, both [n, 2, T].

    Args:
        tokens: gathers marked `tokens` [n, 2 (T + 1)].
    """

    def __init__(self, tokens: Dataset) -> None:
        super().__init__(tokens, arrays=2)

    def gather(self, indices: Indices, samples: Indices) -> dict[str, NDArray[Any]]:
        """`x` and `labels`, both [n, 2, T] int64."""
        marked = np.asarray(self._tokens.gather(indices, samples)["tokens"])
        return _inputs_and_labels(marked.reshape(len(marked), 2, -1))


def _inputs_and_labels(marked: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """`x` and `labels` [..., T] of marked rows [..., T + 1]."""
    numbers = marked & _NUMBER
    counts = (marked & COUNTED > 0) & (marked & START == 0)
    labels = np.where(counts[..., 1:], numbers[..., 1:], _NOT_COUNTED)
    return {"x": np.ascontiguousarray(numbers[..., :-1]), "labels": labels}


def _positions(starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Distance of each token [n, T] from the start of its document."""
    at = np.arange(starts.shape[1])
    return at - np.maximum.accumulate(np.where(starts, at, 0), axis=1)
