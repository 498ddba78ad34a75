"""Accuracy of predictions: statistics of pairs of a predicted and a measured figure, without tables or files.

Symbols: p predicted, m measured, r = p / m - 1 the relative error of one row.

    MAPE      mean of |r|                       bias      mean of r
    median    of |r|                            p90       nine of ten rows have a smaller |r|
    coverage  share of rows whose m is in the interval that was predicted for it

Sources of different sizes count the same: rows are averaged within a source first (the macro average).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from trainworks.plan.layouts import Array
from trainworks.plan.step_time import StepTimes
from trainworks.plan.uncertainty import PRIOR, Belief, calibrated_s, interval_s, learn

__all__ = [
    "Errors",
    "Rejections",
    "calibrated_predictions",
    "errors_of",
    "learned_positions",
    "macro_average",
    "rank_correlation",
    "regret",
    "rejections_of",
    "select_times",
]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of n rows, or of n sources in a macro average; shares, not per cent."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float
    coverage: float | None = None
    """Share of intervals that contain the measurement; None without intervals."""


@dataclass(frozen=True, slots=True)
class Rejections:
    """Predictions for runs that fitted into memory, and for runs that did not."""

    out_of_memory: int
    out_of_memory_rejected: int
    fitting: int
    fitting_rejected: int


def errors_of(
    predicted: ArrayLike, measured: ArrayLike, *, low: ArrayLike | None = None, high: ArrayLike | None = None
) -> Errors | None:
    """Statistics of n rows; None of no row.

    Args:
        predicted: p, shape [n].
        measured: m, shape [n], above zero.
        low: lower ends of the intervals, shape [n]; with `high`.
        high: upper ends.

    >>> errors_of([2.0, 4.0], [1.0, 2.0]).bias
    1.0
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if not len(m):
        return None
    relative = p / m - 1
    size = np.abs(relative)
    inside = None if low is None or high is None else float(np.mean((np.asarray(low) <= m) & (m <= np.asarray(high))))
    return Errors(
        n=len(m),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(relative.mean()),
        coverage=inside,
    )


def macro_average(sources: Iterable[Errors | None]) -> Errors | None:
    """Mean of every statistic over the sources that have any row; `n` counts the sources. None of none."""
    known = [source for source in sources if source is not None]
    if not known:
        return None
    covered = [source.coverage for source in known if source.coverage is not None]
    means = {name: _mean([getattr(source, name) for source in known]) for name in ("mape", "median", "p90", "bias")}
    return Errors(n=len(known), **means, coverage=_mean(covered) if covered else None)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def rank_correlation(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Spearman's: the correlation of the ranks, ties with their mean rank. 1 is the same order, -1 the opposite; 0
    where all predictions, or all measurements, are the same.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 90.0])
    1.0
    """
    p, m = _ranks(np.asarray(predicted, dtype=np.float64)), _ranks(np.asarray(measured, dtype=np.float64))
    p, m = p - p.mean(), m - m.mean()
    spread = float(np.sqrt((p @ p) * (m @ m)))
    return round(float(p @ m) / spread, 12) if spread else 0.0


def _ranks(values: Array) -> Array:
    less = (values[:, None] > values[None, :]).sum(axis=1)
    same = (values[:, None] == values[None, :]).sum(axis=1)
    ranks: Array = less + (same - 1) / 2.0
    return ranks


def regret(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Cost of following the prediction.

    Time of the layout predicted to be fastest over the time of the fastest one, minus one; the mean if several are
    predicted equally fast.

    >>> regret([1.0, 2.0], [11.0, 10.0])
    0.1
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    return round(float(m[p == p.min()].mean() / m.min() - 1), 12)


def rejections_of(rejected: Sequence[bool], out_of_memory: Sequence[bool]) -> Rejections:
    """Counts of what the planner rejected among runs that ran out of memory, and among those that fitted."""
    pairs = list(zip(rejected, out_of_memory, strict=True))
    return Rejections(
        out_of_memory=sum(out for _, out in pairs),
        out_of_memory_rejected=sum(no and out for no, out in pairs),
        fitting=sum(not out for _, out in pairs),
        fitting_rejected=sum(no and not out for no, out in pairs),
    )


def calibrated_predictions(
    times: StepTimes, measured_s: Sequence[float], *, learned: int, prior: Belief = PRIOR
) -> tuple[Array, Array, Array]:
    """Each row of a cluster, predicted after learning from `learned` others of it, with the ends of its interval.

    Every row is left out once. What is learned are the rows of `learned_positions` among the others, or all of them
    where they are fewer; a row without others is predicted blind.

    Args:
        times: predictions of the n rows, without any belief.
        measured_s: what they took, length n.
        learned: rows to learn from.
        prior: what is believed before.
    """
    predicted, low, high = (np.empty(len(measured_s)) for _ in range(3))
    for row in range(len(measured_s)):
        belief = _belief_without(row, times, measured_s, learned, prior)
        one = select_times(times, [row])
        predicted[row] = calibrated_s(one, belief)[0]
        low[row], high[row] = (float(end[0]) for end in interval_s(one, belief))
    return predicted, low, high


def _belief_without(row: int, times: StepTimes, measured_s: Sequence[float], learned: int, prior: Belief) -> Belief:
    others = [other for other in range(len(measured_s)) if other != row]
    chosen = [others[position] for position in learned_positions(len(others), learned)]
    return learn(select_times(times, chosen), [measured_s[other] for other in chosen], prior)


def learned_positions(n: int, learned: int) -> list[int]:
    """Positions of the rows to learn from, spread evenly over their order.

    >>> learned_positions(9, 3), learned_positions(2, 3)
    ([1, 4, 7], [0, 1])
    """
    if learned >= n:
        return list(range(n))
    return [(2 * part + 1) * n // (2 * learned) for part in range(learned)]


def select_times(times: StepTimes, positions: Sequence[int]) -> StepTimes:
    """The step times of some layouts."""
    return StepTimes(**{field.name: getattr(times, field.name)[list(positions)] for field in fields(times)})
