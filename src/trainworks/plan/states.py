"""Parameters that a rank holds, before data-parallel sharding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.parameters import (
    dense_layer_parameters,
    embedding_parameters,
    expert_layer_parameters,
    expert_parameters,
    head_matmul_parameters,
    num_dense_layers,
    num_expert_layers,
)
from trainworks.record.resolved import ModelShape

__all__ = ["StageParameters", "stage_blocks", "stage_parameters"]


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Weights of one rank of a stage; shape [n]. Routed experts are sharded by other ranks than the rest."""

    dense: Array
    experts: Array

    @property
    def total(self) -> Array:
        """All of them."""
        return self.dense + self.experts


def stage_blocks(layers: int, layouts: Layouts) -> tuple[Array, Array]:
    """Blocks of a middle stage and of the last one.

    Where the blocks do not divide evenly but with the embedding and the logits counted as one each they do, the first
    and the last stage have one less (Llama 3, BLOOM); else the largest stages round up to whole chunks.
    """
    slots = layouts.pp * layouts.interleave
    even = layers % slots == 0
    counted = ~even & ((layers + 2) % slots == 0)
    middle = np.where(counted, (layers + 2) / slots, np.ceil(layers / slots)) * layouts.interleave
    last = np.where(counted, middle - 1, np.where(even, middle, layers - middle * (layouts.pp - 1)))
    return middle, np.clip(last, 0, middle)


def stage_parameters(
    shape: ModelShape, layouts: Layouts, blocks: Array, *, embeddings: Array | float = 1.0
) -> StageParameters:
    """Weights of one rank of a stage with so many blocks.

        dense    blocks * (average block less its routed experts) / t + embeddings * V h / t
        experts  blocks * E (3 or 2) h e / ep, averaged over blocks with and without experts

    Args:
        shape: the model.
        layouts: shape [n].
        blocks: of the stage, shape [n].
        embeddings: 1 on the first stage and on the last, 2 where they are one and not tied, 0 between.
    """
    routed = (
        num_expert_layers(shape) * shape.experts * expert_parameters(shape) / shape.layers if shape.experts else 0.0
    )
    layers = num_dense_layers(shape) * dense_layer_parameters(shape)
    if shape.experts:
        layers += num_expert_layers(shape) * expert_layer_parameters(shape)
    average = layers / shape.layers - routed
    edge = max(embedding_parameters(shape), head_matmul_parameters(shape))
    return StageParameters(
        dense=(blocks * average + embeddings * edge) / layouts.tp,
        experts=np.asarray(blocks * routed / layouts.ep),
    )
