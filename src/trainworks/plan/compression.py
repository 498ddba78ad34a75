"""Compressed gradients: what replicas send, and what compressing costs.

PowerSGD (Vogels et al. 2019) sends two factors of r columns in place of each matrix of m rows and n columns, r (m + n)
values, where that is less than half of m n; vectors are sent whole. Prices are those after its warm-up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainworks.plan.layouts import Array, Compression, Layouts
from trainworks.plan.parameters import (
    attention_sizes,
    embedding_parameters,
    expert_parameters,
    mlp_sizes,
    num_attention_layers,
    num_dense_layers,
    num_expert_layers,
    output_parameters,
)
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.record.model_shape import ModelShape

_FACTOR_BYTES = 4.0
"""Per value of a factor. Count: fp32."""
_LEAST_GAIN = 2
"""How many times smaller the factors have to be. Source: torch, the default of `min_compression_rate`."""
_POWERSGD_PASSES = 11
"""Passes over the gradients in fp32. Count: the error is added (3) and a copy kept (2), two products read them (2), one
writes them (1), and the new error is their difference (3); torch, `powerSGD_hook`."""


def sent_bytes(shape: ModelShape | ConvNetShape, layouts: Layouts, uncompressed: Array) -> Array:
    """Bytes per parameter that a replica sends; shape [n].

    Args:
        shape: the model.
        layouts: shape [n].
        uncompressed: bytes of a gradient that is not compressed, shape [n].
    """
    kind = layouts.gradient_compression
    if not kind.any():
        return uncompressed.astype(np.float64)
    in_16_bits = np.isin(kind, (Compression.BF16, Compression.FP16))
    rounded = np.where(in_16_bits, np.minimum(2.0, uncompressed), uncompressed)
    sent: Array = np.where(is_low_rank(layouts), _low_rank_bytes(shape, layouts), rounded)
    return sent


def gathered_bytes(shape: ModelShape, layouts: Layouts, whole: float) -> Array:
    """Bytes of a gathered parameter, on average over all but routed experts: 1 of blocks with `fp8_all_gather`, and
    `whole` of the embedding and the output; norms are neglected.
    """
    routed = shape.experts * expert_parameters(shape) * num_expert_layers(shape) if shape.experts else 0
    tables = shape.vocabulary * shape.hidden * (1 if shape.tie_embeddings else 2) / (shape.num_parameters - routed)
    return np.where(layouts.fp8_all_gather > 0, 1 - tables + tables * whole, whole)


def is_low_rank(layouts: Layouts) -> NDArray[np.bool_]:
    """True where PowerSGD compresses; shape [n]."""
    low_rank: NDArray[np.bool_] = layouts.gradient_compression == Compression.POWERSGD
    return low_rank


def compressible(layouts: Layouts) -> NDArray[np.bool_] | slice:
    """The layouts whose gradients can be compressed as they say: PowerSGD with plain replicas alone."""
    low_rank = is_low_rank(layouts)
    if not low_rank.any():
        return slice(None)
    plain: NDArray[np.bool_] = (layouts.zero == 0) & (layouts.cp * layouts.tp * layouts.pp == 1)
    return plain | ~low_rank


def compression_s(parameters: Array, layouts: Layouts, memory_bytes_per_s: Array | float) -> Array:
    """Seconds per step of PowerSGD's kernels, which read and write the gradients; rounding is part of the copy."""
    seconds: Array = is_low_rank(layouts) * _POWERSGD_PASSES * 4.0 * parameters / memory_bytes_per_s
    return seconds


def error_bytes(parameters: Array, layouts: Layouts) -> Array:
    """Memory of what PowerSGD did not send, which it adds to the next gradients."""
    kept: Array = is_low_rank(layouts) * 4.0 * parameters
    return kept


def _low_rank_bytes(shape: ModelShape | ConvNetShape, layouts: Layouts) -> Array:
    matrices, total = _matrices(shape), shape.num_parameters
    whole = total - sum(count * rows * columns for count, rows, columns in matrices)
    ranks, of_layout = np.unique(layouts.powersgd_rank, return_inverse=True)
    sent = [whole + sum(count * _values(rows, columns, rank) for count, rows, columns in matrices) for rank in ranks]
    per_parameter: Array = _FACTOR_BYTES * np.array(sent)[of_layout] / total
    return per_parameter


def _values(rows: int, columns: int, rank: float) -> float:
    factors = min(rank, rows, columns) * (rows + columns)
    return factors if _LEAST_GAIN * factors < rows * columns else rows * columns


def _matrices(shape: ModelShape | ConvNetShape) -> list[tuple[int, int, int]]:
    """Number, rows and columns of a model's large weights; the experts of a layer are one matrix with a row each."""
    if isinstance(shape, ConvNetShape):
        kernels = [(each, each.in_channels * each.kernel_size**2) for each in shape.convolutions]
        classifier = (1, shape.classes, shape.features)
        return [*((each.count, each.out_channels, columns) for each, columns in kernels), classifier]
    h = shape.hidden
    found = [(1, embedding_parameters(shape) // h, h), (1, output_parameters(shape) // h, h)]
    found += [(num_attention_layers(shape), rows, columns) for columns, rows in attention_sizes(shape).values()]
    if (diffusion := shape.diffusion) is not None:
        for name, (columns, rows) in attention_sizes(shape).items():
            of_text = diffusion.text_outputs if name == "o_proj" else diffusion.text_layers
            found.append((diffusion.cross_layers + of_text, rows, columns))
        found += [(diffusion.text_outputs, rows, columns) for columns, rows in mlp_sizes(shape).values()]
        found.append((shape.layers, diffusion.modulation // shape.layers // h, h))
    if (mixer := shape.state_space) is not None:
        found += [(mixer.layers, mixer.projected, h), (mixer.layers, h, mixer.inner)]
    found += [(num_dense_layers(shape), rows, columns) for columns, rows in mlp_sizes(shape).values()]
    layers, experts = num_expert_layers(shape), (shape.experts, (shape.expert_latent or h) * shape.expert_feed_forward)
    shared = shape.shared_feed_forward, h
    return [
        *found,
        (layers, shape.experts, h),
        *((layers, *each) for each in (experts, shared) for _ in mlp_sizes(shape)),
    ]
