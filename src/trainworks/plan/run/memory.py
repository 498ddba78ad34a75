"""Memory of the fullest rank of a run: the planner's terms for the worker's software, and what the allocator adds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from trainworks.config.software import AttentionTask
from trainworks.plan.activations import activation_bytes, element_bytes, stream_bytes
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.parameters import (
    dense_blocks,
    dense_layer_parameters,
    expert_layer_parameters,
    expert_parameters,
    layers_parameters,
    num_expert_layers,
    stage_blocks,
    stage_parameters,
)
from trainworks.plan.software import Software, worker_software
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape

FULL_PRECISIONS = ("fp32", "tf32")
"""Precisions whose activations take 4 bytes."""
_UNUSED_SHARE = 0.75
"""Bytes of glibc's heap that lie idle per byte of short-lived tensors: freed memory of their size cannot serve an
aligned request of the same size. Measured over 60 steps (docs/reference/local-accuracy.md)."""
_MAPPED_BYTES = 32 << 20
"""Larger tensors are mapped on their own and given back (MALLOC_MMAP_THRESHOLD_ of the ranks)."""
_UNIT_BUFFERS = 4
"""Buffers of FSDP2 on a CPU for the root and one unit: gathered message, weights, gradients, message of gradients.
They are larger than the gaps of the heap."""
_SMALLEST_UNIT = 4 << 20
"""Parameters: blocks below are gathered together (worker.parallel.data_parallel)."""


@dataclass(frozen=True, slots=True)
class RunMemories(Memories):
    """Bytes of the fullest rank, resident on a CPU and allocated on an accelerator; shape [n]."""

    checkpoint_bytes: Array
    """The copy written while training continues."""

    @property
    def total_bytes(self) -> Array:
        """What the rank needs."""
        return self.baseline_bytes + self.allocated_bytes + self.allocator_bytes + self.checkpoint_bytes

    def device_bytes(self) -> Array:
        """The same."""
        return self.total_bytes

    def terms(self, index: int = 0) -> MemoryTerms:
        """Memory of one layout in whole bytes; its terms have their own columns."""
        return MemoryTerms(**{name: round(float(getattr(self, name)[index])) for name in MemoryTerms.model_fields})


def run_memories(
    shape: ModelShape,
    layouts: Layouts,
    *,
    sequence_length: int,
    precision: str,
    baseline_bytes: int,
    device: str = "cpu",
    dropout: float = 0.0,
    moment_bytes: float = 8.0,
    autocast: bool = True,
    attention: AttentionTask | None = None,
) -> RunMemories:
    """Peak of the fullest rank of every layout.

    The terms of `plan.memory`, and

        activations  and of every micro-batch under way the mask of attention
        allocator    on an accelerator its fragmentation, on a CPU `_idle_heap_bytes`
        checkpoint   12 N / s with AdamW: the copy written while training continues, on a CPU

    On a CPU the optimizer and the activations are already in the host's memory, so offloading them saves nothing.
    """
    software = replace(worker_software(device, dropout=dropout, moment_bytes=moment_bytes), autocast=autocast)
    layouts = effective_layouts(shape, layouts, precision, device)
    mask = np.zeros(len(layouts))
    if attention is not None:
        software = replace(software, copied_heads=attention.copied_heads(shape.heads, shape.kv_heads))
        each = np.array([attention.mask_bytes(rows) for rows in layouts.micro_batch])
        mask = each * np.minimum(layouts.accum, layouts.pp)
    predict = partial(predict_memories, shape, layouts, sequence_length=sequence_length, precision=precision)
    memories = predict(software=software, context_bytes=float(baseline_bytes))
    memories = memories.with_terms(activations_bytes=memories.activations_bytes + mask)
    if device == "cpu":
        rank = _largest_rank(shape, layouts)
        idle = _idle_heap_bytes(shape, layouts, rank, memories, sequence_length, precision, software)
        copy = (4.0 + moment_bytes) * rank.sharded
    else:
        idle = memories.allocator_bytes
        copy = np.zeros(len(layouts))
    terms = {term.name: getattr(memories, term.name) for term in fields(Memories)}
    return RunMemories(**(terms | {"allocator_bytes": idle}), checkpoint_bytes=copy)


def checkpoint_bytes(num_trained: int, moment_bytes: float = 8.0) -> int:
    """One checkpoint of all ranks: trained weights and optimizer state, 12 bytes of each with AdamW's two moments."""
    return round((4 + moment_bytes) * num_trained)


def effective_layouts(shape: ModelShape, layouts: Layouts, precision: str, device: str) -> Layouts:
    """The layouts as memory sees them: zero is that of FSDP2, by the worker's rule; no offloading where it saves
    nothing.

    FSDP2 holds the weights that are sharded, those whose optimizer waits on the host, 32-bit weights beside 16-bit
    ones and replicas of cut weights, whose gradients it sums.
    """
    replicas = layouts.dp / layouts.dp_shard
    cut = layouts.tp * layouts.pp > 1
    held = (layouts.offload_optimizer > 0) | (layouts.dp_shard * layouts.cp > 1)
    held |= cut & ((replicas > 1) | (precision not in FULL_PRECISIONS) | ((shape.experts > 0) & (layouts.tp > 1)))
    on_device = float(device != "cpu")
    return replace(
        layouts,
        zero=np.where(held, np.where(layouts.zero > 0, layouts.zero, 3.0), 0.0),
        offload=layouts.offload * on_device,
        offload_optimizer=layouts.offload_optimizer * on_device,
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """The pipeline rank with most parameters: the first, with the embedding, or the last, with the output."""

    blocks: Array
    sharded: Array
    """Parameters that it keeps after sharding."""
    ends: Array
    """Parameters of embedding and output: the root of the sharded units."""
    unit: Array
    """Parameters of the largest other unit that is gathered at once."""


def _largest_rank(shape: ModelShape, layouts: Layouts) -> _Rank:
    alone = layouts.pp == 1
    tables = np.where(alone & (not shape.tie_embeddings), 2.0, 1.0)
    middle, last = stage_blocks(shape.layers, layouts)
    blocks = np.maximum(np.where(alone, last, middle), last)
    dense = dense_blocks(shape, layouts, blocks, end=True)
    held = stage_parameters(shape, layouts, blocks, embeddings=tables, without_experts=dense)
    shards = layouts.dp_shard * layouts.cp
    ends = stage_parameters(shape, layouts, np.zeros_like(blocks), embeddings=tables).total
    routed = shape.experts * expert_parameters(shape) / layouts.ep if shape.experts else np.zeros_like(blocks)
    around = expert_layer_parameters(shape) - routed * layouts.ep if shape.experts else dense_layer_parameters(shape)
    if shape.state_space is not None:  # of an average layer
        routed = routed * (num_expert_layers(shape) / shape.layers)
        around = layers_parameters(shape) / shape.layers - routed * layouts.ep
    block = around / layouts.tp
    joined = np.clip(_SMALLEST_UNIT // (block + routed), 1, np.maximum(1, blocks))
    return _Rank(
        blocks=blocks,
        sharded=held.dense / shards + held.experts / np.maximum(1.0, shards * layouts.tp // layouts.ep),
        ends=ends,
        unit=np.maximum(joined * block, routed),
    )


def _idle_heap_bytes(
    shape: ModelShape,
    layouts: Layouts,
    rank: _Rank,
    memories: Memories,
    sequence_length: int,
    precision: str,
    software: Software,
) -> Array:
    """Memory of glibc's heap that is resident and not in use.

    short-lived  `_UNUSED_SHARE` of activations, of the logits that are not mapped, and of a block's gradients
    recomputed   of all blocks but one: the next one does not reuse what the last one freed
    buffers      of gathered units
    """
    e = element_bytes(precision)
    stream = stream_bytes(shape, layouts, sequence_length=sequence_length, precision=precision, software=software)
    stored = partial(activation_bytes, shape, layouts, sequence_length=sequence_length, precision=precision)
    full, kept = stored(software=software, recompute=Recompute.NONE), stored(software=software)
    again = (rank.blocks - 1.0) * (full - kept)
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    piece = np.minimum(software.loss_chunk_bytes, 4 * tokens * shape.vocabulary / layouts.tp)
    mapped = np.where(piece >= _MAPPED_BYTES, 2 * piece, 0.0)
    width = (2.0 if shape.gated_mlp else 1.0) * shape.feed_forward
    live = stream + e * tokens * width / layouts.tp
    moving = memories.activations_bytes + np.maximum(0.0, memories.logits_bytes - mapped) + live
    buffers = np.where(layouts.zero > 0, _UNIT_BUFFERS * e * (rank.ends + rank.unit), 0.0)
    idle: Array = _UNUSED_SHARE * moving + again + buffers
    return idle
