"""A rank's pulse: what it is doing, in memory that its node agent looks at.

The agent makes the memory (a memfd: it has no name, and is gone with the agent); each rank writes to a page of its
own. A mark is three stores to memory. It carries no time: the agent notes when it last saw a change, so a machine that
was suspended, or an agent that was stopped itself, is not mistaken for a rank that stands still.
"""

from __future__ import annotations

import enum
import json
import mmap
import os
from dataclasses import dataclass
from typing import Any

__all__ = ["Beat", "Board", "Heartbeat", "Phase"]

_PAGE = mmap.PAGESIZE
_CELLS = 4
_COUNT, _PHASE, _STEP, _ANSWER_BYTES = range(_CELLS)
_ANSWER_AT = _CELLS * 8
_ANSWER_ROOM = _PAGE - _ANSWER_AT


class Phase(enum.IntEnum):
    """What a rank is doing; the text that stands in the record is the name in lower case."""

    STARTING = 0
    LOADING = 1
    DATA = 2
    COMPUTE = 3
    OPTIMIZER = 4
    CHECKPOINT = 5
    COMMUNICATION = 6
    FINISHING = 7

    @property
    def text(self) -> str:
        """As the record has it."""
        return "forward and backward" if self is Phase.COMPUTE else self.name.lower()


@dataclass(frozen=True, slots=True)
class Beat:
    """The last mark of a rank."""

    count: int = 0
    """Marks so far; a rank whose count stays the same has not come to its next phase."""
    phase: Phase = Phase.STARTING
    step: int = 0


class Heartbeat:
    """The rank's side: `mark` says where it is.

    Args:
        place: of the board and this rank's page, as `Board.place` gives it; None where nobody watches.
    """

    def __init__(self, place: tuple[str, int] | None = None) -> None:
        self._memory = _map(*place) if place else mmap.mmap(-1, _PAGE)
        self._cells = memoryview(self._memory).cast("q")

    def mark(self, phase: Phase, step: int = 0) -> None:
        """Enter a phase."""
        cells = self._cells
        cells[_PHASE] = phase
        cells[_STEP] = step
        cells[_COUNT] += 1

    @property
    def last(self) -> Beat:
        """The last mark."""
        return _beat(self._cells)

    def answer(self, content: dict[str, Any]) -> None:
        """Leave an answer for the agent; what does not fit into the page is left out."""
        text = json.dumps(content).encode()
        if len(text) <= _ANSWER_ROOM:
            self._cells[_ANSWER_BYTES] = 0
            self._memory[_ANSWER_AT : _ANSWER_AT + len(text)] = text
            self._cells[_ANSWER_BYTES] = len(text)


class Board:
    """The agent's side: one page for each rank of its node."""

    def __init__(self, num_ranks: int) -> None:
        self._descriptor = os.memfd_create("trainworks-heartbeats")
        os.ftruncate(self._descriptor, num_ranks * _PAGE)
        self._memory = mmap.mmap(self._descriptor, num_ranks * _PAGE)
        self._num_ranks = num_ranks

    @property
    def path(self) -> str:
        """What a process of the same user can open."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def clear(self) -> None:
        """Forget the ranks of an earlier attempt."""
        self._memory[:] = bytes(len(self._memory))

    def read(self, local_rank: int) -> Beat:
        """The last mark of one rank; that of a rank that has not begun if it has made none."""
        return _beat(self._cells(local_rank))

    def answer(self, local_rank: int) -> dict[str, Any] | None:
        """What the rank answered last; None if it never did."""
        length = self._cells(local_rank)[_ANSWER_BYTES]
        start = local_rank * _PAGE + _ANSWER_AT
        try:
            content = json.loads(self._memory[start : start + length])
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def _cells(self, local_rank: int) -> memoryview:
        start = local_rank * _PAGE
        return memoryview(self._memory)[start : start + _ANSWER_AT].cast("q")


def _map(path: str, local_rank: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, _PAGE, offset=local_rank * _PAGE)
    finally:
        os.close(descriptor)


def _beat(cells: memoryview) -> Beat:
    return Beat(cells[_COUNT], Phase(cells[_PHASE]), cells[_STEP])
