"""The curves of a report: loss and throughput over steps, thin enough to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np

from trainworks.record.history import History
from trainworks.record.metric_columns import Floats, MetricColumns, thinned
from trainworks.record.metrics import MetricsRow
from trainworks.report.runs.part import ReportPart

MAX_POINTS = 1500

Point = tuple[int, float]


class Line(ReportPart):
    """One line of a plot."""

    lost: bool
    """Work that a restart threw away."""
    attempt: int | None
    """Attempt of a lost line; the effective line runs over all attempts."""
    points: tuple[Point, ...]
    """Step and value."""


class Curves(ReportPart):
    """Lost lines first, so that the effective line is drawn over them."""

    loss: tuple[Line, ...]
    tokens_per_s: tuple[Line, ...]


def build_curves(history: History) -> Curves:
    """Loss and tokens/s of the effective steps, and of every lost stretch."""
    return Curves(
        loss=_lines(history, lambda row: row["loss"]),
        tokens_per_s=_lines(history, lambda row: row["tokens"] / row["step_s"] if row["step_s"] > 0 else math.nan),
    )


def curves_of_columns(columns: MetricColumns, returns: Iterable[tuple[float, int]]) -> Curves:
    """The same curves from columns, for records of any length.

    Args:
        columns: of the metrics.
        returns: time of every restart or rollback, and the step from which training continued.
    """
    step_s = columns.column("step_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens_per_s = columns.column("tokens") / np.where(step_s > 0, step_s, np.nan)
    steps, attempts, lost = columns.column("step"), columns.column("attempt"), columns.lost(returns)
    stretches = [(int(attempt), lost & (attempts == attempt)) for attempt in np.unique(attempts[lost])]

    def lines(values: Floats) -> tuple[Line, ...]:
        thrown = [Line(lost=True, attempt=one, points=_thin(steps[rows], values[rows])) for one, rows in stretches]
        effective = _thin(steps[~lost], values[~lost])
        return (*thrown, Line(lost=False, attempt=None, points=effective)) if effective else tuple(thrown)

    return Curves(loss=lines(columns.column("loss")), tokens_per_s=lines(tokens_per_s))


def _thin(steps: Floats, values: Floats) -> tuple[Point, ...]:
    return tuple((int(steps[index]), float(values[index])) for index in thinned(values, MAX_POINTS))


def decimate(points: Sequence[Point], limit: int) -> tuple[Point, ...]:
    """At most `limit` points; see `thinned`."""
    return tuple(points[index] for index in thinned([value for _, value in points], limit))


def _lines(history: History, value: Callable[[MetricsRow], float]) -> tuple[Line, ...]:
    lost = [
        Line(lost=True, attempt=attempt, points=_points(list(rows), value))
        for attempt, rows in groupby(history.lost, key=lambda row: row["attempt"])
    ]
    effective = _points(history.effective, value)
    return (*lost, Line(lost=False, attempt=None, points=effective)) if effective else tuple(lost)


def _points(rows: Sequence[MetricsRow], value: Callable[[MetricsRow], float]) -> tuple[Point, ...]:
    return decimate([(row["step"], value(row)) for row in rows], MAX_POINTS)
