"""Find the rank that hangs among those that only wait for it: each node watches its ranks, and one node judges.

In a synchronous job one hung rank blocks all others, so silence alone does not show the cause. The cause is a rank that
does *not* wait for others: a signal stopped it, it does not answer, or its main thread is outside of any collective. If
all ranks wait, they are in a deadlock.

While a rank is overdue, every node hands over what it sees of its own ranks, as durations: the clocks of two machines
are not compared. The node of the first culprit acts. `find_hang` is pure: observations in, a verdict out.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from pydantic import TypeAdapter

from trainworks.host import memory, process
from trainworks.units import format_duration
from trainworks.worker.health.heartbeat import Beat, HeartbeatBoard, Phase
from trainworks.worker.health.meeting import StoreExchange

FLOOR_S = 10.0
STEPS = 20
"""Allowed silence of a rank, in median steps; at least FLOOR_S."""
START_S = 120.0
"""Allowed silence in phases in which a rank starts, meets the others, and makes its first step."""
LONG_S = 600.0
"""Allowed silence in phases without a typical duration: opening data, compiling, loading, saving, finishing."""
DATA_FACTOR = 3
"""Factor for reading data, since readers retry."""
ANSWER_S = 2.0
"""Time to answer a stack request. A rank that takes longer blocks its interpreter, or the kernel blocks it."""
_READING = frozenset({Phase.DATA, Phase.EVALUATION})
"""Phases that read data; an evaluation marks each of its batches."""
_LONG = frozenset({Phase.DATASET, Phase.COMPILE, Phase.LOADING, Phase.CHECKPOINT, Phase.FINISHING})
_START = frozenset({Phase.STARTING, Phase.RENDEZVOUS, Phase.GROUPS, Phase.BUILD, Phase.FIRST_STEP})
_LOOK_EVERY_S = 0.5
_LATE_S = 2.0
"""Delay of a poll after which its observations do not count: the agent itself did not run."""
_KEPT_STEPS = 64
_MARKS_PER_STEP = 6
"""At most."""
_NOT_BEGUN = Beat()


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Allowed silence of a rank, by phase.

    limit = hang_timeout, or max(10 s, 20 * median step); three times that for data and for a batch of an evaluation; at
    least 10 min for phases without a typical duration, and for all phases of a step until steps are measured.

    Until the first step: start_timeout for each phase, 20 planned steps at least for that step; five times that, and at
    least 10 min, to open data, to load and to compile.
    """

    hang_timeout_s: float | None = None
    """Value from the run file; None for automatic."""
    start_timeout_s: float = START_S
    """Value from the run file."""
    planned_step_s: float = 0.0
    """Time of a step as planned."""

    def step_limit_s(self, step_times_s: Sequence[float]) -> float:
        """Limit in seconds for forward, backward, optimizer and collectives."""
        if self.hang_timeout_s is not None:
            return self.hang_timeout_s
        return max(FLOOR_S, STEPS * median(step_times_s)) if step_times_s else FLOOR_S

    def of(self, phase: Phase, step_times_s: Sequence[float]) -> float:
        """Limit in seconds for a phase."""
        limit = self.step_limit_s(step_times_s)
        if phase in _START:
            return max(self.start_timeout_s, STEPS * self.planned_step_s if phase is Phase.FIRST_STEP else 0.0)
        if phase in _LONG or not step_times_s:
            return max(LONG_S, 10 * limit, 5 * self.start_timeout_s)
        return DATA_FACTOR * limit if phase in _READING else limit


@dataclass(frozen=True, slots=True)
class RankObservation:
    """Last observation of one rank by its node agent."""

    rank: int
    beat: Beat
    silent_s: float
    """Time since its last mark."""
    limit_s: float
    """Allowed silence."""
    stop_limit_s: float
    """Allowed silence of a stopped process."""
    state: str = "R"
    """Process state from /proc: T is stopped, D uninterruptible."""
    asked_s: float = 0.0
    """Time since the agent requested its stack; 0 without a request."""
    waits_for: str | None = None
    """Collective or receive it waits in; empty if it waits for no other rank, None without an answer."""
    where: str = ""
    """Innermost line of its main thread outside of libraries."""
    stack: str = ""
    """Lines of its main thread; empty without an answer."""

    @property
    def is_stopped(self) -> bool:
        """True if a signal stopped it."""
        return self.state == "T"

    @property
    def is_overdue(self) -> bool:
        """True if it was silent for longer than allowed."""
        return self.silent_s > (self.stop_limit_s if self.is_stopped else self.limit_s)

    @property
    def is_still_to_answer(self) -> bool:
        """True if its answer may still come."""
        return not self.is_stopped and self.waits_for is None and self.asked_s < ANSWER_S


_OBSERVATIONS = TypeAdapter(list[RankObservation])
"""What a node hands over."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang: its culprits and their victims."""

    culprits: tuple[RankObservation, ...]
    """Ranks that hang by themselves; all ranks in a deadlock."""
    victims: tuple[RankObservation, ...]

    @property
    def first(self) -> RankObservation:
        """The culprit named in the record."""
        return self.culprits[0]

    @property
    def stacks(self) -> dict[str, str]:
        """Lines of the main thread of every rank that answered, by rank."""
        return {str(each.rank): each.stack for each in (*self.culprits, *self.victims) if each.stack}

    @property
    def is_deadlock(self) -> bool:
        """True if all ranks wait for each other."""
        return all(culprit.waits_for for culprit in self.culprits)

    def message(self) -> str:
        """One sentence: rank, duration, place, phase, and the ranks that waited for it."""
        first = self.first
        after = format_duration(first.silent_s)
        if self.is_deadlock:
            whats = {culprit.waits_for for culprit in self.culprits}
            each = "; ".join(f"rank {c.rank} in {c.waits_for}" for c in self.culprits[:8])
            more = f" and {len(self.culprits) - 8} more" if len(self.culprits) > 8 else ""
            how = "the same thing, which does not end" if len(whats) == 1 else "different things"
            return f"all ranks have waited for {how} for {after} in {_place(first.beat)}: {each}{more}"
        others = f" (and {_ranks(self.culprits[1:])})" if len(self.culprits) > 1 else ""
        waiting = f"; {_ranks(self.victims)} waited for it" if self.victims else ""
        phase = f", {first.beat.phase.text}" if first.beat.step else ""
        return f"rank {first.rank}{others} {_state_text(first)} for {after} in {_place(first.beat)}{phase}{waiting}"

    def hint(self, log: str) -> str:
        """Advice for the user."""
        if self.first.is_stopped:
            return f"something sent process SIGSTOP; a debugger, a job control or a quota? see {log}"
        if self.is_deadlock and len({culprit.waits_for for culprit in self.culprits}) > 1:
            return f"the ranks disagree on what comes next; what rank {self.first.rank} was doing is in {log}"
        limit, whose = (
            format_duration(self.first.limit_s),
            "stacks of all ranks are in" if self.stacks else "its stack is in",
        )
        key = "start_timeout" if self.first.beat.phase in _START else "hang_timeout"
        return f"{whose} {log}; if it may be silent for more than {limit}, raise `recover.{key}`"


def _place(beat: Beat) -> str:
    return f"step {beat.step}" if beat.step else beat.phase.text


def _state_text(observation: RankObservation) -> str:
    if observation.is_stopped:
        return "was stopped by a signal"
    if observation.state == "D":
        return "was blocked in kernel I/O (state D)"
    if observation.waits_for is None:
        return "did not answer, its interpreter blocked," if observation.beat.count else "has not begun"
    return f"hung at {observation.where}" if observation.where else "hung"


def _ranks(observations: Sequence[RankObservation]) -> str:
    numbers = sorted(observation.rank for observation in observations)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return (
        f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) < 6 else f"{len(numbers)} ranks"
    )


_HANG = TypeAdapter(Hang)
"""What the node that judges tells that of the culprit."""


def find_hang(observations: Sequence[RankObservation]) -> Hang | None:
    """The hang of the job; None while any rank may still make progress.

    One stopped rank is enough. Otherwise every rank must have answered or missed its time to answer; those that do not
    wait for others are the culprits, and one of them must be overdue in its phase. If all wait, all must be overdue.
    """
    if not any(observation.is_overdue for observation in observations):
        return None
    stopped = [observation for observation in observations if observation.is_stopped and observation.is_overdue]
    if stopped:
        return _verdict(stopped, observations)
    if any(observation.is_still_to_answer for observation in observations):
        return None
    culprits = [observation for observation in observations if not observation.waits_for]
    if culprits:
        return _verdict(culprits, observations) if any(culprit.is_overdue for culprit in culprits) else None
    return _verdict(observations, observations) if all(observation.is_overdue for observation in observations) else None


def _verdict(culprits: Sequence[RankObservation], observations: Sequence[RankObservation]) -> Hang:
    ordered = sorted(culprits, key=lambda culprit: (not culprit.is_overdue, culprit.rank))
    return Hang(tuple(ordered), tuple(observation for observation in observations if observation not in culprits))


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


@dataclass(eq=False)
class HangMonitor:
    """Looks at the ranks of one node, and at what the other nodes say of theirs.

    Nothing is judged before all ranks of the job are in sight. `now` is a clock that only goes forward, in seconds.
    """

    board: HeartbeatBoard
    limits: HangLimits
    world_size: int
    exchange: StoreExchange | None
    """With the other nodes; None where there are none."""
    now: Callable[[], float]
    _ranks: list[Watched] = field(default_factory=list, init=False)
    _looked_at: float = field(default=0.0, init=False)

    def begin(self, ranks: Sequence[tuple[int, int]]) -> None:
        """Watch new processes: global rank and process id, in order of the local rank. The board is clear."""
        now = self._looked_at = self.now()
        self._ranks = [
            Watched(rank, index, pid, changed_at=now, looked_at=now) for index, (rank, pid) in enumerate(ranks)
        ]

    def look(self) -> Hang | None:
        """The verdict, if one of this node's ranks is its first culprit; twice a second there is something to do."""
        now = self.now()
        late_s = now - self._looked_at - _LOOK_EVERY_S
        if late_s < 0:
            return None
        self._looked_at = now
        for rank in self._ranks:
            if late_s > _LATE_S:
                rank.changed_at += late_s
                rank.asked_at = None if rank.asked_at is None else rank.asked_at + late_s
            rank.see(self.board.read(rank.local_rank), now)
            rank.peak_bytes = max(rank.peak_bytes, memory.peak_bytes(rank.pid))
        own = [self._sighting(rank, now) for rank in self._ranks]
        is_urgent = any(observation.is_overdue for observation in own)
        if not (is_urgent if self.exchange is None else self.exchange.is_asked(is_urgent=is_urgent)):
            return None
        self._ask(now)
        if self.exchange is None:
            return find_hang(own) if len(own) == self.world_size else None
        return self._judge(self.exchange, own)

    def _judge(self, exchange: StoreExchange, own: Sequence[RankObservation]) -> Hang | None:
        """The verdict of the node that judges, if it is about a rank of this node."""
        nodes = [
            _OBSERVATIONS.validate_json(text) for text in exchange.gather(_OBSERVATIONS.dump_json([*own]).decode())
        ]
        everybody = [observation for node in nodes for observation in node]
        if len(everybody) == self.world_size:
            if (hang := find_hang(everybody)) is not None:
                place = next(place for place, node in enumerate(nodes) if hang.first in node)
                exchange.tell(place, _HANG.dump_json(hang).decode())
            elif not any(observation.is_overdue for observation in everybody):
                exchange.rest()
        told = exchange.told()
        return None if told is None else _HANG.validate_json(told)

    def last_seen(self, rank: int) -> Watched:
        """A rank of this node, with its very last mark, even if it has ended since."""
        watched = next(watched for watched in self._ranks if watched.rank == rank)
        watched.beat = self.board.read(watched.local_rank)
        return watched

    def _sighting(self, rank: Watched, now: float) -> RankObservation:
        answer = self.board.answer(rank.local_rank) if rank.asked_at is not None else None
        if answer is not None and answer["count"] != rank.beat.count:
            answer = None  # of an earlier silence
        return RankObservation(
            rank=rank.rank,
            beat=rank.beat,
            silent_s=now - rank.changed_at,
            limit_s=self.limits.of(rank.beat.phase, rank.step_times_s),
            stop_limit_s=self.limits.step_limit_s(rank.step_times_s),
            state=process.state(rank.pid),
            asked_s=0.0 if rank.asked_at is None else now - rank.asked_at,
            waits_for=None if answer is None else answer["waits_for"],
            where="" if answer is None else answer["where"],
            stack="" if answer is None else answer["stack"],
        )

    def _ask(self, now: float) -> None:
        """Ask every rank of this node what it waits for; again if it moved meanwhile."""
        for rank in self._ranks:
            if rank.asked_at is None:
                rank.asked_at = now
                if rank.beat.count:  # before that the signal would end it
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank.pid, signal.SIGUSR2)
