"""The evaluations of a run, and where it stands: the best one, and how long ago it improved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainworks.config.data import Evaluation, Metric
from trainworks.config.track import ScriptMetrics
from trainworks.record.events.log import read_events
from trainworks.record.history import returns_of
from trainworks.record.metric_columns import Steps, read_columns
from trainworks.record.metrics import EvaluationResult
from trainworks.record.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class EvaluatedStep:
    """An evaluation: after which step, and the metric that decides."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What a series of evaluations amounts to."""

    best: EvaluatedStep | None
    """The best one, the first of equals; None before a finite one."""
    num_without_improvement: int
    """Evaluations since the last that improved the metric by more than `min_delta`."""

    def is_stalled(self, patience: int | None) -> bool:
        """Whether an early stop is due."""
        return patience is not None and self.num_without_improvement >= patience


def standing(evaluations: Iterable[EvaluatedStep], settings: Evaluation | ScriptMetrics) -> Standing:
    """The standing after a series of evaluations, in the order of their steps.

    A value improves on a reference, which is the value of the last improvement, if it is better by more than
    `min_delta`. One that is not finite never does. The best value of all need not have been an improvement.
    """
    sign = -1.0 if settings.metric == "accuracy" else 1.0
    best: EvaluatedStep | None = None
    reference, since = math.inf, 0
    for each in evaluations:
        cost = sign * each.value
        if math.isfinite(cost) and (best is None or cost < sign * best.value):
            best = each
        improved = math.isfinite(cost) and cost < reference - settings.min_delta
        reference, since = (cost, 0) if improved else (reference, since + 1)
    return Standing(best, since)


def evaluated_steps(steps: Steps, metric: Metric) -> list[EvaluatedStep]:
    """The evaluations among these steps."""
    evaluated = steps.evaluated()
    values = evaluated[f"eval_{metric}"].tolist()
    return [EvaluatedStep(int(step), value) for step, value in zip(evaluated["step"].tolist(), values, strict=True)]


def read_evaluations(run_dir: RunDir, metric: Metric, *, until_step: int | None = None) -> list[EvaluatedStep]:
    """The evaluations of a run that led to its weights; those that a restart or rollback undid do not count.

    What came after `until_step`, the step of the checkpoint that the run continues from, is left out.
    """
    return evaluated_steps(_effective(run_dir, until_step), metric)


def _effective(run_dir: RunDir, until_step: int | None) -> Steps:
    recorded = read_columns(run_dir.metrics_file).steps()
    if until_step is not None:
        recorded = recorded.where(recorded["step"] <= until_step)
    return recorded.where(~recorded.is_lost(returns_of(read_events(run_dir.events_file))))


def evaluation_after(run_dir: RunDir, step: int) -> EvaluationResult | None:
    """What the evaluation after a step found, of the history that led to the weights; None without one."""
    steps = _effective(run_dir, step)
    steps = steps.where(steps["step"] == step).evaluated()
    if not len(steps):
        return None
    found = EvaluationResult(loss=float(steps["eval_loss"][-1]))
    if figures := dict(steps.figures("evaluation")).get(step):
        found["figures"] = dict(figures)
    if math.isfinite(accuracy := float(steps["eval_accuracy"][-1])):
        found["accuracy"] = accuracy
    if math.isfinite(samples := float(steps["eval_samples"][-1])):
        found["samples"] = int(samples)
    return found


def best_step(run_dir: RunDir) -> int | None:
    """Step of the best evaluation of a run so far, whose checkpoint is kept; None if there is none."""
    best = best_evaluation(run_dir)
    return best.step if best else None


def best_evaluation(run_dir: RunDir) -> EvaluatedStep | None:
    """The best evaluation of a run so far; None if it does not evaluate, or has not yet."""
    workload = run_dir.read_resolved().run_file.workload
    if workload is None or workload.eval is None:
        return None
    return standing(read_evaluations(run_dir, workload.eval.metric), workload.eval).best
