"""What evaluation on held-out data found, and what it cost against the plan."""

from __future__ import annotations

import math
from statistics import median

from pydantic import Field

from trainworks.config.data import Evaluation, Metric
from trainworks.config.track import ScriptMetrics
from trainworks.record.evaluations import evaluated_steps, standing
from trainworks.record.events.training import FinishedEvent, SampleEvent
from trainworks.record.history import History, returns_of
from trainworks.record.resolved import ResolvedRun
from trainworks.report.runs.part import ReportPart, printable

_MOST_TEXTS = 64


class EvaluatedPoint(ReportPart):
    """Held-out figures after one step."""

    step: int
    loss: float | None
    """None of a program that recorded an accuracy alone."""
    perplexity: float | None
    """exp(loss), of tokens."""
    accuracy: float | None
    """0-1; None for a task without one."""
    figures: dict[str, float] = Field(default_factory=dict)
    """Values by name: `wiki/loss` of every set, where there are several, and the user's own metrics."""


class EvaluatedText(ReportPart):
    """What the model wrote after a prompt."""

    step: int
    prompt: str
    text: str


class Evaluations(ReportPart):
    """All evaluations that count."""

    count: int
    planned_count: int | None
    """None in plans of older versions."""
    metric: Metric
    decided_by: str = ""
    """The metric, with several sets also which one's: `loss of wiki`; empty in reports of older versions."""
    last: EvaluatedPoint
    best: EvaluatedPoint | None
    """The best one by the metric; None without a finite value."""
    measured_s: float
    """Median time of one."""
    planned_s: float | None
    ended_early: bool
    """Whether the run ended because its evaluations did not improve any more."""
    num_without_improvement: int
    texts: tuple[EvaluatedText, ...] = ()
    """What the model wrote at the evaluations that count, with `eval.generate`; of the last ones."""


def build_evaluations(resolved: ResolvedRun, history: History) -> Evaluations | None:
    """The evaluations of the effective steps; None if there are none yet."""
    workload, script = resolved.run_file.workload, resolved.run_file.metrics
    settings = workload.eval if workload else script
    steps = history.effective.evaluated()
    if settings is None or not len(steps):
        return None
    found = standing(evaluated_steps(steps, settings.metric), settings)
    named = dict(steps.figures("evaluation"))
    points = [
        EvaluatedPoint(
            step=int(step),
            loss=None if math.isnan(loss) and math.isfinite(accuracy) else loss,
            perplexity=math.exp(min(loss, 700.0))
            if workload and workload.has_perplexity and math.isfinite(loss)
            else None,
            accuracy=accuracy if math.isfinite(accuracy) else None,
            figures=dict(named.get(int(step), {})),
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
        decided_by=_decided_by(settings, points[-1]),
        last=points[-1],
        best=next((point for point in points if found.best and point.step == found.best.step), None),
        measured_s=median(steps["evaluation_s"].tolist()),
        planned_s=planned.evaluation_s if planned else None,
        ended_early=bool(ended and ended[-1].get("early")),
        num_without_improvement=found.num_without_improvement,
        texts=_texts(history),
    )


def _texts(history: History) -> tuple[EvaluatedText, ...]:
    """The last texts; one of a step that was done again counts no more."""
    returns, found = returns_of(history.events), {}
    for event in history.of_kind(SampleEvent):
        is_undone = any(at > event["t"] and to_step < event["step"] for at, to_step in returns)
        if event.get("evaluation") and not is_undone:
            prompt, text = printable(event["prompt"]), printable(event["text"])
            found[event["step"], prompt] = EvaluatedText(step=event["step"], prompt=prompt, text=text)
    return tuple(found.values())[-_MOST_TEXTS:]


def _decided_by(settings: Evaluation | ScriptMetrics, last: EvaluatedPoint) -> str:
    """The metric, and the set that it is of where there are several; a module names its sets in the record alone."""
    sets = dict.fromkeys(name.partition("/")[0] for name in last.figures if "/" in name)
    if not isinstance(settings, Evaluation) or not sets:
        return settings.metric
    return f"{settings.metric} of {settings.deciding_set(sets)}"
