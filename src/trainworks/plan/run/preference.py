"""What preference tuning (DPO) changes in memory and time: samples are pairs, and a frozen reference reads them first.

Symbols: N parameters of the model, s ranks that share them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainworks.config.run_file import Workload
from trainworks.plan.activations import element_bytes
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts
from trainworks.record.model_shape import ModelShape

if TYPE_CHECKING:
    from trainworks.plan.run.memory import RunMemories

_HEAD = 5 / 3
"""Products of the output matrix by those of plain training: two of forward, as backward computes the logits again, two
of backward, and one of the reference; of three."""


def in_sequences(layouts: Layouts, workload: Workload) -> Layouts:
    """The layouts with micro-batches in sequences, of which a pair has two."""
    return replace(layouts, micro_batch=layouts.micro_batch * workload.sequences_per_sample)


def with_reference_memory(
    memories: RunMemories, shape: ModelShape, layouts: Layouts, workload: Workload
) -> RunMemories:
    """Memory with the frozen copy: b N / s more weights, where b is 4, or 2 in bf16. Adapters need none.

    Ranks of tp share it, too. It is always sharded as with zero 3: gathered for a micro-batch and given back.
    """
    if workload.adapter is not None:
        return memories
    shards = layouts.tp * np.where(layouts.zero > 0, np.maximum(1.0, layouts.dp_shard * layouts.cp), 1.0)
    per_weight = 2.0 if workload.precision == "bf16" else 4.0
    return replace(memories, weights_bytes=memories.weights_bytes + per_weight * shape.num_parameters / shards)


def with_reference_time(times: StepTimes, layouts: Layouts, precision: str) -> StepTimes:
    """Time with the forward of the reference.

    forward     twice
    host        4 / 3: of two passes backward has twice the operations of forward
    head        `_HEAD`
    tp          3 / 2: backward exchanges as much as forward
    dp          shards gather weights three times instead of twice, beside the gradients
    """
    weights, gradients = element_bytes(precision), 4.0
    gathered = np.where(layouts.zero >= 3, (3 * weights + gradients) / (2 * weights + gradients), 1.0)
    return replace(
        times,
        forward_s=2 * times.forward_s,
        host_s=times.host_s * 4 / 3,
        head_s=times.head_s * _HEAD,
        tp_s=times.tp_s * 3 / 2,
        dp_s=times.dp_s * gathered,
    )


def reference_flops_per_token(shape: ModelShape, length: int) -> float:
    """Model FLOPs of the reference per token: its forward is a third of training."""
    return model_flops_per_token(shape, length) / 3
