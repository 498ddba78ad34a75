"""The node agent's eye on its ranks: who was silent for how long, what the other nodes see, and the verdict.

Every node sees its own ranks, and hands what it sees to the others through the rendezvous store, as durations: the
clocks of two machines are not compared. All nodes judge alike; the node of the first culprit acts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainworks.host import memory, process
from trainworks.worker.health.hang import Hang, HangLimits, RankObservation, find_hang
from trainworks.worker.health.heartbeat import Beat, HeartbeatBoard, Phase

_LOOK_EVERY_S = 0.5
_LATE_S = 2.0
"""Delay of a poll after which its observations do not count: the agent itself did not run."""
_KEPT_STEPS = 64
_MARKS_PER_STEP = 6
"""At most."""
_NOT_BEGUN = Beat()


class Exchange(Protocol):
    """Passes what one node sees to all nodes."""

    def share(self, own: str) -> list[str]:
        """Hand over this node's text; returns the last ones of the other nodes that have given any."""
        ...


@dataclass(slots=True)
class Watched:
    """One rank of this node, and what has been seen of it."""

    rank: int
    local_rank: int
    pid: int
    beat: Beat = _NOT_BEGUN
    changed_at: float = 0.0
    looked_at: float = 0.0
    asked_at: float | None = None
    peak_bytes: int = 0
    """Memory peak, read while the rank lives."""
    first_step: int = 0
    step_at: tuple[int, float] = (0, 0.0)
    step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))

    def see(self, beat: Beat, now: float) -> None:
        """Record a new mark. The first step compiles and allocates, so step times count from the second.

        If several steps pass between two polls, the marks between them give their least number, at any first step of
        a resumed run; so do their numbers where the poll before saw the first step.
        """
        looked_at, self.looked_at = self.looked_at, now
        if beat.count == self.beat.count:
            return
        step, since = self.step_at
        if step == 0 and beat.step and (done := (beat.count - self.beat.count) // _MARKS_PER_STEP) > 1:
            self.step_times_s.append((now - self.changed_at) / done)
        self.beat, self.changed_at, self.asked_at = beat, now, None
        if beat.step > step:
            self.first_step = self.first_step or beat.step
            if step > self.first_step:
                self.step_times_s.append((now - since) / (beat.step - step))
            elif step and beat.step > step + 1:
                self.step_times_s.append((now - looked_at) / (beat.step - step - 1))
            self.step_at = beat.step, now


class HangMonitor:
    """Looks at the ranks of one node, and at what the other nodes say of theirs.

    Args:
        board: that the ranks write to.
        limits: how long they may be silent.
        world_size: ranks of the job; nothing is judged before all of them are in sight.
        exchange: with the other nodes; None on a single one.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        board: HeartbeatBoard,
        limits: HangLimits,
        *,
        world_size: int,
        exchange: Exchange | None,
        now: Callable[[], float],
    ) -> None:
        self._board = board
        self._world_size = world_size
        self._limits = limits
        self._exchange = exchange
        self._now = now
        self._ranks: list[Watched] = []
        self._looked_at = 0.0

    def begin(self, ranks: Sequence[tuple[int, int]]) -> None:
        """Watch new processes: global rank and process id, in order of the local rank. The board is clear."""
        now = self._looked_at = self._now()
        self._ranks = [
            Watched(rank, index, pid, changed_at=now, looked_at=now) for index, (rank, pid) in enumerate(ranks)
        ]

    def look(self) -> Hang | None:
        """The verdict, if one of this node's ranks is its first culprit; twice a second there is something to do."""
        now = self._now()
        late_s = now - self._looked_at - _LOOK_EVERY_S
        if late_s < 0:
            return None
        self._looked_at = now
        if late_s > _LATE_S:
            self._forgive(late_s)
        for rank in self._ranks:
            rank.see(self._board.read(rank.local_rank), now)
            rank.peak_bytes = max(rank.peak_bytes, memory.peak_bytes(rank.pid))
        own = [self._sighting(rank, now) for rank in self._ranks]
        everybody = own + self._others(own)
        if any(observation.is_overdue for observation in everybody):
            self._ask(now)
        hang = find_hang(everybody) if len(everybody) == self._world_size else None
        return hang if hang and hang.first in own else None

    def last_seen(self, rank: int) -> Watched:
        """A rank of this node, with its very last mark, even if it has ended since."""
        watched = next(watched for watched in self._ranks if watched.rank == rank)
        watched.beat = self._board.read(watched.local_rank)
        return watched

    def _forgive(self, late_s: float) -> None:
        for rank in self._ranks:
            rank.changed_at += late_s

    def _sighting(self, rank: Watched, now: float) -> RankObservation:
        answer = self._board.answer(rank.local_rank) if rank.asked_at is not None else None
        if answer is not None and answer.get("count") != rank.beat.count:
            answer = None  # of an earlier silence
        return RankObservation(
            rank=rank.rank,
            beat=rank.beat,
            silent_s=now - rank.changed_at,
            limit_s=self._limits.of(rank.beat.phase, rank.step_times_s),
            stop_limit_s=self._limits.of_step(rank.step_times_s),
            state=process.state(rank.pid),
            asked_s=0.0 if rank.asked_at is None else now - rank.asked_at,
            waits_for=None if answer is None else str(answer.get("waits_for")),
            where="" if answer is None else str(answer.get("where")),
        )

    def _ask(self, now: float) -> None:
        """Ask every rank of this node what it waits for; again if it moved meanwhile."""
        for rank in self._ranks:
            if rank.asked_at is None:
                rank.asked_at = now
                if rank.beat.count:  # before that the signal would end it
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank.pid, signal.SIGUSR2)

    def _others(self, own: Sequence[RankObservation]) -> list[RankObservation]:
        if self._exchange is None:
            return []
        texts = self._exchange.share(json.dumps([dataclasses.asdict(observation) for observation in own]))
        return [_read_sighting(fields) for text in texts for fields in json.loads(text)]


def _read_sighting(fields: dict[str, Any]) -> RankObservation:
    beat = fields.pop("beat")
    return RankObservation(**fields, beat=Beat(beat["count"], Phase(beat["phase"]), beat["step"]))
