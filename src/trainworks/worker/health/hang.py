"""Which rank stands still, and which ones only wait for it. Pure: sightings in, a verdict out.

In a synchronous job one rank that stands still stops all the others, so a silence says little about who caused it. The
cause is a rank that does *not* wait for others: it is stopped, or does not answer, or its main thread is somewhere else
than in a collective. Where all of them wait, they wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trainworks.units import format_duration
from trainworks.worker.health.heartbeat import Beat, Phase

__all__ = ["Hang", "Limits", "Sighting", "judge"]

FLOOR_S = 10.0
STEPS = 20
"""A rank may be silent for as long as this many median steps take, or for FLOOR_S."""
LONG_S = 600.0
"""The same for what has no usual duration: starting, compiling, loading, saving, the last words."""
DATA_FACTOR = 3
"""A reader retries by itself: it gets longer."""
ANSWER_S = 2.0
"""A rank that says nothing for this long after it was asked holds its interpreter, or the kernel holds it."""
_LONG = frozenset({Phase.STARTING, Phase.LOADING, Phase.CHECKPOINT, Phase.FINISHING})


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rank may be silent, by phase.

    limit = hang_timeout, or max(10 s, 20 * median step); three times that for data; at least 10 min for phases without
    a usual duration, and for all of them until steps are known.
    """

    hang_timeout_s: float | None = None
    """As the run file has it; None is automatic."""

    def of_step(self, step_times_s: Sequence[float]) -> float:
        """Of forward, backward, optimizer and collectives."""
        if self.hang_timeout_s is not None:
            return self.hang_timeout_s
        return max(FLOOR_S, STEPS * median(step_times_s)) if step_times_s else FLOOR_S

    def of(self, phase: Phase, step_times_s: Sequence[float]) -> float:
        """Of any phase."""
        limit = self.of_step(step_times_s)
        if phase in _LONG or not step_times_s:
            return max(LONG_S, 10 * limit)
        return DATA_FACTOR * limit if phase is Phase.DATA else limit


@dataclass(frozen=True, slots=True)
class Sighting:
    """One rank as its node agent sees it."""

    rank: int
    beat: Beat
    silent_s: float
    """Since its last mark."""
    limit_s: float
    """How long that may be."""
    stop_limit_s: float
    """How long that may be for a process that does not run at all."""
    state: str = "R"
    """Of its process, as /proc has it: T is stopped, D uninterruptible."""
    asked_s: float = 0.0
    """Since it was asked what it waits for; 0 if nobody has."""
    waits_for: str | None = None
    """A collective, a receive ...; empty if it waits for no other rank, None if it has not answered."""
    where: str = ""
    """Innermost line of its main thread."""

    @property
    def is_stopped(self) -> bool:
        """By a signal."""
        return self.state == "T"

    @property
    def is_overdue(self) -> bool:
        """Silent for too long."""
        return self.silent_s > (self.stop_limit_s if self.is_stopped else self.limit_s)

    @property
    def is_still_to_answer(self) -> bool:
        """Asked a moment ago, or not yet."""
        return not self.is_stopped and self.waits_for is None and self.asked_s < ANSWER_S


@dataclass(frozen=True, slots=True)
class Hang:
    """A verdict."""

    culprits: tuple[Sighting, ...]
    """Those that stand still by themselves; all, where they wait for each other."""
    victims: tuple[Sighting, ...]

    @property
    def first(self) -> Sighting:
        """The culprit that is named in the record."""
        return self.culprits[0]

    @property
    def is_deadlock(self) -> bool:
        """Nobody stands still by itself."""
        return all(culprit.waits_for for culprit in self.culprits)

    def message(self) -> str:
        """One sentence: who, since when, where, in what, and who waits for it."""
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
        return f"rank {first.rank}{others} {_standing(first)} for {after} in {place}{waiting}"

    def hint(self, log: str) -> str:
        """What to do about it."""
        if self.first.is_stopped:
            return f"something sent process SIGSTOP; a debugger, a job control or a quota? see {log}"
        if self.is_deadlock and len({culprit.waits_for for culprit in self.culprits}) > 1:
            return f"the ranks disagree on what comes next; what rank {self.first.rank} was doing is in {log}"
        limit = format_duration(self.first.limit_s)
        return f"its stack is in {log}; if it may be silent for more than {limit}, raise `recover.hang_timeout`"


def _standing(sighting: Sighting) -> str:
    if sighting.is_stopped:
        return "was stopped by a signal"
    if sighting.state == "D":
        return "was held by the kernel in I/O (state D)"
    if sighting.waits_for is None:
        return "did not answer, holding its interpreter,"
    return f"stood still at {sighting.where}" if sighting.where else "stood still"


def _ranks(sightings: Sequence[Sighting]) -> str:
    numbers = sorted(sighting.rank for sighting in sightings)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return (
        f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) < 6 else f"{len(numbers)} ranks"
    )


def judge(sightings: Sequence[Sighting]) -> Hang | None:
    """The verdict on all ranks of the job; None while somebody may still move.

    A stopped rank is enough. Otherwise all must have answered, or have failed to; then those that do not wait for
    others are the culprits, and one of them must be overdue for what it is doing. Where all wait, all must be overdue.
    """
    if not any(sighting.is_overdue for sighting in sightings):
        return None
    stopped = [sighting for sighting in sightings if sighting.is_stopped and sighting.is_overdue]
    if stopped:
        return _verdict(stopped, sightings)
    if any(sighting.is_still_to_answer for sighting in sightings):
        return None
    culprits = [sighting for sighting in sightings if not sighting.waits_for]
    if culprits:
        return _verdict(culprits, sightings) if any(culprit.is_overdue for culprit in culprits) else None
    return _verdict(sightings, sightings) if all(sighting.is_overdue for sighting in sightings) else None


def _verdict(culprits: Sequence[Sighting], sightings: Sequence[Sighting]) -> Hang:
    ordered = sorted(culprits, key=lambda culprit: (not culprit.is_overdue, culprit.rank))
    return Hang(tuple(ordered), tuple(sighting for sighting in sightings if sighting not in culprits))
