"""Activations that the worker's blocks keep for backward, and memory of its loss, from the tensors autograd saves.

Symbols: those of `plan.parameters`; t tp, e bytes of a value in products, r bytes of the residual stream, M tokens of
a micro-batch on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.local.rank_parameters import FULL_PRECISIONS
from trainworks.record.model_shape import ModelShape

__all__ = ["BlockBytes", "block_bytes", "loss_bytes", "micro_batches_under_way"]

_CHUNK_BYTES = 32 << 20
"""Bytes of fp32 logits at a time (worker.loss)."""


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Activation memory of one block, per token of a rank."""

    whole: float
    """All that its backward uses."""
    kept: float
    """Share of that which the layout's recompute keeps from forward to backward."""
    passing: float
    """Gradients inside the block at its widest."""


def block_bytes(shape: ModelShape, layout: ResolvedLayout, *, precision: str, sharded: bool) -> BlockBytes:
    """Activation memory of a block with gates and RMSNorm (llama), or without and with LayerNorm (gpt2), per token.

        norms     16 h or 4 r h, / t with sequence parallelism: input and normalised input, in fp32 by RMSNorm
        products  e h * (2 or 1 inputs), 5 or 4 where autocast makes a copy for each product
        heads     e (2 H + 2 K) d / t + 4 H / t: queries, keys, values, output, log-sum-exp; e H d / t more under cp
        MLP       e 4 f / t, e 2 f / t
        experts   e k (4 f + 3 h) / t where tp cuts the positions, and 2 k h more where tokens travel

    The residual stream is in 16 bits with shards, in 32 under autocast. `selective` keeps the block's input and the
    outputs of products and attention, `full` the input.
    """
    narrow = precision not in FULL_PRECISIONS
    e = 2 if narrow else 4
    stream = e if sharded else 4
    split = layout.tp if layout.sequence_parallel else 1
    width, kv_width = shape.heads * shape.head_dim / layout.tp, shape.kv_heads * shape.head_dim / layout.tp
    norms = (16 if shape.gated_mlp else (2 * stream if narrow else 8)) * shape.hidden / split
    copied = (5 if shape.gated_mlp else 4) if narrow and not sharded else 2
    inputs = copied * e * shape.hidden
    heads = e * (2 * width + 2 * kv_width + (width if layout.cp > 1 else 0)) + 4 * shape.heads / layout.tp
    mlp, products_of_mlp, passing = _mlp(shape, layout, e=e, expert_bytes=stream)
    total = norms + inputs + heads + mlp
    at_rest = stream * shape.hidden / split
    chosen = {
        "none": total,
        "full": at_rest,
        "selective": 2 * at_rest + e * (2 * width + 2 * kv_width) + products_of_mlp,
    }
    return BlockBytes(whole=total, kept=chosen[layout.recompute], passing=passing + 2 * stream * shape.hidden / split)


def _mlp(shape: ModelShape, layout: ResolvedLayout, *, e: int, expert_bytes: int) -> tuple[float, float, float]:
    """Kept by the MLP; of that the outputs of products; gradients at its widest."""
    if not shape.experts:
        width = shape.feed_forward / layout.tp
        if shape.gated_mlp:
            return 4 * e * width, e * (2 * width + shape.hidden), 2 * e * width
        return 2 * e * width, e * (width + shape.hidden), e * width
    routed = shape.experts_per_token / layout.tp
    travel = 2 * shape.hidden if layout.ep > 1 else 0
    expert_activations = expert_bytes * routed * (4 * shape.expert_feed_forward + 3 * shape.hidden + travel)
    products = expert_bytes * routed * (2 * shape.expert_feed_forward + shape.hidden)
    return expert_activations, products, 2 * expert_bytes * routed * shape.expert_feed_forward


def loss_bytes(shape: ModelShape, layout: ResolvedLayout, *, sequence_length: int, precision: str) -> float:
    """Memory of the chunked cross-entropy.

    The larger of its first chunk (8 bytes per logit: logits and exponentials) and of a later one (4 more: the previous
    chunk), in 16 bits 2 more; the gradients of hidden states and of the output matrix, and one product added to the
    latter.
    """
    e = 4 if precision in FULL_PRECISIONS else 2
    rows = shape.vocabulary / layout.tp
    tokens = layout.micro_batch * sequence_length / layout.cp
    piece = min(tokens, max(1.0, _CHUNK_BYTES // (4 * rows)))
    per_logit = (8 if piece == tokens else 12) + (0 if e == 4 else 2)
    matrix = rows * shape.hidden
    return max(per_logit * piece * rows + 4 * matrix, 4 * piece * rows + (4 + e) * matrix) + e * tokens * shape.hidden


def micro_batches_under_way(layout: ResolvedLayout, pp_rank: int) -> float:
    """Forward passes of a whole pipeline rank whose backward has not run, at most.

    1F1B: min(m, p - i). With v chunks, in chunks: (v - 1) p + 2 (p - 1 - i) + 1 warm up, at most m v; with zero
    bubble v p, because activations wait for the gradients of the weights
    (torch.distributed.pipelining.schedules, `get_rank_warmup_ops`).
    """
    p, v, m = layout.pp, layout.interleave, layout.grad_accum_steps
    if layout.zero_bubble:
        return min(m * v, v * p) / v
    if v == 1:
        return min(m, p - pp_rank)
    return min(m * v, (v - 1) * p + 2 * (p - 1 - pp_rank) + 1) / v
