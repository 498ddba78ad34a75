"""The curves of a report: loss and throughput over steps, thin enough to draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import Field

from trainworks.record.events.log import Event
from trainworks.record.history import returns_of
from trainworks.record.metric_columns import Floats, MetricColumns, thinned
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

    def __repr__(self) -> str:
        return f"<Curves: {', '.join(name for name, lines in self if lines)}>"

    loss: tuple[Line, ...]
    tokens_per_s: tuple[Line, ...]
    eval_loss: tuple[Point, ...] = ()
    """Held-out loss of the effective steps that evaluated; with several sets of the one that decides."""
    held_out: dict[str, tuple[Point, ...]] = Field(default_factory=dict)
    """Named figures of the same evaluations, such as `wiki/loss`."""
    accuracy: tuple[Line, ...] = ()
    """Empty for a task whose training counts none."""
    eval_accuracy: tuple[Point, ...] = ()
    figures: dict[str, tuple[Point, ...]] = Field(default_factory=dict)
    """What a command's own program says beside its loss, by name."""


def build_curves(metrics: MetricColumns, events: Sequence[Event]) -> Curves:
    """Loss, accuracy and tokens/s of the effective steps, and of the lost ones of every attempt."""
    steps = metrics.steps()
    lost = steps.is_lost(returns_of(events))
    step, attempt = steps["step"], steps["attempt"]
    stretches = [(int(one), lost & (attempt == one)) for one in np.unique(attempt[lost & np.isfinite(attempt)])]

    def lines(values: Floats) -> tuple[Line, ...]:
        thrown = [Line(lost=True, attempt=one, points=_thin(step[rows], values[rows])) for one, rows in stretches]
        effective = _thin(step[~lost], values[~lost])
        return (*thrown, Line(lost=False, attempt=None, points=effective)) if effective else tuple(thrown)

    effective = steps.where(~lost)
    evaluated = effective.evaluated()
    return Curves(
        loss=lines(steps["loss"]),
        tokens_per_s=lines(steps.tokens_per_s),
        eval_loss=_thin(evaluated["step"], evaluated["eval_loss"]),
        held_out=_named(evaluated.figures("evaluation")),
        accuracy=lines(steps["accuracy"]),
        eval_accuracy=_thin(evaluated["step"], evaluated["eval_accuracy"]),
        figures=_named(effective.figures("program")),
    )


def _named(said: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, tuple[Point, ...]]:
    found: defaultdict[str, list[Point]] = defaultdict(list)
    for step, figures in said:
        for name, value in figures.items():
            found[name].append((step, value))
    return {name: _thin(*np.array(points).T) for name, points in found.items()}


def _thin(steps: Floats, values: Floats) -> tuple[Point, ...]:
    return tuple((int(steps[index]), float(values[index])) for index in thinned(values, MAX_POINTS))
