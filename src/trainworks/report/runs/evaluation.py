"""What evaluation on held-out data found, and what it cost against the plan."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from trainworks.config.data import Metric
from trainworks.record.evaluations import evaluated_steps, standing
from trainworks.record.history import History
from trainworks.record.resolved import ResolvedRun
from trainworks.report.rendering.document import Block, Facts, Text
from trainworks.report.runs.part import ReportPart
from trainworks.units import format_duration


class EvaluatedPoint(ReportPart):
    """Held-out figures after one step."""

    step: int
    loss: float
    perplexity: float | None
    """exp(loss), of tokens."""
    accuracy: float | None
    """0-1; None for a task without one."""


class Evaluations(ReportPart):
    """All evaluations that count."""

    count: int
    planned_count: int | None
    """None in plans of older versions."""
    metric: Metric
    last: EvaluatedPoint
    best: EvaluatedPoint | None
    """The best one by the metric; None without a finite value."""
    measured_s: float
    """Median time of one."""
    planned_s: float | None
    ended_early: bool
    """Whether the run ended because its evaluations did not improve any more."""
    num_without_improvement: int


def build_evaluations(resolved: ResolvedRun, history: History) -> Evaluations | None:
    """The evaluations of the effective steps; None if there are none yet."""
    workload = resolved.run_file.workload
    steps = history.effective.where(np.isfinite(history.effective["evaluation_s"]))
    if workload is None or workload.eval is None or not len(steps):
        return None
    found = standing(evaluated_steps(steps, workload.eval.metric), workload.eval)
    points = [
        _point(int(step), loss, accuracy, has_perplexity=workload.has_perplexity)
        for step, loss, accuracy in zip(
            steps["step"].tolist(), steps["eval_loss"].tolist(), steps["eval_accuracy"].tolist(), strict=True
        )
    ]
    planned = resolved.plan.evaluation if resolved.plan else None
    ended = history.of_kind("finished")
    return Evaluations(
        count=len(points),
        planned_count=planned.count if planned else None,
        metric=workload.eval.metric,
        last=points[-1],
        best=next((point for point in points if found.best and point.step == found.best.step), None),
        measured_s=median(steps["evaluation_s"].tolist()),
        planned_s=planned.evaluation_s if planned else None,
        ended_early=bool(ended and ended[-1].get("early")),
        num_without_improvement=found.num_without_improvement,
    )


def _point(step: int, loss: float, accuracy: float, *, has_perplexity: bool) -> EvaluatedPoint:
    return EvaluatedPoint(
        step=step,
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)) if has_perplexity and math.isfinite(loss) else None,
        accuracy=accuracy if math.isfinite(accuracy) else None,
    )


def evaluation_blocks(found: Evaluations) -> list[Block]:
    """Best and last evaluation, and the cost of one."""
    planned = "" if found.planned_s is None else f", {format_duration(found.planned_s)} planned"
    of = "" if found.planned_count is None else f" of {found.planned_count:,}"
    facts = {
        "best": _figures(found.best) if found.best else "no finite value",
        "last": _figures(found.last),
        "evaluations": f"{found.count:,}{of}, {format_duration(found.measured_s)} each{planned}",
    }
    blocks: list[Block] = [Facts.from_mapping(facts)]
    if found.ended_early:
        times = f"{found.num_without_improvement} evaluation{'s' if found.num_without_improvement > 1 else ''}"
        blocks.append(Text(f"The run ended early: {times} in a row without an improvement.", "bold"))
    return blocks


def _figures(point: EvaluatedPoint) -> str:
    """Held-out figures in one line.

    >>> _figures(EvaluatedPoint(step=300, loss=3.5, perplexity=33.115, accuracy=None))
    'loss 3.500, perplexity 33.12 after step 300'
    """
    figures = [f"loss {point.loss:.3f}"]
    figures += [] if point.perplexity is None else [f"perplexity {point.perplexity:.4g}"]
    figures += [] if point.accuracy is None else [f"accuracy {point.accuracy:.2%}"]
    return f"{', '.join(figures)} after step {point.step:,}"
