"""Time between checkpoints of `checkpoint.every: auto`: planned first, then from what saving costs in this run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from trainworks.config.quantities import CheckpointInterval
from trainworks.record.events.training import CheckpointIntervalEvent
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import daly_interval_s
from trainworks.worker.checkpoint.checkpointer import Checkpointer

_SAVES = 5
"""The last saves count."""
_WORTH = 1.2
"""Least factor between an interval and the one that replaces it."""


@dataclass(eq=False)
class MeasuredInterval:
    """The interval, corrected after each save by Daly's formula with the median of the last five."""

    seconds: float
    mttf_s: float
    step_s: float
    note: Callable[[CheckpointIntervalEvent], None]
    """Takes each change."""
    _saves: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAVES), init=False)

    def take(self, stall_s: float, write_s: float) -> None:
        """Correct the interval by the cost of a save, if that changes it by a fifth or more."""
        self._saves.append((stall_s, write_s))
        stall, write = (median(costs) for costs in zip(*self._saves, strict=True))
        after = daly_interval_s(stall_s=stall, mttf_s=self.mttf_s, write_s=write, shortest_s=self.step_s)
        if max(after, self.seconds) < _WORTH * min(after, self.seconds):
            return
        change = CheckpointIntervalEvent(
            kind="checkpoint_interval",
            before_s=self.seconds,
            after_s=after,
            stall_s=stall,
            write_s=write,
            mttf_s=self.mttf_s,
        )
        self.seconds = after
        self.note(change)


def measured_interval(
    resolved: ResolvedRun, plan: Plan, run_dir: RunDir, checkpointer: Checkpointer
) -> MeasuredInterval | None:
    """Rank 0's interval; None if steps count. That of `auto` is corrected by the saves, one that is written stays."""
    if plan.checkpoint_every_s is None:
        return None

    mttf_s = plan.mttf_s or math.inf
    interval = MeasuredInterval(
        plan.checkpoint_every_s, mttf_s=mttf_s, step_s=plan.step_time.total_s, note=run_dir.note
    )
    if plan.mttf_s is not None and resolved.run_file.checkpoint.every == CheckpointInterval():
        checkpointer.measured = interval.take
    return interval
