"""What the evaluations of a run cost: forward alone, over the same number of batches each time."""

from __future__ import annotations

from trainworks.config.data import Evaluation
from trainworks.record.resolved import PlannedEvaluation, StepTimeGroups, StepTimeTerms

_FORWARD_SHARE = 1 / 3
"""Share of the forward in work that a step does in both directions: backward computes two products for each one."""


def planned_evaluation(
    settings: Evaluation | None,
    step_time: StepTimeTerms | StepTimeGroups,
    *,
    global_batch: int,
    num_steps: int,
    held_out_samples: int | None,
) -> PlannedEvaluation | None:
    """Number and cost of the evaluations; None for a run that does not evaluate, or all of data that are not counted.

        batches = eval.steps, at most ceil(held-out samples / global batch)
        batch_s = forward + host + (head + tp + cp + ep + pp + dp) / 3 + bubble / 3

    Of a step that was measured by group, a third of compute and communication is the forward.

    Args:
        settings: `workload.eval` of the run file.
        step_time: of a training step, predicted or measured.
        global_batch: samples of a step.
        num_steps: of the run.
        held_out_samples: None where they are not counted yet; `eval.steps` then says it alone.
    """
    if settings is None:
        return None
    available = None if held_out_samples is None else -(-held_out_samples // global_batch)
    if settings.steps == "all":
        if available is None:
            return None
        batches = available
    else:
        batches = settings.steps if available is None else min(settings.steps, available)
    every = settings.every_steps
    return PlannedEvaluation(
        every_steps=every,
        count=num_steps // every + (num_steps % every > 0),
        batches=batches,
        batch_s=_batch_s(step_time),
    )


def _batch_s(time: StepTimeTerms | StepTimeGroups) -> float:
    if isinstance(time, StepTimeGroups):
        return time.data_s + _FORWARD_SHARE * (time.compute_s + time.communication_s)
    both_ways = time.head_s + time.tp_s + time.cp_s + time.ep_s + time.pp_s + time.dp_s + time.bubble_s
    return time.forward_s + time.host_s + _FORWARD_SHARE * both_ways
