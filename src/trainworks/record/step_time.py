"""Time of one optimizer step: predicted by term, or measured by group."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeVar

from trainworks.config.spec import Spec

LAYOUT_DEVIATION = 0.037
"""Standard deviation of the errors that a layout has for itself. Set to: 25 published jobs that were timed in at least
four layouts; the one that was predicted fastest was 2.0 % (standard error 1.5 %) slower than predicted, beyond its
job's mean; this is the deviation for which `plan.uncertainty.selection_bias` says the same. Errors within a job differ
by 5.4 % (median), but similar layouts share most of theirs."""
TIE = math.exp(NormalDist().inv_cdf(0.9) * math.sqrt(2.0) * LAYOUT_DEVIATION)
"""Ratio of two predicted step times of one job up to which the 80 % interval of their ratio includes 1: errors of
rates and software are the same for both, and each has the deviation d for itself, so ln TIE = z80 sqrt(2) d."""


class StepTimeGroups(Spec):
    """Time of one optimizer step, as far as a worker tells its parts apart; the parts add up.

    A trial measures these groups, and a plan of an older version has no finer ones.
    """

    compute_s: float
    """Time of forward and backward."""
    communication_s: float
    """Exposed communication: the wait after the compute of the step."""
    optimizer_s: float
    data_s: float

    @property
    def total_s(self) -> float:
        """Sum of the groups."""
        return self.compute_s + self.communication_s + self.optimizer_s + self.data_s

    @property
    def groups(self) -> StepTimeGroups:
        """These groups."""
        return self


class StepTimeTerms(Spec):
    """Time of one optimizer step by term, under the names of `plan.job.StepTimes`; the terms add up."""

    forward_s: float
    backward_s: float
    recompute_s: float
    head_s: float
    tp_s: float
    cp_s: float
    ep_s: float
    offload_s: float
    pp_s: float
    bubble_s: float
    dp_s: float
    optimizer_s: float
    host_s: float
    straggle_s: float

    @property
    def total_s(self) -> float:
        """Sum of the terms."""
        return float(sum(self.model_dump().values()))

    @property
    def groups(self) -> StepTimeGroups:
        """The terms in the groups that a worker measures."""
        compute_s = self.forward_s + self.backward_s + self.recompute_s + self.head_s + self.bubble_s
        waits_s = self.tp_s + self.cp_s + self.ep_s + self.offload_s + self.pp_s + self.dp_s + self.straggle_s
        return StepTimeGroups(
            compute_s=compute_s, communication_s=waits_s, optimizer_s=self.optimizer_s, data_s=self.host_s
        )


StepTime = TypeVar("StepTime", bound=Spec)


def scaled(step_time: StepTime, factor: float) -> StepTime:
    """The step time with all of its parts longer by a factor."""
    return type(step_time)(**{name: seconds * factor for name, seconds in step_time.model_dump().items()})


class ExpectedStep(Spec):
    """Uncertainty of a predicted step time."""

    low_s: float
    high_s: float
    """Ends of the 80 % interval."""
    by_rate_s: dict[str, float]
    """The step time by physical rate, before learning; the names are those of `plan.coefficients.Slowdowns`."""
    learned_from: int
    """Finished runs that the prediction has learned from."""
