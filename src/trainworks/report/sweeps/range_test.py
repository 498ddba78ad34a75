"""A learning-rate range test as a document."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trainworks.plan.sweeps.range_test import RangeTestResult
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Block, Document, Facts, Section, Text
from trainworks.report.rendering.plots import Chart, Curve, Rule


def to_json(result: RangeTestResult) -> dict[str, Any]:
    """The run, the rates and smoothed losses, and what they suggest."""
    return {"run": result.run, **dataclasses.asdict(result.test)}


def document(result: RangeTestResult) -> Document:
    """What to choose, and the curve."""
    test = result.test
    facts = {
        "suggested": "none: the loss never fell" if test.suggested is None else f"{test.suggested:.3g}",
        "steepest": "" if test.steepest is None else f"{test.steepest:.3g}, where the loss falls fastest",
        "diverged": "not in this range" if test.diverged_at is None else f"from {test.diverged_at:.3g} on",
        "run": result.run,
    }
    shown = Facts.from_mapping({name: text for name, text in facts.items() if text})
    note = "Suggested is a tenth of the rate with the lowest smoothed loss, a peak for a schedule with a warm-up."
    return Document(
        "Learning-rate range test",
        "range test",
        [Section("", [shown, Text(note, "dim")]), Section("Loss", _curve(result), only="page")],
    )


def _curve(result: RangeTestResult) -> list[Block]:
    points = [
        (math.log10(rate), loss)
        for rate, loss in zip(result.test.rates, result.test.losses, strict=True)
        if rate > 0 and math.isfinite(loss)
    ]
    if len(points) < 2:
        return []
    suggested = result.test.suggested
    rules = [Rule("x", math.log10(suggested), f"suggested {suggested:.3g}")] if suggested else []
    losses = [loss for _, loss in points]
    chart = Chart(
        "Smoothed loss over the learning rate",
        x=build_axis(points[0][0], points[-1][0]),
        y=build_axis(min(losses), max(losses)),
        x_unit="log10 of the learning rate",
        curves=[Curve("line", points)],
        rules=rules,
    )
    return [chart]
