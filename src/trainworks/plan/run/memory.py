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
    head_dims,
    layers_parameters,
    num_attention_layers,
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
aligned request of the same size. Set to: runs of 60 steps (docs/reference/local-accuracy.md)."""
_MAPPED_BYTES = 32 << 20
"""Larger tensors are mapped on their own and given back. Source: MALLOC_MMAP_THRESHOLD_ of the ranks."""
_KEPT_MESSAGES = 4
"""Messages of a unit of FSDP2 that lie in the heaps of the two threads of gloo that gather it; each has a heap of its
own. Set to: fullest ranks, which have 2.6 to 4.4. Of a mapped unit as many tensors exist at once: the gathered
message, weights, gradients and their message."""
_UNIT_BUFFERS = 6
"""Tensors of the size of a unit that a step of FSDP2 makes on a CPU. Count: the gathered message of forward and of
backward, weights, gradients, their message, and gloo's copy of it. None fits the gap of another; mapped ones leave
none."""
_RING_BYTES = 4 << 20
"""Memory of the two threads of a group. Count: each reduces in two pieces of up to 1 MiB."""
_SMALLEST_UNIT = 4 << 20
"""Parameters: blocks below are gathered together. Source: `worker.parallel.data_parallel`."""


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
    """Parameters of joined blocks without their experts, which are gathered at once."""
    experts: Array
    """Parameters of the experts of a layer, which are a unit of their own."""
    expert_shards: Array
    """Ranks that share each of them."""


def _largest_rank(shape: ModelShape, layouts: Layouts) -> _Rank:
    alone = layouts.pp == 1
    tables = np.where(alone & (not shape.tie_embeddings), 2.0, 1.0)
    middle, last = stage_blocks(shape.layers, layouts)
    blocks = np.maximum(np.where(alone, last, middle), last)
    dense = dense_blocks(shape, layouts, blocks, end=True)
    held = stage_parameters(shape, layouts, blocks, embeddings=tables, without_experts=dense)
    shards = layouts.dp_shard * layouts.cp
    expert_shards = np.maximum(1.0, shards * layouts.tp // layouts.ep)
    ends = stage_parameters(shape, layouts, np.zeros_like(blocks), embeddings=tables).total
    routed = shape.experts * expert_parameters(shape) / layouts.ep if shape.experts else np.zeros_like(blocks)
    around = expert_layer_parameters(shape) - routed * layouts.ep if shape.experts else dense_layer_parameters(shape)
    if shape.state_space is not None:  # of an average layer
        routed = routed * (num_expert_layers(shape) / shape.layers)
        around = layers_parameters(shape) / shape.layers - routed * layouts.ep
    block = around / layouts.tp
    # Sizes of whole tensors count there, also where ranks have parts of them.
    joined = np.clip(_SMALLEST_UNIT // (around + routed * layouts.ep), 1, np.maximum(1, blocks))
    return _Rank(
        blocks=blocks,
        sharded=held.dense / shards + held.experts / expert_shards,
        ends=ends,
        unit=joined * block,
        experts=routed,
        expert_shards=expert_shards,
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
    """Memory of glibc's heaps that is resident and not in use.

        short-lived  `_UNUSED_SHARE` of activations, of the logits that are not mapped, of a block's gradients and of
                     `_copied_bytes`; or with zero 3 `_UNIT_BUFFERS` of the units that are gathered, where that is
                     more: they lie in the gaps that activations leave, as far as these reach
        recomputed   of all such blocks but one: the next one does not reuse what the last one freed
        gathered     `_KEPT_MESSAGES` of a unit, and of one layer's experts the two tensors that are made ahead
        rings        `_RING_BYTES` of each group of an axis, if there are several

    Weights that stay from forward to backward (zero 1 and 2) are gathered once, before the activations exist.
    """
    e = element_bytes(precision)
    stream = stream_bytes(shape, layouts, sequence_length=sequence_length, precision=precision, software=software)
    stored = partial(activation_bytes, shape, layouts, sequence_length=sequence_length, precision=precision)
    full, kept = stored(software=software, recompute=Recompute.NONE), stored(software=software)
    again = (layouts.recomputing(rank.blocks) - 1.0) * (full - kept)
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    piece = np.minimum(software.loss_chunk_bytes, 4 * tokens * shape.vocabulary / layouts.tp)
    mapped = np.where(piece >= _MAPPED_BYTES, 2 * piece, 0.0)
    width = (2.0 if shape.gated_mlp else 1.0) * shape.feed_forward
    live = stream + e * tokens * width / layouts.tp
    moving = memories.activations_bytes + np.maximum(0.0, memories.logits_bytes - mapped) + live
    moving = moving + rank.blocks * tokens * _copied_bytes(shape, layouts, e)
    units = np.stack((rank.ends, rank.unit, np.where(rank.expert_shards > 1, rank.experts, 0.0))) * e
    in_heap = np.where(units < _MAPPED_BYTES, units, 0.0).sum(axis=0)
    of_units = np.where(layouts.zero >= 3, _UNIT_BUFFERS * in_heap, 0.0)
    gathered = np.where(layouts.zero > 0, _KEPT_MESSAGES * units.sum(axis=0) + 2 * e * rank.experts, 0.0)
    shards = layouts.dp_shard * layouts.cp
    axes = np.sum([each > 1 for each in (layouts.dp / layouts.dp_shard, shards, layouts.tp, layouts.pp)], axis=0)
    rings = np.where(axes > 1, _RING_BYTES * axes, 0.0)
    idle: Array = np.maximum(_UNUSED_SHARE * moving, of_units) + again + gathered + rings
    return idle


def _copied_bytes(shape: ModelShape, layouts: Layouts, e: int) -> Array:
    """Bytes per token and block of copies that live only while tokens travel, forward and backward.

    context  e d (8 (H + 2 K) + 4 H) / t: queries, keys and values as computed, joined, ordered by rank and
             received, and the output of attention as sent and received; and the gradients of all of them
    experts  3 e k h / t: gradients of the weighted and the plain output, and their product with it; with an
             exchange 9: tokens as sent and received, outputs as sent, and the gradients of these
    """
    query_dim, value_dim = head_dims(shape)
    queries, values = shape.heads * query_dim, shape.heads * value_dim
    joined = queries + shape.kv_heads * (query_dim + value_dim)
    attending = num_attention_layers(shape) / shape.layers
    heads = np.where(layouts.cp > 1, 2.0 * attending * (4 * joined + 2 * values), 0.0)
    routed = shape.experts_per_token * (shape.expert_latent or shape.hidden) * num_expert_layers(shape) / shape.layers
    sent = routed * np.where(layouts.ep > 1, 9.0, 3.0)
    return e * (heads + sent) / layouts.tp
