"""Heartbeats: the phase of each rank, in memory that its node agent reads.

The agent creates the memory (a memfd, which has no name and ends with the agent); each rank writes to its own page. A
mark is three stores to memory. It carries no time: the agent records when it last saw a change, so a suspended machine
or a stopped agent is not mistaken for a hung rank.
"""

from __future__ import annotations

import enum
import json
import mmap
import os
from dataclasses import dataclass
from typing import Any

_PAGE = mmap.PAGESIZE
_CELLS = 4
_COUNT, _PHASE, _STEP, _ANSWER_BYTES = range(_CELLS)
_ANSWER_AT = _CELLS * 8
_ANSWER_ROOM = _PAGE - _ANSWER_AT


class Phase(enum.IntEnum):
    """Phase of a rank; the record has its name in lower case."""

    STARTING = 0
    LOADING = 1
    DATA = 2
    COMPUTE = 3
    OPTIMIZER = 4
    CHECKPOINT = 5
    COMMUNICATION = 6
    FINISHING = 7
    EVALUATION = 8

    @property
    def text(self) -> str:
        """Name of the phase in the record."""
        return "forward and backward" if self is Phase.COMPUTE else self.name.lower()


@dataclass(frozen=True, slots=True)
class Beat:
    """The last mark of a rank."""

    count: int = 0
    """Marks so far; an unchanged count means that the rank has not reached its next phase."""
    phase: Phase = Phase.STARTING
    step: int = 0


class Heartbeat:
    """The rank's side: `mark` records its phase.

    Args:
        place: path of the board and local rank; None without a node agent.
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
        """Write an answer for the agent; one that does not fit into the page is dropped."""
        text = json.dumps(content).encode()
        if len(text) <= _ANSWER_ROOM:
            self._cells[_ANSWER_BYTES] = 0
            self._memory[_ANSWER_AT : _ANSWER_AT + len(text)] = text
            self._cells[_ANSWER_BYTES] = len(text)


class HeartbeatBoard:
    """The agent's side: one page for each rank of its node."""

    def __init__(self, num_ranks: int) -> None:
        self._descriptor = os.memfd_create("trainworks-heartbeats")
        os.ftruncate(self._descriptor, num_ranks * _PAGE)
        self._memory = mmap.mmap(self._descriptor, num_ranks * _PAGE)
        self._num_ranks = num_ranks

    @property
    def path(self) -> str:
        """Path that processes of the same user can open."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def clear(self) -> None:
        """Forget the ranks of an earlier attempt."""
        self._memory[:] = bytes(len(self._memory))

    def read(self, local_rank: int) -> Beat:
        """The last mark of one rank; a zero mark before its first."""
        return _beat(self._cells(local_rank))

    def answer(self, local_rank: int) -> dict[str, Any] | None:
        """Last answer of the rank; None without one."""
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
