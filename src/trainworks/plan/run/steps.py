"""Optimizer steps of a run, and its evaluations: forward alone, over the same number of batches each time."""

from __future__ import annotations

from trainworks.config.data import Data, Evaluation
from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.record.resolved import PlannedEvaluation
from trainworks.record.step_time import StepTimeGroups, StepTimeTerms


def num_steps(workload: Workload, *, tokens_in_data: int | None) -> int:
    """Optimizer steps of `train_for`; tokens are rounded up to whole steps.

    Raises:
        UsageError: `train_for` is in epochs and the size of the data is not known yet.
    """
    if workload.train_for.unit == "steps":
        return workload.train_for.amount
    if workload.train_for.unit == "tokens":
        return -(-workload.train_for.amount // workload.tokens_per_step)
    if tokens_in_data is None:
        raise UsageError("the length of an epoch is known once the data is prepared")
    return steps_of_epochs(workload, sequences_in(workload.data, tokens_in_data))


def sequences_in(data: Data, tokens: int) -> int:
    """Samples in that many tokens: pairs of rows, rows of `sequence_length + 1` of whole documents, or sequences that
    overlap by one.
    """
    if data.chat is not None:
        return tokens // data.chat.row_tokens(data.sequence_length)
    return tokens // (data.sequence_length + 1) if data.pack else (tokens - 1) // data.sequence_length


def steps_of_epochs(workload: Workload, samples: int) -> int:
    """Whole global batches of all epochs together: the next epoch fills the last batch of the one before."""
    return max(1, workload.train_for.amount * samples // workload.global_batch)


def samples_left_out(workload: Workload, *, samples: int | None) -> int:
    """Samples at the end of the last epoch that do not fill a global batch, and are not trained on.

    0 for a run in steps or tokens, which says how many batches it wants.

    Args:
        workload: of the run file.
        samples: sequences, images or samples of one epoch; None where they are not known.
    """
    if workload.train_for.unit != "epochs" or samples is None:
        return 0
    trained = steps_of_epochs(workload, samples) * workload.global_batch
    return max(0, workload.train_for.amount * samples - trained)


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
    every, time = settings.every_steps, step_time
    if isinstance(time, StepTimeGroups):
        batch_s = time.data_s + _FORWARD_SHARE * (time.compute_s + time.communication_s)
    else:
        both_ways = time.head_s + time.tp_s + time.cp_s + time.ep_s + time.pp_s + time.dp_s + time.bubble_s
        batch_s = time.forward_s + time.host_s + _FORWARD_SHARE * both_ways
    return PlannedEvaluation(
        every_steps=every,
        count=num_steps // every + (num_steps % every > 0),
        batches=batches,
        batch_s=batch_s,
    )
