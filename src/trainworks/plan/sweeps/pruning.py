"""Rules that end trials of a sweep early: the median rule, and successive halving without barriers.

A trial reports (step, cost) as it goes; a lower cost is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

Pruning = Literal["median", "asha"]
Reports = Sequence[tuple[int, float]]
"""Steps, ascending, and the cost at each."""

_FEWEST_OTHERS = 3
"""Trials that must have come as far before the median says anything."""
_WARMUP_SHARE = 0.2
"""Share of the steps in which the median rule stops nothing: costs of the first steps say little about the end."""
ETA = 3
"""ASHA: a trial continues if it is among the best third that came so far."""
_SMALLEST_SHARE = 1 / 27
"""ASHA: first rung, as a share of the steps."""


def should_stop(rule: Pruning, own: Reports, others: Sequence[Reports], *, num_steps: int) -> bool:
    """Whether a running trial should end now.

    Args:
        rule: of the sweep.
        own: reports of the trial.
        others: reports of all other trials, running, ended or stopped.
        num_steps: of a whole trial.
    """
    if not own:
        return False
    if not math.isfinite(own[-1][1]):
        return True
    return _is_below_median(own, others, num_steps) if rule == "median" else _fails_rung(own, others, num_steps)


def _is_below_median(own: Reports, others: Sequence[Reports], num_steps: int) -> bool:
    """Its best cost so far is worse than the median of the others' running means up to the same step.

    Source: the median stopping rule of Vizier (Golovin et al. 2017, section 3.2.2).
    """
    step = own[-1][0]
    if step < _WARMUP_SHARE * num_steps:
        return False
    as_far = [each for each in others if each and each[-1][0] >= step]
    comparable = [[cost for at, cost in each if at <= step and math.isfinite(cost)] for each in as_far]
    means = [sum(costs) / len(costs) for costs in comparable if costs]
    if len(means) < _FEWEST_OTHERS:
        return False
    best = min((cost for _, cost in own if math.isfinite(cost)), default=math.inf)
    return best > median(means)


def _fails_rung(own: Reports, others: Sequence[Reports], num_steps: int) -> bool:
    """At some rung it was not among the best 1/eta of the trials that have reached it.

    Source: ASHA (Li et al. 2020), in the variant that stops trials instead of promoting them; rungs are at
    num_steps / 27, / 9, / 3.
    """
    for rung in rungs(num_steps):
        mine = _cost_at(own, rung)
        if mine is None:
            return False
        reached = [cost for each in others if (cost := _cost_at(each, rung)) is not None]
        allowed = max(1, math.ceil((len(reached) + 1) / ETA))
        better = sum(cost < mine for cost in reached)
        if len(reached) + 1 >= ETA and better >= allowed:
            return True
    return False


def rungs(num_steps: int) -> list[int]:
    """Steps at which ASHA compares trials, ascending.

    >>> rungs(270)
    [10, 30, 90]
    """
    return sorted({max(1, round(num_steps * _SMALLEST_SHARE * ETA**power)) for power in range(3)})


def _cost_at(reports: Reports, rung: int) -> float | None:
    """The cost at the first report from the rung on; None before it, infinite if it is not finite."""
    cost = next((cost for step, cost in reports if step >= rung), None)
    return cost if cost is None or math.isfinite(cost) else math.inf


def smoothed(steps: Sequence[int], losses: Sequence[float], num_steps: int) -> list[tuple[int, float]]:
    """Reports from training losses: means over windows of a twentieth of the steps; a window ends with a loss.

    Args:
        steps: whose losses are known, ascending.
        losses: of these steps.
        num_steps: of a whole trial.

    >>> smoothed([1, 2, 3, 4, 5], [4.0, 2.0, 3.0, 1.0, 9.0], 40)
    [(2, 3.0), (4, 2.0)]
    """
    window, reports, first, begun = max(1, num_steps // 20), [], 0, steps[0] - 1 if steps else 0
    for index, step in enumerate(steps):
        if step - begun >= window:
            reports.append((step, sum(losses[first : index + 1]) / (index + 1 - first)))
            first, begun = index + 1, step
    return reports
