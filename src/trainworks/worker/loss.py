"""Cross-entropy from hidden states, a piece of the tokens at a time: the logits of a batch never exist together.

Symbols: N tokens, D hidden, V vocabulary, of which this rank may have a part; z logits, y labels.

    loss = mean_i (log sum_v exp z_iv - z_iy)        d loss / d z_iv = (softmax(z_i)_v - [v = y_i]) / N

The gradient needs nothing that comes later, so it is computed with the logits, in forward (as in Liger Kernel, Hsu et
al. 2024): three matrix products as without pieces, and one gradient of the weight instead of N * V logits kept for
backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.worker.timing import Timeline, all_reduce

IGNORED = -100
"""The label of a token that does not count."""

CHUNK_BYTES = 32 << 20
"""Size of the fp32 logits of one chunk: larger products are not faster, smaller ones do not fit caches better."""


class ChunkedCrossEntropy:
    """Mean cross-entropy of `x @ weight^T`.

    Args:
        group: ranks among which the vocabulary is split; None where every rank has all of it.
        rows: of each rank of the group; the last one may have fewer.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, rows: int = 0) -> None:
        self._split = None if group is None else _Split(group, rows)

    def __call__(self, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        """Shape [1], in fp32, over the labels that count; 0 if none does.

        Args:
            x_ND: hidden states, the same on all ranks of the group; their gradient is, too.
            weight_VD: output matrix, or this rank's rows of it.
            labels_N: token ids of the whole vocabulary, or IGNORED.
        """
        to_local = getattr(weight_VD, "to_local", None)
        weight_VD = weight_VD if to_local is None else to_local()
        loss: Tensor = _Function.apply(x_ND, weight_VD, labels_N, self._split, torch.is_grad_enabled())
        return loss


@dataclass(frozen=True, slots=True)
class _Split:
    """A vocabulary that ranks share."""

    group: dist.ProcessGroup
    rows: int
    """Rows of each rank but perhaps the last."""


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, split: _Split | None, training: bool
    ) -> Tensor:
        # Autograd says what needs a gradient, also where gradients are off: in evaluation they would be thrown away.
        needed = (training and ctx.needs_input_grad[0], training and ctx.needs_input_grad[1])
        kind = x_ND.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_ND.dtype
        with torch.autocast(kind, enabled=False):
            loss, grad_x_ND, grad_weight_VD = _loss_and_gradients(
                x_ND.to(dtype), weight_VD.to(dtype), labels_N, split, needed=needed
            )
        kept = (
            None if grad is None else grad.to(like.dtype)
            for grad, like in ((grad_x_ND, x_ND), (grad_weight_VD, weight_VD))
        )
        ctx.save_for_backward(*kept, _counted(labels_N))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *gradients, counted = ctx.saved_tensors
        # Divided here, where the loss scale is known, and in fp32: before it, 1 / N of a probability is 0 in fp16.
        factor = grads[0].float() / counted
        grad_x_ND, grad_weight_VD = (
            None if gradient is None else (factor * gradient.float()).to(gradient.dtype) for gradient in gradients
        )
        return grad_x_ND, grad_weight_VD, None, None, None


def _loss_and_gradients(
    x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, split: _Split | None, *, needed: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Mean loss; gradients of the sum of the losses, those that are needed: a frozen weight has none."""
    num_tokens, num_rows = len(x_ND), len(weight_VD)
    first_row, group = 0, None
    if split is not None:
        num_rows, group = split.rows, split.group  # all ranks take the same pieces, and meet in each
        first_row = num_rows * dist.get_rank(group)
    grad_x_ND = torch.empty_like(x_ND) if needed[0] else None
    grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needed[1] else None
    total = torch.zeros(1, dtype=torch.float32, device=x_ND.device)
    step = max(1, CHUNK_BYTES // (4 * num_rows))
    for start in range(0, num_tokens, step):
        piece = slice(start, min(start + step, num_tokens))
        labels = labels_N[piece]
        losses, softmax_CV = _softmax(x_ND[piece] @ weight_VD.T, labels, first_row, group)
        total += losses.sum()
        if not any(needed):
            continue
        grad_CV = _logit_gradient(softmax_CV, labels, first_row).to(x_ND.dtype)
        if grad_x_ND is not None:
            torch.mm(grad_CV, weight_VD, out=grad_x_ND[piece])
        if grad_weight_VD is not None:
            grad_weight_VD += grad_CV.T @ x_ND[piece]
    if group is not None and grad_x_ND is not None:
        all_reduce(grad_x_ND, group)
    return total / _counted(labels_N), grad_x_ND, grad_weight_VD


def _counted(labels_N: Tensor) -> Tensor:
    return (labels_N != IGNORED).sum().clamp(min=1)


def _softmax(
    logits_CV: Tensor, labels_C: Tensor, first_row: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Losses [C], 0 where the label is ignored, and this rank's columns of the softmax [C, V] in fp32."""
    logits_CV = logits_CV.float()
    highest_C = logits_CV.amax(1)
    if group is not None:
        all_reduce(highest_C, group, "max")
    shifted_CV = logits_CV - highest_C.unsqueeze(1)
    mine_C, columns_C = _own_columns(labels_C, first_row, logits_CV.shape[1])
    at_label_C = shifted_CV.gather(1, columns_C.unsqueeze(1)).squeeze(1) * mine_C
    exp_CV = shifted_CV.exp_()
    sums_2C = torch.stack((exp_CV.sum(1), at_label_C))
    if group is not None:
        all_reduce(sums_2C, group)
    losses_C = (sums_2C[0].log() - sums_2C[1]) * (labels_C != IGNORED)
    return losses_C, exp_CV.div_(sums_2C[0].unsqueeze(1))


def _logit_gradient(softmax_CV: Tensor, labels_C: Tensor, first_row: int) -> Tensor:
    """Softmax - [v = y], 0 for ignored labels; overwrites its argument."""
    mine_C, columns_C = _own_columns(labels_C, first_row, softmax_CV.shape[1])
    softmax_CV.scatter_add_(1, columns_C.unsqueeze(1), -mine_C.to(softmax_CV.dtype).unsqueeze(1))
    return softmax_CV.mul_((labels_C != IGNORED).unsqueeze(1))


def _own_columns(labels_C: Tensor, first_row: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Mask of labels whose row is on this rank, and their row; any row for the others."""
    columns_C = labels_C - first_row
    mine_C = (columns_C >= 0) & (columns_C < num_rows)
    return mine_C, columns_C.clamp(0, num_rows - 1)


def loss_weights(num_items: Tensor | None, timeline: Timeline) -> Tensor | None:
    """Weight of each micro-batch of this rank [accumulation], in fp32; all ranks call it together.

    The weights make the loss of a step the mean over all items of the global batch. Micro-batches may hold different
    numbers of items: tokens with a label, boxes, answers. The mean of their means would then depend on the layout. With
    n_i items and mean loss l_i in micro-batch i, and M micro-batches of all ranks:

        loss = sum_i n_i l_i / sum_i n_i = 1/M sum_i w_i l_i        w_i = M n_i / sum_j n_j

    Accumulation and data parallelism compute 1/M sum_i x_i, so that x_i = w_i l_i gives this loss and its gradient.
    Equal counts have w_i = 1, to the last bit. torchtitan (`global_valid_tokens`) and the Trainer of transformers
    (`num_items_in_batch`) normalise in the same way.

    Ranks that share a micro-batch count it alike: each rank of `tp` and `pp` counts all items, and each of `cp` those
    of its own positions.

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
