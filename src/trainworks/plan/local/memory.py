"""Memory of the fullest rank, term by term.

Symbols: N parameters, s dp_shard, b micro-batch, T sequence length, e bytes of an activation (4 in fp32, 2 under
autocast), and those of `model_shape`. Weights, gradients and AdamW's two moments are fp32.
"""

from __future__ import annotations

from trainworks.plan.model_shape import block_matmul_parameters
from trainworks.record.resolved import MemoryTerms, ModelShape
from trainworks.spec.layout import ResolvedLayout

__all__ = ["activation_bytes_per_token", "checkpoint_bytes", "predict_memory"]


def predict_memory(
    shape: ModelShape, layout: ResolvedLayout, *, sequence_length: int, precision: str, baseline_bytes: int
) -> MemoryTerms:
    """Peak resident memory of one rank.

        weights      4 N / s, and with shards the largest gathered unit, and under autocast a 16-bit copy
        gradients    4 N / s
        optimizer    8 N / s
        activations  L b T a, a from `activation_bytes_per_token`
        logits       b T V (2 e + 8): output and its gradient, fp32 log-softmax and its gradient
        checkpoint   12 N / s: the copy that is written while training goes on

    Leaves out fragmentation of the allocator; the largest difference to a measured run is there.
    """
    n = shape.num_parameters
    tokens = layout.micro_batch * sequence_length
    element = 4 if precision == "fp32" else 2
    copies = 0 if precision == "fp32" else 2 * n
    gathered = _largest_unit(shape) * (4 if precision == "fp32" else 2) * 2 if layout.dp_shard > 1 else copies
    return MemoryTerms(
        baseline_bytes=baseline_bytes,
        weights_bytes=4 * n // layout.dp_shard + gathered,
        gradients_bytes=4 * n // layout.dp_shard,
        optimizer_bytes=8 * n // layout.dp_shard,
        activations_bytes=round(shape.layers * tokens * activation_bytes_per_token(shape, precision)),
        logits_bytes=tokens * shape.vocabulary * (2 * element + 8),
        checkpoint_bytes=12 * n // layout.dp_shard,
    )


def activation_bytes_per_token(shape: ModelShape, precision: str) -> float:
    """What one block keeps for its backward, per token: 4 * 8 h + e * (2 h + 3 H d + 4 K d + 4 f) without fusion.

    Residual stream and norms stay in fp32 (input, normalised and scaled, of two norms); matrix inputs, queries, keys
    and values before and after rotation, the attention output and the MLP's intermediates are in e bytes.
    """
    element = 4 if precision == "fp32" else 2
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mlp = (4 if shape.gated_mlp else 3) * shape.feed_forward
    return 4 * 8 * shape.hidden + element * (2 * shape.hidden + 3 * width + 4 * kv_width + mlp)


def checkpoint_bytes(shape: ModelShape) -> int:
    """One checkpoint of all ranks: weights and AdamW's two moments, 12 N."""
    return 12 * shape.num_parameters


def _largest_unit(shape: ModelShape) -> int:
    """Parameters that FSDP2 gathers at once: a block, or the embeddings, which belong to the root."""
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tie_embeddings else 2)
    return max(block_matmul_parameters(shape), embeddings)
