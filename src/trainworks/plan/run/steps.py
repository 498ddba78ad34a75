"""Optimizer steps of a run."""

from __future__ import annotations

from trainworks.config.data import Data
from trainworks.config.run_file import Workload
from trainworks.errors import UsageError


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
    if data.chat is not None and data.chat.pairs:
        return tokens // (2 * (data.sequence_length + 1))
    rows_are_whole = data.pack or data.chat is not None
    return tokens // (data.sequence_length + 1) if rows_are_whole else (tokens - 1) // data.sequence_length


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
