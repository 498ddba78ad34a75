"""Optimizer steps of a run."""

from __future__ import annotations

from trainworks.config.run_file import Workload
from trainworks.errors import UsageError


def num_steps(workload: Workload, *, tokens_in_data: int | None) -> int:
    """Optimizer steps of `train_for`; tokens are rounded up to whole steps.

    Raises:
        UsageError: `train_for` is in epochs and the size of the data is not known yet.
    """
    tokens_per_step = workload.global_batch * workload.data.sequence_length
    if workload.train_for.unit == "steps":
        return workload.train_for.amount
    if workload.train_for.unit == "tokens":
        return -(-workload.train_for.amount // tokens_per_step)
    if tokens_in_data is None:
        raise UsageError("the length of an epoch is known once the data is prepared")
    data = workload.data
    rows_are_whole = data.pack or data.chat is not None
    sequences = (
        tokens_in_data // (data.sequence_length + 1) if rows_are_whole else (tokens_in_data - 1) // data.sequence_length
    )
    return max(1, workload.train_for.amount * sequences // workload.global_batch)
