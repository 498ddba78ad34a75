"""Accuracy of predictions: statistics of pairs of a predicted and a measured figure, without tables or files.

Symbols: p predicted, m measured, r = p / m - 1 the relative error of one row.

    MAPE      mean of |r|                       bias      mean of r
    median    of |r|                            p90       nine of ten rows have a smaller |r|
    coverage  share of rows whose m is in the interval that was predicted for it

Sources of different sizes count the same: rows are averaged within a source first (the macro average).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from trainworks.plan.layouts import Array
from trainworks.plan.uncertainty import PRIOR, Observation, Prior, believe, interval_s
from trainworks.record.measured.past_run import FinishedRun
from trainworks.results import Result, ResultVerdict

_MOST_OFF, _FEWEST_RUNS = 0.1, 5
"""Median error of plans to rely on, and runs that are needed to say so. Assumed."""
_SHARE_INSIDE, _Z95 = 0.8, 1.645
"""Share of measurements that an interval should contain, and deviations of a sum that 95 of 100 do not fall below.
Count: the quantile of 95 % of the normal distribution."""


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
    means = {
        name: float(np.mean([getattr(source, name) for source in known])) for name in ("mape", "median", "p90", "bias")
    }
    return Errors(n=len(known), **means, coverage=float(np.mean(covered)) if covered else None)


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


def learned_predictions(
    rows: Sequence[Observation], *, learned: int, prior: Prior = PRIOR
) -> tuple[Array, Array, Array]:
    """Each row of a cluster, predicted after learning from `learned` others of it, with the ends of its interval.

    Every row is left out once. What is learned are the rows of `learned_positions` among the others, or all of them
    where they are fewer; a row without others is predicted blind.

    Args:
        rows: n measured rows beside their predictions.
        learned: rows to learn from.
        prior: what is believed before.
    """
    found = np.empty((len(rows), 3))
    for at, row in enumerate(rows):
        others = [*rows[:at], *rows[at + 1 :]]
        chosen = [others[position] for position in learned_positions(len(others), learned)]
        belief = believe(chosen, software=row.software, prior=prior)
        parts = (row.parts_s * belief.factors)[:, None]
        low, high = interval_s(parts, belief)
        found[at] = parts.sum(), low[0], high[0]
    predicted, lows, highs = found.T
    return predicted, lows, highs


def learned_positions(n: int, learned: int) -> list[int]:
    """Positions of the rows to learn from, spread evenly over their order.

    >>> learned_positions(9, 3), learned_positions(2, 3)
    ([1, 4, 7], [0, 1])
    """
    if learned >= n:
        return list(range(n))
    return [(2 * part + 1) * n // (2 * learned) for part in range(learned)]


@dataclass(frozen=True, slots=True)
class TermErrors:
    """One term of the step over n runs, in shares of the measured step m; the parts of all terms add up to the bias.

    Symbols: p_t and m_t the term as planned and as measured.
    """

    n: int
    planned: float
    """Mean of p_t / m."""
    measured: float
    """Mean of m_t / m."""

    @property
    def part(self) -> float:
        """Mean of (p_t - m_t) / m: what the term adds to the bias."""
        return self.planned - self.measured


@dataclass(frozen=True, slots=True)
class AccuracyReport(Result):
    """Finished runs with their predictions, oldest first."""

    runs: list[FinishedRun]
    sources: tuple[str, ...] = ()
    """Stores and folders that they are from; empty for the store of this user."""

    @property
    def verdict(self) -> ResultVerdict | None:
        """Whether the plans can be relied on, and with which margin; None without a run.

        `go` where the median error is at most 10 % and the intervals hold: no fewer measurements are inside than 95 of
        100 sets of so many runs have, if each interval holds for 80 %. Both limits are choices.
        """
        errors = self.errors
        if errors is None or errors.coverage is None:
            return None
        inside = round(errors.coverage * errors.n)
        runs = f"{errors.n:,} run{'s' if errors.n > 1 else ''}"
        figure = f"{errors.median:.0%} off in the median over {runs}, {inside:,} of them inside their 80 % interval"
        worst = self.worst[0]
        side = "short" if worst.error < 0 else "long"
        unless = f"the plan of {Path(worst.run).name} was {abs(worst.error):.0%} too {side}"
        if errors.n < _FEWEST_RUNS:
            return ResultVerdict("Wait for more runs before you rely on these plans", figure, unless, "check")
        fewest = _SHARE_INSIDE - _Z95 * sqrt(_SHARE_INSIDE * (1 - _SHARE_INSIDE) / errors.n)
        if errors.median <= _MOST_OFF and errors.coverage >= fewest:
            return ResultVerdict("Rely on these plans", figure, unless)
        return ResultVerdict(f"Leave a margin of {errors.p90:.0%} on these plans", figure, unless, "check")

    @property
    def worst(self) -> list[FinishedRun]:
        """The runs by the size of the ratio of plan and measurement, the farthest from one first."""
        return sorted(self.runs, key=lambda run: -abs(log(run.planned_s / run.measured_s)))

    @property
    def terms(self) -> dict[str, TermErrors]:
        """Errors by term of the step, over the runs that have them; the largest part of the bias first."""
        known = [run for run in self.runs if run.terms_s]
        names = dict.fromkeys(name for run in known for name in run.terms_s)
        found = {}
        for name in names:
            pairs = np.array([run.terms_s.get(name, (0.0, 0.0)) for run in known])
            shares = pairs / np.array([[run.measured_s] for run in known])
            found[name] = TermErrors(len(known), *map(float, shares.mean(axis=0)))
        return dict(sorted(found.items(), key=lambda pair: -abs(pair[1].part)))

    @property
    def machines(self) -> dict[str, Errors]:
        """Errors by kind of machine."""
        kinds = dict.fromkeys(run.machine for run in self.runs)
        found = {kind: _errors_of_runs([run for run in self.runs if run.machine == kind]) for kind in kinds}
        return {kind: errors for kind, errors in found.items() if errors is not None}

    @property
    def errors(self) -> Errors | None:
        """Errors of all runs; None before the first one."""
        return _errors_of_runs(self.runs)


def _errors_of_runs(runs: Sequence[FinishedRun]) -> Errors | None:
    return errors_of(
        [run.planned_s for run in runs],
        [run.measured_s for run in runs],
        low=[run.low_s for run in runs],
        high=[run.high_s for run in runs],
    )
