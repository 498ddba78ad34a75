"""What an optimizer costs beside AdamW: bytes of its state, and the products, exchanges and memory of Muon."""

from __future__ import annotations

import numpy as np

from trainworks.config.optimizer import Optimizer
from trainworks.plan.collectives import collective_s
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.parameters import embedding_parameters, head_matmul_parameters, stage_blocks
from trainworks.plan.rates import Rates
from trainworks.record.model_shape import ModelShape

_BLOCK = 256
"""Weights that share a scale. Source: `worker.update_rules`."""
_ITERATIONS = 5
"""Newton-Schulz iterations of Muon. Source: torch's default."""


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


def orthogonalisation_s(
    optimizer: Optimizer, shape: ModelShape, layouts: Layouts, rates: Rates, precision: str
) -> Array:
    """Seconds of one update of Muon beside AdamW's, shape [n]; 0 for other optimizers.

    W ranks share weights: shards, and those of tp. They take W of a stage's K matrices m x n at a time, m <= n, and
    each rank has one of them, so that a rank computes ceil(K / W):

        products     5 iterations of X X^T, A A and B X:    5 (4 m^2 n + 2 m^3) FLOPs, in fp32 or 16 bits
        exchanges    two all-to-alls of e m n bytes, where e is 2 or 4; none where W is 1

    Sources: Jordan et al. 2024, "Muon"; Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.3.
    """
    if optimizer.name != "muon":
        return np.zeros(len(layouts))
    matrices = _hidden_matrices(shape)
    blocks, _ = stage_blocks(shape.layers, layouts)
    shared = np.maximum(1.0, layouts.dp_shard * layouts.cp * layouts.tp)
    turns = np.ceil(blocks * len(matrices) / shared)
    flops = sum(_ITERATIONS * (4 * m**2 * n + 2 * m**3) for m, n in matrices) / len(matrices)
    size_bytes = _exchanged_bytes(precision) * sum(m * n for m, n in matrices) / len(matrices)
    ones = np.ones(len(layouts))
    exchanged_s = collective_s("all_to_all", size_bytes * ones, shared, ones, rates.links)
    seconds: Array = turns * (flops / rates.wide.product_flops_per_s + 2 * exchanged_s)
    return seconds


def orthogonalisation_bytes(optimizer: Optimizer, shape: ModelShape, precision: str) -> float:
    """Bytes on a rank while Muon computes its largest matrix, when activations are gone; 0 for other optimizers.

    e (5 m n + 2 m^2): the update or the parts of several, what came of others, two iterates and their input, and two
    Gram matrices.
    """
    if optimizer.name != "muon":
        return 0.0
    return _exchanged_bytes(precision) * max(5.0 * m * n + 2.0 * m**2 for m, n in _hidden_matrices(shape))


def _exchanged_bytes(precision: str) -> float:
    return 4.0 if precision == "fp32" else 2.0


def _hidden_matrices(shape: ModelShape) -> list[tuple[int, int]]:
    """Those of a block, the smaller size first; those of experts are one tensor, which AdamW updates."""
    key = shape.kv_heads * shape.head_dim
    query, hidden, wide = shape.heads * shape.head_dim, shape.hidden, shape.feed_forward
    matrices = [(hidden, query)] * 2 + [(hidden, key)] * 2
    if not shape.experts:
        matrices += [(hidden, wide)] * (3 if shape.gated_mlp else 2)
    return [(min(each), max(each)) for each in matrices]
