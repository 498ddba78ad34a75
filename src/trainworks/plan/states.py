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
)
from trainworks.record.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Weights of one rank of a stage; shape [n]. Routed experts are sharded by other ranks than the rest."""

    dense: Array
    experts: Array

    @property
    def total(self) -> Array:
        """Memory of all states."""
        return self.dense + self.experts


def stage_blocks(layers: int, layouts: Layouts) -> tuple[Array, Array]:
    """Blocks of a middle stage and of the last one.

    Where the blocks do not divide evenly but with the embedding and the logits counted as one each they do, the first
    and the last stage have one less (Llama 3, BLOOM); else the first stages round up to whole chunks and the
    last down.
    """
    slots = layouts.pp * layouts.interleave
    even = layers % slots == 0
    counted = ~even & ((layers + 2) % slots == 0)
    middle = np.where(counted, (layers + 2) / slots, np.ceil(layers / slots)) * layouts.interleave
    last = np.where(counted, middle - 1, np.where(even, middle, np.floor(layers / slots) * layouts.interleave))
    return middle, last


def chunk_counts(layers: int, pp: int, most: int) -> list[int]:
    """Numbers of chunks per stage, up to `most`, that share a model's blocks evenly.

    All chunks are alike, or the first and the last have one block less, for the embedding and the logits: Llama 3 405B
    has 126 blocks in 16 stages of 8 chunks.
    """
    return [v for v in range(1, most + 1) if v == 1 or layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0]


def dense_blocks(shape: ModelShape, layouts: Layouts, blocks: Array, *, end: bool) -> Array:
    """Number of a stage's blocks without experts: they are the first of the model.

    Args:
        shape: the model.
        layouts: shape [n].
        blocks: of the stage.
        end: whether it is the last stage; else the first.
    """
    if not shape.experts:
        return blocks
    first = np.minimum(shape.dense_layers, blocks)
    last = np.maximum(0.0, shape.dense_layers - (shape.layers - blocks))
    return np.where((layouts.pp > 1) & end, last, first)


def stage_parameters(
    shape: ModelShape,
    layouts: Layouts,
    blocks: Array,
    *,
    embeddings: Array | float = 1.0,
    without_experts: Array | None = None,
) -> StageParameters:
    """Weights of one rank of a stage with so many blocks.

        dense    (blocks without experts + the others less their routed experts + embedding, output or both) / t
        experts  blocks with experts * E (3 or 2) h e / ep

    Args:
        shape: the model.
        layouts: shape [n].
        blocks: of the stage, shape [n].
        embeddings: 1 on the first stage and on the last, 2 where they are one and not tied, 0 between.
        without_experts: blocks that have none; the model's share of them where left out.
    """
    if without_experts is None:
        without_experts = blocks * num_dense_layers(shape) / shape.layers
    first, last = embedding_parameters(shape), head_matmul_parameters(shape)
    edges = np.where(np.asarray(embeddings) >= 2, first + last, embeddings * float(max(first, last)))
    dense = without_experts * dense_layer_parameters(shape) + edges
    if not shape.experts:
        return StageParameters(dense=dense / layouts.tp, experts=np.zeros_like(blocks))
    with_experts = blocks - without_experts
    routed = shape.experts * expert_parameters(shape)
    dense = dense + with_experts * (expert_layer_parameters(shape) - routed)
    return StageParameters(dense=dense / layouts.tp, experts=with_experts * routed / layouts.ep)
