"""Rows of documents: whole where they fit, so that attention and loss see few documents that are cut."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack"]

Tokens = NDArray[np.unsignedinteger]


def pack(documents: list[Tokens], row: int, filler: int) -> tuple[Tokens, int]:
    """Best-fit decreasing: each document goes where it leaves the least room, the longest first.

    A document longer than a row is cut into rows that share their border token, so that every token is still
    predicted from the one before; its last piece is packed like a document. Rows stand in the order in which they
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
