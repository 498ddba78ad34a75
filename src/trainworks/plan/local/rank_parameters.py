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
from trainworks.record.resolved import ModelShape

__all__ = ["FULL_PRECISIONS", "RankParameters", "is_sharded", "rank_parameters"]

FULL_PRECISIONS = ("fp32", "tf32")
"""Those whose activations take 4 bytes."""

_SMALLEST_UNIT = 4 << 20
"""Parameters: blocks below are gathered together (worker.parallel.data_parallel)."""


@dataclass(frozen=True, slots=True)
class RankParameters:
    """What one pipeline rank holds of the model, cut by tp and ep."""

    layers: int
    dense: float
    """Parameters that dp_shard * cp ranks share."""
    experts: float
    """Routed experts, which dp_shard * cp * tp / ep ranks share."""
    ends: float
    """Of the dense ones, embedding and output: the root of the sharded units."""
    unit: float
    """Of the largest other unit that is gathered at once."""
    units: int
    has_first: bool
    has_last: bool

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts

    def sharded(self, layout: ResolvedLayout) -> float:
        """Those that this rank keeps of them."""
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
    """Whether FSDP2 holds the weights, by the worker's rule: it also keeps 32-bit weights beside 16-bit ones and sums
    the gradients of replicas that are cut.
    """
    if layout.offload_optimizer or layout.dp_shard * layout.cp > 1:
        return True
    narrow = precision not in FULL_PRECISIONS
    cut = layout.tp * layout.pp > 1
    return cut and (layout.dp_replicate > 1 or narrow or (shape.experts > 0 and layout.tp > 1))
