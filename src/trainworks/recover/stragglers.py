"""Finds the node that holds a job up, from what rank 0 writes about the slowest rank of every logging interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trainworks.record.metrics import MetricsRow
from trainworks.units import format_duration

INTERVALS = 5
"""Logging intervals in a row in which the same rank must be the slowest."""
SHARE = 0.2
"""Least share of a step that a straggler costs: below it, a restart seldom pays. An assumption."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others wait for."""

    rank: int
    node: int
    extra_s: float
    """Time per step beyond the median of the other ranks."""
    step_s: float
    """Median step."""
    usual_s: float
    """The step that it is held against: the anchored one, or else the median."""

    @property
    def message(self) -> str:
        """The rank, and what it costs."""
        share = self.extra_s / self.usual_s
        return f"rank {self.rank} works {format_duration(self.extra_s)} longer than its peers, {share:.0%} of a step"


def find_straggler(
    rows: Sequence[MetricsRow], ranks_per_node: int, anchored_s: float | None = None
) -> Straggler | None:
    """The rank that was the slowest in each of the last intervals, by a share of the step that matters.

    Two ranks that take turns are noise and not a straggler: one rank must be slowest in all of the intervals, and its
    median excess be at least SHARE of the anchored step, or of the median step without one. The rows are those of one
    attempt, in order.
    """
    ends = [row for row in rows if "slowest" in row][-INTERVALS:]
    if len(ends) < INTERVALS or len({row["slowest"]["rank"] for row in ends}) > 1:
        return None
    step_s = median(row["step_s"] for row in ends)
    extra_s = median(row["slowest"]["extra_s"] for row in ends)
    rank = ends[-1]["slowest"]["rank"]
    usual_s = anchored_s or step_s
    return Straggler(rank, rank // ranks_per_node, extra_s, step_s, usual_s) if extra_s >= SHARE * usual_s else None
