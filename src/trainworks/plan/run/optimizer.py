"""What an optimizer costs beside AdamW: bytes of its state, and the matrix products of Muon."""

from __future__ import annotations

from trainworks.config.optimizer import Optimizer
from trainworks.plan.parameters import embedding_parameters, head_matmul_parameters
from trainworks.record.model_shape import ModelShape

_BLOCK = 256
"""Weights that share a scale (`worker.update_rules`)."""
_ITERATIONS = 5
"""Newton-Schulz iterations of Muon (torch's default)."""


def moment_bytes(optimizer: Optimizer, shape: ModelShape) -> float:
    """Bytes of optimizer state per parameter, in fp32 but for 8-bit moments.

    AdamW has two moments, SGD and Lion have one. Muon has one of each hidden matrix, and AdamW's two of embedding and
    output. 8-bit moments have a scale in fp32 for each block of 256 in a row, rows being `hidden` wide.
    """
    if optimizer.name == "adamw":
        return 8.0
    if optimizer.name == "adamw-8bit":
        return 2.0 * (1.0 + 4.0 * -(-shape.hidden // _BLOCK) / shape.hidden)
    if optimizer.name != "muon":
        return 4.0
    tables = embedding_parameters(shape) + head_matmul_parameters(shape) * (not shape.tie_embeddings)
    return 4.0 + 4.0 * min(1.0, tables / shape.num_parameters)


def update_factor(optimizer: Optimizer, device: str) -> float:
    """Time of an update by that of AdamW's fused kernel, which calibrations measure; 1 for all but 8-bit moments.

    Unpacking and packing them are some twenty operations of torch, of about 150 bytes per weight where the fused kernel
    moves 28: 5 on an accelerator, which is an estimate. On two cores of a CPU 25 was measured, for matrices of 4 to 8
    million weights (November 2026).
    """
    if optimizer.name != "adamw-8bit":
        return 1.0
    return 25.0 if device == "cpu" else 5.0


def orthogonalisation_flops(optimizer: Optimizer, shape: ModelShape) -> float:
    """FLOPs of one update of Muon on one rank, which updates every matrix whole; 0 for other optimizers.

        5 iterations of X X^T, A A and B X:    5 (4 m^2 n + 2 m^3)    of each matrix m x n, m <= n

    Source: Jordan et al., "Muon" (2024).
    """
    if optimizer.name != "muon":
        return 0.0
    key = shape.kv_heads * shape.head_dim
    query, hidden, wide = shape.heads * shape.head_dim, shape.hidden, shape.feed_forward
    matrices = [(hidden, query)] * 2 + [(hidden, key)] * 2
    if not shape.experts:  # those of experts are one tensor, which AdamW updates
        matrices += [(hidden, wide)] * (3 if shape.gated_mlp else 2)
    per_block = sum(_ITERATIONS * (4 * min(m) ** 2 * max(m) + 2 * min(m) ** 3) for m in matrices)
    return float(shape.layers * per_block)
