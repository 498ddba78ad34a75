"""Optimizer steps of a run, and its evaluations: forward alone, over the same number of batches each time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainworks.config.data import Data, Evaluation
from trainworks.config.layout import ResolvedLayout
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
"""Share of the forward in work that a step does in both directions. Count: backward computes two products for each
one."""


def planned_evaluation(
    settings: Evaluation | None,
    step_time: StepTimeTerms | StepTimeGroups,
    *,
    global_batch: int,
    layout: ResolvedLayout,
    num_steps: int,
    held_out_samples: Sequence[int] | None,
) -> PlannedEvaluation | None:
    """Number and cost of the evaluations; None for a run that does not evaluate, or all of data that are not counted.

        batches = sum over the held-out sets of eval.steps, at most ceil(samples of the set / global batch)
        batch_s = forward + host + (head + tp + cp + ep + pp + dp) / 3 + bubble / 3
        generation_s = prompts * tokens * batch_s * dp * pp / global_batch

    A token of a generated text takes the forward of one sequence, which passes the pipeline stages one by one. Of a
    step that was measured by group, a third of compute and communication is the forward.

    Args:
        settings: `workload.eval` of the run file.
        step_time: of a training step, predicted or measured.
        global_batch: samples of a step.
        layout: of the run.
        num_steps: of the run.
        held_out_samples: of each set; None where they are not counted yet; `eval.steps` then says it alone.
    """
    if settings is None:
        return None
    available = [math.inf] * max(1, len(settings.sources))
    if held_out_samples is not None:
        available = [-(-samples // global_batch) for samples in held_out_samples]
    if settings.steps == "all" and held_out_samples is None:
        return None
    most = math.inf if settings.steps == "all" else settings.steps
    batches = int(sum(min(each, most) for each in available))
    every, time = settings.every_steps, step_time
    if isinstance(time, StepTimeGroups):
        batch_s = time.data_s + _FORWARD_SHARE * (time.compute_s + time.communication_s)
    else:
        both_ways = time.head_s + time.tp_s + time.cp_s + time.ep_s + time.pp_s + time.dp_s + time.bubble_s
        batch_s = time.forward_s + time.host_s + _FORWARD_SHARE * both_ways
    texts = settings.generate
    forwards = len(texts.prompts) * texts.tokens if texts else 0
    return PlannedEvaluation(
        every_steps=every,
        count=num_steps // every + (num_steps % every > 0),
        batches=batches,
        batch_s=batch_s,
        generation_s=forwards * batch_s * layout.dp * layout.pp / global_batch,
    )
