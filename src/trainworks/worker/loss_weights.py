"""Weights that make the loss of a step the mean over all items of the global batch.

Micro-batches may hold different numbers of items: tokens with a label, boxes, answers. The mean of their means would
then depend on the layout. With n_i items and mean loss l_i in micro-batch i, and M micro-batches of all ranks:

    loss = sum_i n_i l_i / sum_i n_i = 1/M sum_i w_i l_i        w_i = M n_i / sum_j n_j

Accumulation and data parallelism compute 1/M sum_i x_i, so that x_i = w_i l_i gives this loss and its gradient.
Equal counts have w_i = 1, to the last bit. torchtitan (`global_valid_tokens`) and the Trainer of transformers
(`num_items_in_batch`) normalise in the same way.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.worker.timing import Timeline

__all__ = ["loss_weights", "weighted"]


def loss_weights(num_items: Tensor | None, timeline: Timeline) -> Tensor | None:
    """Weight of each micro-batch of this rank [accumulation], in fp32; all ranks call it together.

    Ranks that share a micro-batch count it alike: every one of `tp` and `pp` counts all of its items, and each of `cp`
    those of its own positions.

    Args:
        num_items: of each micro-batch [accumulation]; None if all micro-batches of all ranks have the same number.
        timeline: notes how long this rank waits for the others.
    """
    if num_items is None:
        return None
    total = num_items.sum(dtype=torch.int64)
    start = timeline.mark()
    dist.all_reduce(total)
    timeline.waited_since(start)
    num_micro_batches = len(num_items) * dist.get_world_size()
    return (num_items.double() * num_micro_batches / total.clamp(min=1)).float()


def weighted(loss: Tensor, weight: Tensor | None) -> Tensor:
    """Weighted loss of a micro-batch; 0 without items, where a mean over nothing may be NaN."""
    return loss if weight is None else torch.where(weight > 0, loss * weight, 0.0)
