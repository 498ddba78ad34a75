"""What evaluation on held-out data found, and what it cost against the plan."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from trainworks.config.data import Metric
from trainworks.record.evaluations import evaluated_steps, standing
from trainworks.record.events.training import FinishedEvent
from trainworks.record.history import History
from trainworks.record.resolved import ResolvedRun
from trainworks.report.runs.part import ReportPart


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
    workload, script = resolved.run_file.workload, resolved.run_file.metrics
    settings = workload.eval if workload else script
    steps = history.effective.where(np.isfinite(history.effective["evaluation_s"]))
    if settings is None or not len(steps):
        return None
    found = standing(evaluated_steps(steps, settings.metric), settings)
    points = [
        EvaluatedPoint(
            step=int(step),
            loss=loss,
            perplexity=math.exp(min(loss, 700.0))
            if workload and workload.has_perplexity and math.isfinite(loss)
            else None,
            accuracy=accuracy if math.isfinite(accuracy) else None,
        )
        for step, loss, accuracy in zip(
            steps["step"].tolist(), steps["eval_loss"].tolist(), steps["eval_accuracy"].tolist(), strict=True
        )
    ]
    planned = resolved.plan.evaluation if resolved.plan else None
    ended = history.of_kind(FinishedEvent)
    return Evaluations(
        count=len(points),
        planned_count=planned.count if planned else None,
        metric=settings.metric,
        last=points[-1],
        best=next((point for point in points if found.best and point.step == found.best.step), None),
        measured_s=median(steps["evaluation_s"].tolist()),
        planned_s=planned.evaluation_s if planned else None,
        ended_early=bool(ended and ended[-1].get("early")),
        num_without_improvement=found.num_without_improvement,
    )
