"""The curves of a report: loss and throughput over steps, thin enough to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from trainworks.record.history import History
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


def decimate(points: Sequence[Point], limit: int) -> tuple[Point, ...]:
    """At most `limit` points that keep every spike: the lowest and highest of each of limit/2 equal buckets.

    The first and last step stay; values that are not finite are left out.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= limit:
        return tuple(finite)
    buckets = max(1, limit // 2 - 1)
    kept = {0, len(finite) - 1}
    for bucket in range(buckets):
        indices = range(bucket * len(finite) // buckets, (bucket + 1) * len(finite) // buckets)
        kept.add(min(indices, key=lambda index: finite[index][1]))
        kept.add(max(indices, key=lambda index: finite[index][1]))
    return tuple(finite[index] for index in sorted(kept))


def _lines(history: History, value: Callable[[MetricsRow], float]) -> tuple[Line, ...]:
    lost = [
        Line(lost=True, attempt=attempt, points=_points(list(rows), value))
        for attempt, rows in groupby(history.lost, key=lambda row: row["attempt"])
    ]
    effective = _points(history.effective, value)
    return (*lost, Line(lost=False, attempt=None, points=effective)) if effective else tuple(lost)


def _points(rows: Sequence[MetricsRow], value: Callable[[MetricsRow], float]) -> tuple[Point, ...]:
    return decimate([(row["step"], value(row)) for row in rows], MAX_POINTS)
