"""The time ledger: where every second of the wall clock went.

    wall clock = start + data + compute + communication + optimizer + checkpoint + evaluation
               + callback + restart + lost + idle + other

Every second belongs to one category alone; what no category names is `other`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainworks.config.spec import Frozen
from trainworks.record.history import History, RecordedLaunch
from trainworks.record.metric_columns import Floats, Mask
from trainworks.record.metrics import STEP_PARTS

STEP_TERMS = tuple(part.removesuffix("_s") for part in STEP_PARTS if part != "other_s")


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
    evaluation_s: float = 0.0
    """Evaluation on held-out data."""
    callback_s: float = 0.0
    """The user's callbacks after the steps, and after the last one."""
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

        Checkpoint stalls, evaluation, callbacks, start, restart and lost steps are badput; idle is outside, because
        nothing is held then.
        Source: glossary, "runtime goodput" (Google's ML goodput: productive time over time holding the accelerators).
        """
        productive = self.compute_s + self.communication_s + self.optimizer_s + self.data_s
        return productive / self.held_s if self.held_s > 0 else None

    def by_category(self) -> dict[str, float]:
        """Seconds of each category by its name without the unit, productive ones first.

        Evaluation and callbacks appear if there were any.
        """
        spent = {name.removesuffix("_s"): float(getattr(self, name)) for name in type(self).model_fields}
        return {name: each for name, each in spent.items() if each or name not in ("evaluation", "callback")}


def build_ledger(history: History) -> Ledger:
    """Put every second between the first launch and the end into one category.

    The interval of a row of n steps is [t - n step_s, t], cut where clocks make it overlap the one before; its terms
    are scaled to what is left of it. Without any step a launch is all `start`, up to its first failure, and `restart`
    after it.
    """
    spent = dict.fromkeys((name.removesuffix("_s") for name in Ledger.model_fields), 0.0)
    spent["idle"] = history.idle_s
    for launch in history.launches:
        _spend_launch(spent, launch)
    return Ledger.model_validate({f"{category}_s": float(seconds) for category, seconds in spent.items()})


def first_start_s(history: History) -> float:
    """Time from the first launch of a run to its first step, which the run pays once, however long it is."""
    return build_ledger(History(launches=history.launches[:1])).start_s


def _spend_launch(spent: dict[str, float], launch: RecordedLaunch) -> None:
    """Spend its steps, and the gaps before, between and after them."""
    num_steps = np.maximum(launch.steps.num_steps, 1.0)
    done_at, step_s = launch.steps["t"], np.fmax(launch.steps["step_s"], 0.0) * num_steps
    free_from = np.maximum.accumulate(np.concatenate([[launch.start_at], done_at]))
    begin = np.maximum(free_from[:-1], done_at - step_s)
    _spend_steps(spent, launch, step_s, free_from[1:] - begin, num_steps)
    gap_end = np.append(begin, launch.end_at)
    failures = [float(event["t"]) for event in launch.events if event["kind"] in ("failure", "rollback")]
    failed_at = next((t for t in failures if free_from[0] <= t <= gap_end[0]), gap_end[0])
    spent["start"] += failed_at - free_from[0]
    spent["restart"] += gap_end[0] - failed_at
    seconds, is_restart = (gap_end - free_from)[1:], _is_restart(launch, failures, free_from[1:], gap_end[1:])
    spent["restart"] += seconds[is_restart].sum()
    after_last_s = seconds[-1] if len(seconds) and not is_restart[-1] else 0.0
    called_s = min(after_last_s, sum(launch.last_callbacks_s))
    spent["callback"] += called_s
    spent["other"] += seconds[~is_restart].sum() - called_s


def _is_restart(launch: RecordedLaunch, failures: Sequence[float], begin: Floats, end: Floats) -> Mask:
    """True for the gaps after a step that have a failure in them, or another attempt after them."""
    seen = np.sort(failures)
    has_failed: Mask = np.searchsorted(seen, end, side="right") > np.searchsorted(seen, begin, side="left")
    attempt = launch.steps["attempt"]
    is_followed: Mask = np.append(attempt[1:], attempt[-1:]) != attempt
    return has_failed | is_followed


def _spend_steps(
    spent: dict[str, float], launch: RecordedLaunch, step_s: Floats, seconds: Floats, num_steps: Floats
) -> None:
    """Divide the seconds of every row among its terms, which are those of one of its steps."""
    is_lost = launch.lost | launch.steps.is_fault()
    spent["lost"] += seconds[is_lost].sum()
    terms = {term: np.fmax(launch.steps[f"{term}_s"], 0.0) * num_steps for term in STEP_TERMS}
    named_s = np.sum(list(terms.values()), axis=0)
    whole_s = np.maximum(step_s, named_s)
    scale = np.divide(seconds, whole_s, out=np.zeros_like(seconds), where=~is_lost & (whole_s > 0))
    for term, values in terms.items():
        spent[term] += (values * scale).sum()
    spent["other"] += (seconds - named_s * scale)[~is_lost].sum()
