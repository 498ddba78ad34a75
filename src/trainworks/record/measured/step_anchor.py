"""The step of a plan, anchored on the first quiet steps of the run: how they are found, and the file that keeps it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist, median

from pydantic import ValidationError

from trainworks.config.layout import ResolvedLayout
from trainworks.config.spec import Spec
from trainworks.files import write_atomic
from trainworks.record.metrics import MOST_WARMUP_STEPS, MetricsRow
from trainworks.units import format_duration

WINDOW_STEPS = 15
"""Steps of a window at least: the first one ends at step 20."""
WINDOW_S = 1.0
"""Time of a window at least."""
QUIET_SPREAD = 0.1
"""Largest unrest of a quiet window: an assumption."""
_NARROWEST = 0.05
"""Least half of an interval, as a share of the step: a machine drifts by more than the scatter of one window shows."""
_TO_DEVIATION = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
_Z80 = NormalDist().inv_cdf(0.9)
_AWAITED_STEPS = 100
"""Longest interval of evaluations whose first one is awaited."""


class AnchoredStep(Spec):
    """Prediction of a step from a quiet window of the run itself.

    It counts the parts that a plan has: no evaluations, saves, callbacks and logging.
    """

    first_step: int
    step: int
    """First and last step of the window."""
    step_s: float
    """Median of the window."""
    low_s: float
    high_s: float
    """Ends of the 80 % interval of a step: median * exp(-+ max(0.05, 1.2816 * unrest))."""
    unrest: float
    """Largest of the scatter, the drift and the outliers of the window; see `unrest_of`."""


class StepAnchor(Spec):
    """The content of anchor.json: the plan of a run, anchored on its first quiet steps, or the reason why it is not.

    The plan in resolved.json stays as it was: alarms compare with the anchored step, the verdict on the plan does not.
    """

    format_version: int = 1
    layout: ResolvedLayout
    """Layout that it holds for; a run on another layout is anchored anew."""
    planned_s: float
    """Step of the plan for this layout."""
    found: AnchoredStep | None = None
    """None where no window was quiet so far."""
    reason: str = ""
    """Why an anchored step is missing."""


def read_anchor(anchor_file: Path) -> StepAnchor | None:
    """Read anchor.json; None if it is missing or of another version."""
    try:
        return StepAnchor.model_validate_json(anchor_file.read_bytes())
    except (OSError, ValidationError):
        return None


def write_anchor(anchor_file: Path, anchor: StepAnchor) -> None:
    """Replace anchor.json, durably: after a power cut it is complete, or as it was."""
    write_atomic(anchor_file, anchor.model_dump_json(indent=2) + "\n")


def log_spread(seconds: Sequence[float], middle_s: float) -> float:
    """Relative scatter of step times: 1.4826 * median(abs(log(t / middle))), that of a normal distribution."""
    return _TO_DEVIATION * median(abs(math.log(max(each, 1e-9) / max(middle_s, 1e-9))) for each in seconds)


def unrest_of(seconds: Sequence[float]) -> tuple[float, str]:
    """How far the times of a window are from those of a steady run, as a relative difference, and in which way.

    The largest of three: the scatter of single steps, the drift from the first half to the second, and the outliers,
    which move the mean away from the median.

    >>> unrest_of([0.1] * 8 + [0.2] * 8)
    (0.693..., 'drift')
    """
    middle_s, half = median(seconds), len(seconds) // 2
    found = {
        "scatter": log_spread(seconds, middle_s),
        "drift": abs(math.log(median(seconds[half:]) / median(seconds[:half]))),
        "outliers": abs(math.log(sum(seconds) / len(seconds) / middle_s)),
    }
    way = max(found, key=found.__getitem__)
    return found[way], way


class AnchorSearch:
    """Looks for the first quiet window among the steps of one start of the ranks.

    The first five steps are left out, and all up to the first evaluation where that is due within 100 steps. A window
    has 15 steps at least and lasts a second at least; one with more unrest than 10 % is dropped as a whole. `attempt`
    is that start, and `evaluates_every` the steps between two evaluations; None for a run that does not evaluate.
    """

    def __init__(self, attempt: int, evaluates_every: int | None) -> None:
        self.attempt = attempt
        self.found: AnchoredStep | None = None
        self.num_windows = 0
        """Windows without the quiet one."""
        self._left_out = MOST_WARMUP_STEPS
        self._awaits_evaluation = evaluates_every is not None and evaluates_every <= _AWAITED_STEPS
        self._window: list[tuple[int, float]] = []
        self._quietest = (math.inf, "")

    def add(self, row: MetricsRow) -> None:
        """Take the next step; nothing changes once a window was quiet."""
        if self.found is not None:
            return
        if self._left_out:
            self._left_out -= 1
        elif not self._awaits_evaluation:
            parts_s = row["compute_s"] + row.get("data_s", 0.0) + row.get("communication_s", 0.0)
            parts_s += row.get("optimizer_s", 0.0)
            self._window.append((row["step"], max(parts_s, 1e-9)))
        self._awaits_evaluation = self._awaits_evaluation and "evaluation" not in row
        if len(self._window) >= WINDOW_STEPS and sum(seconds for _, seconds in self._window) >= WINDOW_S:
            self._judge()
            self._window = []

    def _judge(self) -> None:
        (first, _), (last, _) = self._window[0], self._window[-1]
        seconds = [each for _, each in self._window]
        unrest, way = unrest_of(seconds)
        if unrest > QUIET_SPREAD:
            self.num_windows += 1
            self._quietest = min(self._quietest, (unrest, f"steps {first:,} to {last:,} have {way} of {unrest:.0%}"))
            return
        step_s, width = median(seconds), math.exp(max(_NARROWEST, _Z80 * unrest))
        self.found = AnchoredStep(
            first_step=first, step=last, step_s=step_s, low_s=step_s / width, high_s=step_s * width, unrest=unrest
        )

    @property
    def reason(self) -> str:
        """Why an anchored step is missing."""
        if not self.num_windows:
            return f"a window needs {WINDOW_STEPS} steps and {format_duration(WINDOW_S)} after the first steps"
        windows = "1 window" if self.num_windows == 1 else f"{self.num_windows:,} windows"
        return f"{windows} without a quiet one: at best {self._quietest[1]}, and {QUIET_SPREAD:.0%} is the limit"
