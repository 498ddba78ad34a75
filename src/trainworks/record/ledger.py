"""The time ledger: where every second of the wall clock went.

    wall clock = start + data + compute + communication + optimizer + checkpoint + restart + lost + idle + other

Every second belongs to one category alone; what no category names is `other`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainworks.config.spec import Frozen
from trainworks.record.faults import is_fault
from trainworks.record.history import History, RecordedLaunch, RecordedStep
from trainworks.record.metrics import MetricsRow

STEP_TERMS = ("compute", "communication", "optimizer", "data", "checkpoint")


class Ledger(Frozen):
    """Seconds by category; they add up to the wall clock. Step terms are those of effective steps alone."""

    compute_s: float
    """Forward and backward."""
    communication_s: float
    """Exposed: what steps waited for after their own compute."""
    optimizer_s: float
    data_s: float
    """What steps waited for their batch."""
    checkpoint_s: float
    """What steps stood still for a checkpoint."""
    start_s: float
    """Time from each launch to its first step."""
    restart_s: float
    """Time from the last recorded step before a failure or rollback to the next one, or to the end of the run."""
    lost_s: float
    """Steps whose work was thrown away, in full: skipped, or undone by a restart or rollback from before them."""
    idle_s: float
    """Time from a stop to the next launch; no accelerator is held."""
    other_s: float
    """Logging, the time between steps, and all other time."""

    @property
    def wall_clock_s(self) -> float:
        """Sum of the categories: from the first launch to the end of the run."""
        return math.fsum(self.by_category().values())

    @property
    def held_s(self) -> float:
        """Time that the accelerators were held: the wall clock without idle."""
        return self.wall_clock_s - self.idle_s

    @property
    def runtime_goodput(self) -> float | None:
        """Productive time over time holding the accelerators, 0-1; None if none were held.

            runtime_goodput = (compute + communication + optimizer + data) / (wall clock - idle)

        Checkpoint stalls, start, restart and lost steps are badput; idle is outside, because nothing is held then.
        Source: glossary, "runtime goodput" (Google's ML goodput: productive time over time holding the accelerators).
        """
        productive = self.compute_s + self.communication_s + self.optimizer_s + self.data_s
        return productive / self.held_s if self.held_s > 0 else None

    def by_category(self) -> dict[str, float]:
        """Seconds of each category, its name without the unit, productive ones first."""
        return {name.removesuffix("_s"): float(getattr(self, name)) for name in type(self).model_fields}


def build_ledger(history: History) -> Ledger:
    """Put every second between the first launch and the end into one category.

    A step's interval is [t - step_s, t], cut where clocks make it overlap the one before; its terms are scaled to
    what is left of it. Without any step a launch is all `start`, up to its first failure, and `restart` after it.
    """
    spent = dict.fromkeys((name.removesuffix("_s") for name in Ledger.model_fields), 0.0)
    spent["idle"] = history.idle_s
    for launch in history.launches:
        _spend_launch(spent, launch)
    return Ledger.model_validate({f"{category}_s": seconds for category, seconds in spent.items()})


def _spend_launch(spent: dict[str, float], launch: RecordedLaunch) -> None:
    cursor = launch.start_at
    before: RecordedStep | None = None
    for step in launch.steps:
        begin = max(cursor, step.row["t"] - step.row["step_s"])
        _spend_gap(spent, launch, cursor, begin, before=before, after=step)
        cursor = max(begin, step.row["t"])
        _spend_step(spent, step, cursor - begin)
        before = step
    _spend_gap(spent, launch, cursor, launch.end_at, before=before, after=None)


def _spend_gap(
    spent: dict[str, float],
    launch: RecordedLaunch,
    begin: float,
    end: float,
    *,
    before: RecordedStep | None,
    after: RecordedStep | None,
) -> None:
    failures = [float(event["t"]) for event in launch.events if event.get("kind") in ("failure", "rollback")]
    failed_at = next((t for t in failures if begin <= t <= end), None)
    new_attempt = before and after and before.row["attempt"] != after.row["attempt"]
    if before is None:
        spent["start"] += (end if failed_at is None else failed_at) - begin
        spent["restart"] += 0.0 if failed_at is None else end - failed_at
    elif new_attempt or failed_at is not None:
        spent["restart"] += end - begin
    else:
        spent["other"] += end - begin


def _spend_step(spent: dict[str, float], step: RecordedStep, seconds: float) -> None:
    if step.lost or is_fault(step.row):
        spent["lost"] += seconds
        return
    terms = {term: max(0.0, float(_term(step.row, term))) for term in STEP_TERMS}
    whole = max(step.row["step_s"], sum(terms.values()))
    scale = seconds / whole if whole > 0 else 0.0
    for term, value in terms.items():
        spent[term] += value * scale
    spent["other"] += seconds - sum(terms.values()) * scale


def _term(row: MetricsRow, term: str) -> float:
    values: Mapping[str, object] = row
    value = values[f"{term}_s"]
    return float(value) if isinstance(value, int | float) else 0.0
