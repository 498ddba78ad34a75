"""A sweep as a document: its trials from the best to the worst, their curves, and the objective over each setting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainworks.record.sweeps.sweep import SweepResult, SweepTrial
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Block, Document, Row, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Chart, Curve, Dot

_LOG_RATIO = 10.0
"""Ratio of the largest to the smallest value of a setting from which a plot shows its logarithm."""


def to_json(sweep: SweepResult) -> dict[str, Any]:
    """Definition, trials and the best one."""
    return {
        "sweep": sweep.definition.model_dump(),
        "folder": str(sweep.path),
        "trials": [trial.model_dump() for trial in sweep.trials],
        "best": sweep.best.model_dump() if sweep.best else None,
    }


def document(sweep: SweepResult) -> Document:
    """The whole sweep."""
    return Document(
        sweep.definition.name,
        "sweep",
        [
            Section("", [Text(_summary(sweep), "bold"), *([Text(_choice(sweep))] if sweep.best else [])]),
            Section("Trials", [_table(sweep)]),
            Section(f"{_objective(sweep)} over the steps", _curves(sweep), only="page"),
            *(Section(f"{_objective(sweep)} over {key}", [chart], only="page") for key, chart in _scatters(sweep)),
        ],
        max_width=120,
    )


def _objective(sweep: SweepResult) -> str:
    return sweep.definition.objective[:1].upper() + sweep.definition.objective[1:]


def _summary(sweep: SweepResult) -> str:
    counts = {state: sum(trial.state == state for trial in sweep.trials) for state in ("succeeded", "pruned", "failed")}
    going = len(sweep.trials) - sum(counts.values())
    parts = [f"{count} {state}" for state, count in (counts | {"going": going}).items() if count]
    return f"{len(sweep.trials)} of {sweep.definition.num_trials} trials: {', '.join(parts) or 'none yet'}"


def _choice(sweep: SweepResult) -> str:
    assert sweep.best is not None
    settings = ", ".join(f"{key} = {_text(value)}" for key, value in sweep.best.settings.items())
    return f"Best: {settings}, {sweep.definition.objective} {sweep.best.value:.4g} ({sweep.best.run})"


def _table(sweep: SweepResult) -> Table:
    keys = list(sweep.definition.space)
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0
    in_order = sorted(sweep.trials, key=lambda trial: _rank(trial, sign))
    rows = [Row(_cells(trial, keys), "bold" if trial is sweep.best else "") for trial in in_order]
    columns = [*left("run"), *right(*keys), *left("state"), *right("steps", sweep.definition.objective)]
    return Table([*columns, *left("message", wrap=True)], rows)


def _rank(trial: SweepTrial, sign: float) -> tuple[int, float, int]:
    order = ("succeeded", "pruned", "submitted", "proposed", "failed").index(trial.state)
    return order, math.inf if trial.value is None else sign * trial.value, trial.number


def _cells(trial: SweepTrial, keys: Sequence[str]) -> list[str]:
    value = "" if trial.value is None else f"{trial.value:.4f}"
    settings = [_text(trial.settings.get(key)) for key in keys]
    return [trial.run or trial.run_name, *settings, trial.state, f"{trial.steps:,}", value, trial.message or ""]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(sweep: SweepResult) -> list[Block]:
    """Every trial's curve, the best one on top."""
    sign = -1.0 if sweep.definition.objective == "held-out accuracy" else 1.0
    curves = {
        number: [(step, sign * cost) for step, cost in reports if math.isfinite(cost)]
        for number, reports in sweep.curves.items()
    }
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    best = sweep.best.number if sweep.best else None
    chart = Chart(
        f"{_objective(sweep)} of every trial over the steps",
        x=build_axis(0, max(step for step, _ in points), num_ticks=7, whole=True),
        y=build_axis(min(value for _, value in points), max(value for _, value in points)),
        x_unit="steps",
        curves=[
            *(Curve("trial-line", curve) for number, curve in curves.items() if number != best and curve),
            *([Curve("line", curves[best])] if best is not None and curves.get(best) else []),
        ],
        names=[("key", "best trial"), ("key trial-key", "other trials")],
    )
    return [chart]


def _scatters(sweep: SweepResult) -> Iterator[tuple[str, Chart]]:
    """The objective of the trials over every setting of numbers with two values or more."""
    ended = [trial for trial in sweep.trials if trial.state == "succeeded" and trial.value is not None]
    for key in sweep.definition.space:
        found = [(_number(trial.settings.get(key)), trial) for trial in ended]
        points = [(number, trial) for number, trial in found if number is not None]
        numbers = [number for number, _ in points]
        if len(set(numbers)) < 2:
            continue
        is_log = min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_RATIO
        places = [math.log10(number) if is_log else number for number in numbers]
        values = [trial.value or 0.0 for _, trial in points]
        name = f"log10 {key}" if is_log else key
        dots = [
            Dot(place, value, f"{trial.run}: {key} = {_text(number)}, {value:.4g}")
            for place, value, (number, trial) in zip(places, values, points, strict=True)
        ]
        x, y = build_axis(min(places), max(places)), build_axis(min(values), max(values))
        yield name, Chart(f"{_objective(sweep)} over {name}", x=x, y=y, dots=dots)


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
