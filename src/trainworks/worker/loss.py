"""Cross-entropy from hidden states, a piece of the tokens at a time: the logits of a batch never exist together.

Symbols: N tokens, D hidden, V vocabulary, of which this rank may have a part; z logits, y labels.

    loss = mean_i (log sum_v exp z_iv - z_iy)        d loss / d z_iv = (softmax(z_i)_v - [v = y_i]) / N

The gradient needs nothing that comes later, so it is computed with the logits, in forward (as in Liger Kernel, Hsu et
al. 2024): three matrix products as without pieces, and one gradient of the weight instead of N * V logits kept for
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
ACCELERATOR_CHUNK_BYTES = 512 << 20
"""The same on an accelerator. Each chunk reads the output matrix and adds to its gradient, and a product of few rows
waits for that: with 32 MiB and 32,768 tokens of vocabulary a chunk has 256 rows."""


class ChunkedCrossEntropy:
    """Mean cross-entropy of `x @ weight^T`.

    The ranks of `group` have `rows` of the vocabulary each, the last one perhaps fewer; without a group every rank has
    all.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, rows: int = 0) -> None:
        self._split = None if group is None else _Split(group, rows)
        self._of_chunk: _OfChunk = _loss_and_gradient

    def compile(self) -> None:
        """Let torch.compile join the passes over the logits of a chunk, from nine to three; not where ranks share the
        vocabulary, because they meet between these passes.
        """
        if self._split is None:
            self._of_chunk = torch.compile(_loss_and_gradient)

    def __call__(self, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        """Shape [1], in fp32, over the labels that count; 0 if none does.

        Args:
            x_ND: hidden states, the same on all ranks of the group; their gradient is, too.
            weight_VD: output matrix, or this rank's rows of it.
            labels_N: token ids of the whole vocabulary, or IGNORED.
        """
        training = torch.is_grad_enabled()
        loss: Tensor = _Function.apply(x_ND, local_part(weight_VD), labels_N, self._split, training, self._of_chunk)
        return loss

    def log_probabilities(self, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        """Log-probability of each label [N], in fp32, 0 where it is ignored; arguments as for the mean.

        Its gradient comes from what is computed with it, so backward computes the logits again.
        """
        values: Tensor = _LogProbabilities.apply(x_ND, local_part(weight_VD), labels_N, self._split)
        return values

    @torch.no_grad()
    def predictions(self, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, None]:
        """Likeliest token [N], log-probability of each label [N], and no logits; arguments as for the mean."""
        dtype, found = dtype_of_products(x_ND), []
        first_row, group = (0, None) if self._split is None else self._split.of_rank()
        with torch.autocast(x_ND.device.type, enabled=False):
            weight_VD = local_part(weight_VD).to(dtype)
            num_rows = len(weight_VD) if self._split is None else self._split.rows
            for piece in _pieces(x_ND, num_rows):
                logits_CV = x_ND[piece].to(dtype) @ weight_VD.T
                losses_C, _ = _softmax(logits_CV, labels_N[piece], first_row, group)
                found.append((_likeliest(logits_CV, first_row, group), -losses_C))
        predictions, log_probabilities = (torch.cat(values) for values in zip(*found, strict=True))
        return predictions, log_probabilities, None


def predictions_of_logits(logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Likeliest entry and log-probability of each label [N], 0 where it is ignored, and the logits in fp32."""
    logits_NV = logits_NV.float()
    losses_N = torch.nn.functional.cross_entropy(logits_NV, labels_N, ignore_index=IGNORED, reduction="none")
    return logits_NV.argmax(1), -losses_N, logits_NV


def local_part(weight: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; any other tensor as it is."""
    to_local = getattr(weight, "to_local", None)
    return weight if to_local is None else to_local()


@dataclass(frozen=True, slots=True)
class _Split:
    """A vocabulary that ranks share."""

    group: dist.ProcessGroup
    rows: int
    """Rows of each rank but perhaps the last."""

    def of_rank(self) -> tuple[int, dist.ProcessGroup]:
        """First row of this rank, and the group; all ranks take the same pieces, and meet in each."""
        return self.rows * dist.get_rank(self.group), self.group


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        split: _Split | None,
        training: bool,
        of_chunk: _OfChunk,
    ) -> Tensor:
        # Autograd says what needs a gradient, also where gradients are off: in evaluation they would be thrown away.
        needed = (training and ctx.needs_input_grad[0], training and ctx.needs_input_grad[1])
        dtype = dtype_of_products(x_ND)
        with torch.autocast(x_ND.device.type, enabled=False):
            losses, grad_x_ND, grad_weight_VD = _losses_and_gradients(
                x_ND.to(dtype), weight_VD.to(dtype), labels_N, split, needed=needed, of_chunk=of_chunk
            )
            zero = torch.zeros(1, dtype=torch.float32, device=x_ND.device)
            loss = sum((losses_C.sum() for losses_C in losses), zero) / _counted(labels_N)
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
        return grad_x_ND, grad_weight_VD, None, None, None, None


class _LogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, split: _Split | None) -> Tensor:
        ctx.save_for_backward(x_ND, weight_VD, labels_N)
        ctx.split, ctx.dtype = split, dtype_of_products(x_ND)
        with torch.autocast(x_ND.device.type, enabled=False):
            losses, _, _ = _losses_and_gradients(
                x_ND.to(ctx.dtype),
                weight_VD.to(ctx.dtype),
                labels_N,
                split,
                needed=(False, False),
                of_chunk=_loss_and_gradient,
            )
        return -torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_VD, labels_N = ctx.saved_tensors
        with torch.autocast(x_ND.device.type, enabled=False):
            _, grad_x_ND, grad_weight_VD = _losses_and_gradients(
                x_ND.to(ctx.dtype),
                weight_VD.to(ctx.dtype),
                labels_N,
                ctx.split,
                needed=ctx.needs_input_grad[:2],
                of_chunk=_loss_and_gradient,
                factors_N=-grads[0].float(),
            )
        return (
            None if grad_x_ND is None else grad_x_ND.to(x_ND.dtype),
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None,
            None,
        )


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Type in which autocast would multiply `x`, for products that it does not know."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _losses_and_gradients(
    x_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    split: _Split | None,
    *,
    needed: tuple[bool, bool],
    of_chunk: _OfChunk,
    factors_N: Tensor | None = None,
) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """Losses of tokens, a piece after the other; gradients of their sum, or of the sum of each times its factor.

    Only the gradients that are needed are computed: a frozen weight has none.
    """
    num_rows = len(weight_VD)
    first_row, group = 0, None
    if split is not None:
        num_rows, (first_row, group) = split.rows, split.of_rank()
    grad_x_ND = torch.empty_like(x_ND) if needed[0] else None
    grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needed[1] else None
    losses = []
    for piece in _pieces(x_ND, num_rows):
        labels = labels_N[piece]
        logits_CV = x_ND[piece] @ weight_VD.T
        if not any(needed):
            losses.append(_softmax(logits_CV, labels, first_row, group)[0])
            continue
        factors_C = None if factors_N is None else factors_N[piece]
        losses_C, grad_CV = of_chunk(logits_CV, labels, factors_C, first_row, group)
        losses.append(losses_C)
        if grad_x_ND is not None:
            torch.mm(grad_CV, weight_VD, out=grad_x_ND[piece])
        if grad_weight_VD is not None:
            grad_weight_VD += grad_CV.T @ x_ND[piece]
    if group is not None and grad_x_ND is not None:
        all_reduce(grad_x_ND, group)
    return losses, grad_x_ND, grad_weight_VD


def _pieces(x_ND: Tensor, num_rows: int) -> Iterator[slice]:
    """Tokens whose logits exist together, of a vocabulary of which each rank has `num_rows`."""
    step = max(1, (CHUNK_BYTES if x_ND.device.type == "cpu" else ACCELERATOR_CHUNK_BYTES) // (4 * num_rows))
    return (slice(start, min(start + step, len(x_ND))) for start in range(0, len(x_ND), step))


def _likeliest(logits_CV: Tensor, first_row: int, group: dist.ProcessGroup | None) -> Tensor:
    """Entry of the largest logit of all ranks [C]; of equal ones of several ranks the first."""
    highest_C, column_C = logits_CV.float().max(1)
    if group is None:
        return column_C
    of_all_C = highest_C.clone()
    all_reduce(of_all_C, group, "max")
    lowest = torch.iinfo(torch.int64).min
    found_C = torch.where(highest_C == of_all_C, -(first_row + column_C), lowest)
    all_reduce(found_C, group, "max")
    return -found_C


def _loss_and_gradient(
    logits_CV: Tensor, labels_C: Tensor, factors_C: Tensor | None, first_row: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Losses [C], and the gradient of the sum of each times its factor, in the type of the logits."""
    losses_C, softmax_CV = _softmax(logits_CV, labels_C, first_row, group)
    # The gradient is softmax - [v = y], 0 for ignored labels; it takes the place of the softmax.
    mine_C, columns_C = _own_columns(labels_C, first_row, softmax_CV.shape[1])
    softmax_CV.scatter_add_(1, columns_C.unsqueeze(1), -mine_C.to(softmax_CV.dtype).unsqueeze(1))
    grad_CV = softmax_CV.mul_((labels_C != IGNORED).unsqueeze(1))
    if factors_C is not None:
        grad_CV *= factors_C.unsqueeze(1)
    return losses_C, grad_CV.to(logits_CV.dtype)


_OfChunk = Callable[[Tensor, Tensor, Tensor | None, int, dist.ProcessGroup | None], tuple[Tensor, Tensor]]
"""`_loss_and_gradient`, or its compiled form."""


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


def spread_nonfinite(loss: Tensor, scale: Tensor | float) -> Tensor:
    """`loss * scale`, whose every gradient is NaN if the loss is not finite: scale + 0 * loss is scale, or NaN.

    A loss of infinity alone may have finite gradients: those of cross-entropy are softmax(z) - onehot.
    """
    return loss * (loss.detach() * 0.0 + scale)
