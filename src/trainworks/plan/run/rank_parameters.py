"""Parameters of one rank of the worker, before data-parallel sharding.

Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.config.layout import ResolvedLayout, stage_layers
from trainworks.plan.parameters import (
    dense_layer_parameters,
    embedding_parameters,
    expert_layer_parameters,
    expert_parameters,
    output_parameters,
)
from trainworks.record.model_shape import ModelShape

FULL_PRECISIONS = ("fp32", "tf32")
"""Precisions whose activations take 4 bytes."""

_SMALLEST_UNIT = 4 << 20
"""Parameters: blocks below are gathered together (worker.parallel.data_parallel)."""


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters of one pipeline rank, cut by tp and ep."""

    layers: int
    dense: float
    """Parameters that dp_shard * cp ranks share."""
    experts: float
    """Routed experts, which dp_shard * cp * tp / ep ranks share."""
    ends: float
    """Dense parameters of embedding and output: the root of the sharded units."""
    unit: float
    """Parameters of the largest other unit that is gathered at once."""
    units: int
    has_first: bool
    has_last: bool

    @property
    def total(self) -> float:
        """Number of all parameters."""
        return self.dense + self.experts

    def sharded(self, layout: ResolvedLayout) -> float:
        """Parameters that this rank keeps after sharding."""
        shards = layout.dp_shard * layout.cp
        return self.dense / shards + self.experts / max(1, shards * layout.tp // layout.ep)


def rank_parameters(shape: ModelShape, layout: ResolvedLayout, pp_rank: int) -> RankParameters:
    """Embedding on the first rank, output on the last; a tied matrix on both."""
    stages = stage_layers(layout, shape.layers)
    mine = range(pp_rank, len(stages), layout.pp)
    layers = [layer for stage in mine for layer in stages[stage]]
    has_first, has_last = pp_rank == 0, pp_rank == layout.pp - 1
    with_experts = sum(layer >= shape.dense_layers for layer in layers) if shape.experts else 0
    routed = shape.experts * (expert_parameters(shape) + shape.small.expert) if shape.experts else 0
    around = expert_layer_parameters(shape) - routed if shape.experts else 0
    plain = dense_layer_parameters(shape)
    ends = embedding_parameters(shape) * has_first + (output_parameters(shape) + shape.small.model) * has_last
    if shape.tie_embeddings and has_last and not has_first:
        ends += shape.hidden * shape.vocabulary
    dense = ((len(layers) - with_experts) * plain + with_experts * around + ends) / layout.tp
    block = (around if with_experts else plain) / layout.tp
    joined = max(1, min(len(layers), int(_SMALLEST_UNIT // (block + routed / layout.ep))))
    return RankParameters(
        layers=len(layers),
        dense=dense,
        experts=with_experts * routed / layout.ep,
        ends=ends / layout.tp,
        unit=max(joined * block, routed / layout.ep),
        units=-(-len(layers) // joined) + with_experts,
        has_first=has_first,
        has_last=has_last,
    )


def is_sharded(shape: ModelShape, layout: ResolvedLayout, precision: str) -> bool:
    """True if FSDP2 holds the weights, by the worker's rule.

    FSDP2 also keeps 32-bit weights with 16-bit ones and sums the gradients of replicas with cut weights.
    """
    if layout.offload_optimizer or layout.dp_shard * layout.cp > 1:
        return True
    narrow = precision not in FULL_PRECISIONS
    cut = layout.tp * layout.pp > 1
    return cut and (layout.dp_replicate > 1 or narrow or (shape.experts > 0 and layout.tp > 1))
