"""Find the rank that hangs among those that only wait for it. Pure: observations in, a verdict out.

In a synchronous job one hung rank blocks all others, so silence alone does not show the cause. The cause is a rank that
does *not* wait for others: a signal stopped it, it does not answer, or its main thread is outside of any collective. If
all ranks wait, they are in a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trainworks.units import format_duration
from trainworks.worker.health.heartbeat import Beat, Phase

FLOOR_S = 10.0
STEPS = 20
"""Allowed silence of a rank, in median steps; at least FLOOR_S."""
LONG_S = 600.0
"""Allowed silence in phases without a typical duration: starting, compiling, loading, saving, finishing."""
DATA_FACTOR = 3
"""Factor for reading data, since readers retry."""
ANSWER_S = 2.0
"""Time to answer a stack request. A rank that takes longer blocks its interpreter, or the kernel blocks it."""
_READING = frozenset({Phase.DATA, Phase.EVALUATION})
"""Phases that read data; an evaluation marks each of its batches."""
_LONG = frozenset({Phase.STARTING, Phase.LOADING, Phase.CHECKPOINT, Phase.FINISHING})


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Allowed silence of a rank, by phase.

    limit = hang_timeout, or max(10 s, 20 * median step); three times that for data and for a batch of an evaluation; at
    least 10 min for phases without a typical duration, and for all phases until steps are measured.
    """

    hang_timeout_s: float | None = None
    """Value from the run file; None for automatic."""

    def of_step(self, step_times_s: Sequence[float]) -> float:
        """Limit in seconds for forward, backward, optimizer and collectives."""
        if self.hang_timeout_s is not None:
            return self.hang_timeout_s
        return max(FLOOR_S, STEPS * median(step_times_s)) if step_times_s else FLOOR_S

    def of(self, phase: Phase, step_times_s: Sequence[float]) -> float:
        """Limit in seconds for a phase."""
        limit = self.of_step(step_times_s)
        if phase in _LONG or not step_times_s:
            return max(LONG_S, 10 * limit)
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
            return f"all ranks have waited for {how} for {after} in step {first.beat.step}: {each}{more}"
        others = f" (and {_ranks(self.culprits[1:])})" if len(self.culprits) > 1 else ""
        waiting = f"; {_ranks(self.victims)} waited for it" if self.victims else ""
        place = f"step {first.beat.step}, {first.beat.phase.text}" if first.beat.step else first.beat.phase.text
        return f"rank {first.rank}{others} {_state_text(first)} for {after} in {place}{waiting}"

    def hint(self, log: str) -> str:
        """Advice for the user."""
        if self.first.is_stopped:
            return f"something sent process SIGSTOP; a debugger, a job control or a quota? see {log}"
        if self.is_deadlock and len({culprit.waits_for for culprit in self.culprits}) > 1:
            return f"the ranks disagree on what comes next; what rank {self.first.rank} was doing is in {log}"
        limit = format_duration(self.first.limit_s)
        return f"its stack is in {log}; if it may be silent for more than {limit}, raise `recover.hang_timeout`"


def _state_text(observation: RankObservation) -> str:
    if observation.is_stopped:
        return "was stopped by a signal"
    if observation.state == "D":
        return "was blocked in kernel I/O (state D)"
    if observation.waits_for is None:
        return "did not answer, its interpreter blocked,"
    return f"hung at {observation.where}" if observation.where else "hung"


def _ranks(observations: Sequence[RankObservation]) -> str:
    numbers = sorted(observation.rank for observation in observations)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return (
        f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) < 6 else f"{len(numbers)} ranks"
    )


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
