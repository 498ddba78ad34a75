"""Time between checkpoints of `checkpoint.every: auto`: planned first, then from what saving costs in this run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from trainworks.config.quantities import CheckpointInterval
from trainworks.record.events import append_event
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.interval import daly_interval_s
from trainworks.worker.checkpoint.checkpointer import Checkpointer

_SAVES = 5
"""The last saves count."""
_WORTH = 1.2
"""Least factor between an interval and the one that replaces it."""


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """A corrected interval, and the costs behind it."""

    before_s: float
    after_s: float
    stall_s: float
    """Training stops for this time per checkpoint."""
    write_s: float
    """Time from then until the checkpoint is complete."""
    mttf_s: float
    """Mean time between failures of the job."""


class MeasuredInterval:
    """The interval, corrected after each save by Daly's formula with the median of the last five.

    Args:
        planned_s: the interval of the plan.
        mttf_s: of the job, as planned.
        step_s: the shortest interval.
        note: takes each change, to be recorded.
    """

    def __init__(
        self, planned_s: float, *, mttf_s: float, step_s: float, note: Callable[[IntervalChange], None]
    ) -> None:
        self.seconds = planned_s
        self._mttf_s = mttf_s
        self._step_s = step_s
        self._note = note
        self._saves: deque[tuple[float, float]] = deque(maxlen=_SAVES)

    def take(self, stall_s: float, write_s: float) -> None:
        """Correct the interval by the cost of a save, if that changes it by a fifth or more."""
        self._saves.append((stall_s, write_s))
        stall, write = (median(costs) for costs in zip(*self._saves, strict=True))
        after = daly_interval_s(stall_s=stall, mttf_s=self._mttf_s, write_s=write, shortest_s=self._step_s)
        if max(after, self.seconds) < _WORTH * min(after, self.seconds):
            return
        change = IntervalChange(self.seconds, after, stall, write, self._mttf_s)
        self.seconds = after
        self._note(change)


def measured_interval(
    resolved: ResolvedRun, plan: Plan, run_dir: RunDir, checkpointer: Checkpointer
) -> MeasuredInterval | None:
    """Rank 0's interval; None if steps count. That of `auto` is corrected by the saves, one that is written stays."""
    if plan.checkpoint_every_s is None:
        return None

    def note(change: IntervalChange) -> None:
        append_event(run_dir.events_file, "checkpoint_interval", **asdict(change))

    mttf_s = plan.mttf_s or math.inf
    interval = MeasuredInterval(plan.checkpoint_every_s, mttf_s=mttf_s, step_s=plan.step_time.total_s, note=note)
    if plan.mttf_s is not None and resolved.run_file.checkpoint.every == CheckpointInterval():
        checkpointer.measured = interval.take
    return interval
