"""metrics.jsonl: one line per optimizer step, written by rank 0 once per logging interval.

A step repeated after a restart or a rollback has several lines; the last one counts, the earlier ones are lost work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NotRequired, TypedDict

from trainworks.files import append_text

_MOST_WARMUP_STEPS = 5


STEP_PARTS = (
    *("compute_s", "communication_s", "optimizer_s", "data_s"),
    *("checkpoint_s", "evaluation_s", "callback_s", "other_s"),
)
"""Fields of a row that add up to `step_s`; those of training first."""


class SlowestRank(TypedDict):
    """The rank that the others waited for in one logging interval."""

    rank: int
    extra_s: float
    """Seconds per step of its own work, data and compute, beyond the median of the other ranks."""
    extra_data_s: float
    """The same of its wait for data alone; negative where it waits less than the others."""


class CallbackTimes(TypedDict):
    """Callbacks of one logging interval on the rank that spent longest in them; the other ranks wait for it."""

    rank: int
    total_s: float
    """Seconds per step of all its callbacks."""
    longest: int
    """The callback that took longest: its place in `workload.callbacks`, from 0."""
    longest_s: float
    """Seconds per step of that one."""


class EvaluationResult(TypedDict):
    """What an evaluation on held-out data found."""

    loss: float
    """Mean over all items of the held-out data, or of the part of it that `eval.steps` chooses."""
    accuracy: NotRequired[float]
    """Share of the labels that the model predicts, 0-1; of masked-lm and image-classification."""
    samples: int
    """Sequences, images or samples that it has seen."""


class MetricsRow(TypedDict):
    """One optimizer step. Times are means over the ranks and add up to `step_s`."""

    step: int
    attempt: int
    t: float
    """End of the step, seconds since the epoch."""
    loss: float
    """Mean over all tokens of the global batch, natural logarithm."""
    grad_norm: float
    """Norm before clipping."""
    lr: float
    tokens: int
    step_s: float
    data_s: float
    compute_s: float
    communication_s: float
    optimizer_s: float
    checkpoint_s: float
    """Stall of the step for a checkpoint."""
    other_s: float
    """Logging and all time outside the other terms."""
    callback_s: NotRequired[float]
    """Time of the user's callbacks after this step, as far as nothing was computed meanwhile; absent without any."""
    evaluation_s: NotRequired[float]
    """Time of the evaluation after this step; absent without one."""
    evaluation: NotRequired[EvaluationResult]
    """Result of that evaluation."""
    skipped: NotRequired[str]
    """Reason for a step without update of the weights: `nonfinite`, `spike`, or `loss_scale` (fp16, not a fault)."""
    memory_peak_bytes: NotRequired[int]
    """Largest peak over the ranks so far: of the accelerator with the driver's context, as nvidia-smi counts it, or
    resident on a CPU; on the last row of an interval."""
    slowest: NotRequired[SlowestRank]
    """On the last row of an interval, with more than one rank; absent in records of older versions."""
    callbacks: NotRequired[CallbackTimes]
    """On the last row of an interval of a run with callbacks."""


def append_metrics(path: Path, rows: Iterable[MetricsRow]) -> None:
    """Append the rows of one interval in one write."""
    append_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def warmup_steps(num_steps: int) -> int:
    """First steps that the medians leave out: five, but never more than a quarter of what there is.

    >>> warmup_steps(300), warmup_steps(8), warmup_steps(3)
    (5, 2, 0)
    """
    return min(_MOST_WARMUP_STEPS, num_steps // 4)
