"""What a rank tells its node agent: its phase, and what it waits for when the agent asks.

The agent creates the memory (a memfd, which has no name and ends with the agent); each rank writes to its own page. A
mark is three stores to memory. It carries no time: the agent records when it last saw a change, so a suspended machine
or a stopped agent is not mistaken for a hung rank.

The agent asks by SIGUSR2. A background thread of the rank answers on the same page, even if the main thread is blocked.
SIGUSR1 writes the stacks of all threads to the rank's log, even if one of them never releases the interpreter.
"""

from __future__ import annotations

import enum
import faulthandler
import json
import mmap
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypedDict

import torch

from trainworks.files import closing_handle
from trainworks.worker.mesh import CHECKPOINT_GROUP, open_store

_PAGE = mmap.PAGESIZE
_CELLS = 4
_COUNT, _PHASE, _STEP, _ANSWER_BYTES = range(_CELLS)
_ANSWER_AT = _CELLS * 8
_ANSWER_ROOM = _PAGE - _ANSWER_AT
_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Flight recorders of gloo, and of NCCL where torch has it: (with collectives, only pending ones) -> JSON."""
_TORCH = str(Path(torch.__file__).parent)
_DISTRIBUTED = f"{_TORCH}/distributed"
_STDLIB = str(Path(threading.__file__).parent)
_STACK_LINES = 12
"""Innermost lines of a stack that an answer has room for, of this length at most."""
_LINE_CHARS = 120
_WAITS_CHARS = 1000


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
    RENDEZVOUS = 9
    GROUPS = 10
    DATASET = 11
    BUILD = 12
    COMPILE = 13
    FIRST_STEP = 14

    @property
    def text(self) -> str:
        """Name of the phase in the record."""
        return _TEXTS.get(self) or self.name.lower().replace("_", " ")


_TEXTS = {Phase.COMPUTE: "forward and backward", Phase.GROUPS: "process groups", Phase.BUILD: "model build"}


@dataclass(frozen=True, slots=True)
class Beat:
    """The last mark of a rank."""

    count: int = 0
    """Marks so far; an unchanged count means that the rank has not reached its next phase."""
    phase: Phase = Phase.STARTING
    step: int = 0


class RankAnswer(TypedDict):
    """What a rank does when its agent asks."""

    count: int
    """Its marks so far."""
    waits_for: str
    """Collective or receive that its main thread waits in; empty if it waits for no other rank."""
    where: str
    """Innermost line of its main thread outside of libraries."""
    stack: str
    """Lines of its main thread, the innermost last."""


class Heartbeat:
    """The rank's side: `mark` records its phase, on the board and local rank of `place` if there is an agent."""

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

    def answer(self, content: RankAnswer) -> None:
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

    def answer(self, local_rank: int) -> RankAnswer | None:
        """Last answer of the rank; None without one."""
        length = self._cells(local_rank)[_ANSWER_BYTES]
        start = local_rank * _PAGE + _ANSWER_AT
        try:
            answer: RankAnswer = json.loads(self._memory[start : start + length])
        except ValueError:  # none yet, or it is being written
            return None
        return answer

    def _cells(self, local_rank: int) -> memoryview:
        start = local_rank * _PAGE
        return memoryview(self._memory)[start : start + _ANSWER_AT].cast("q")


def _map(path: str, local_rank: int) -> mmap.mmap:
    with closing_handle(os.open(path, os.O_RDWR)) as descriptor:
        return mmap.mmap(descriptor, _PAGE, offset=local_rank * _PAGE)


def _beat(cells: memoryview) -> Beat:
    return Beat(cells[_COUNT], Phase(cells[_PHASE]), cells[_STEP])


def install_stall_reporter(heartbeat: Heartbeat) -> None:
    """Start answering. Call it from the main thread before any other thread starts."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    main = threading.main_thread().ident
    threading.Thread(target=_answer, args=(heartbeat, main), name="stall-reporter", daemon=True).start()


def _answer(heartbeat: Heartbeat, main: int) -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        count, frame, pending = heartbeat.last.count, sys._current_frames().get(main), _pending()
        inside = frame is not None and (
            frame.f_code.co_filename.startswith(_DISTRIBUTED) or frame.f_code is open_store.__code__
        )
        waits_for = ", ".join(pending[:2]) or (f"`{frame.f_code.co_name}`" if inside and frame else "")
        answer = RankAnswer(
            count=count, waits_for=waits_for[:_WAITS_CHARS], where=_format_frame(frame), stack=_stack(frame)
        )
        heartbeat.answer(answer)


def _pending() -> list[str]:
    """Collectives that this rank has begun and not ended, oldest first, as torch's flight recorders have them.

    They do not have gloo's sends and receives; the stack shows those.
    """
    recorders = (getattr(torch._C._distributed_c10d, name, None) for name in _RECORDERS)
    return [
        f"{entry['profiling_name']} #{entry['collective_seq_id']} of {entry['input_sizes']}"
        for content in [json.loads(dump(True, True)) for dump in recorders if dump is not None]
        for entry in content.get("entries") or ()
        if not entry["retired"] and entry["process_group"][1] != CHECKPOINT_GROUP
    ]


def _stack(frame: FrameType | None) -> str:
    """Innermost lines of a stack, libraries included."""
    lines = traceback.extract_stack(frame, limit=_STACK_LINES) if frame is not None else []
    return "\n".join(f"{Path(each.filename).name}:{each.lineno} {each.name}"[:_LINE_CHARS] for each in lines)


def _format_frame(frame: FrameType | None) -> str:
    """Innermost line outside of torch and the standard library."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if not file.is_relative_to(_TORCH) and (not file.is_relative_to(_STDLIB) or "site-packages" in file.parts):
            return f"{file.name}:{frame.f_lineno} `{frame.f_code.co_name}`"
        frame = frame.f_back
    return ""
