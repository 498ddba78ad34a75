"""Memory of the fullest rank of a run: the planner's terms for the worker's software, and what the allocator adds."""

from __future__ import annotations

import numpy as np

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.activations import activation_bytes, stream_bytes
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.compute import element_bytes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.run.rank_parameters import RankParameters, is_sharded, rank_parameters
from trainworks.plan.software import Software, worker_software
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import MemoryTerms

_UNUSED_SHARE = 0.45
"""Bytes of glibc's heap that lie idle per byte of short-lived tensors: freed memory of their size cannot serve an
aligned request of the same size. Measured (docs/reference/local-accuracy.md)."""
_MAPPED_BYTES = 32 << 20
"""Larger tensors are mapped on their own and given back (MALLOC_MMAP_THRESHOLD_ of the ranks)."""
_UNIT_BUFFERS = 4
"""Buffers of FSDP2 on a CPU for the root and one unit: gathered message, weights, gradients, message of gradients.
They are larger than the gaps of the heap."""


def predict_memory(
    shape: ModelShape,
    layout: ResolvedLayout,
    *,
    sequence_length: int,
    precision: str,
    baseline_bytes: int,
    device: str = "cpu",
    dropout: float = 0.0,
) -> MemoryTerms:
    """Peak of the fullest rank, resident on a CPU and allocated on an accelerator.

    The terms of `plan.memory`, and

        allocator    on an accelerator its fragmentation, on a CPU `_idle_heap_bytes`
        checkpoint   12 N / s: the copy written while training continues

    On a CPU the optimizer and the activations are already in the host's memory, so offloading them saves nothing.
    """
    software = worker_software(device, dropout=dropout)
    layouts = layouts_of(shape, layout, precision, device)
    memories = predict_memories(shape, layouts, sequence_length=sequence_length, precision=precision, software=software)
    ranks = [rank_parameters(shape, layout, rank) for rank in range(layout.pp)]
    allocated = float(memories.allocated_bytes[0])
    idle = allocated / (1 - COEFFICIENTS.fragmentation) - allocated
    if device == "cpu":
        largest = max(ranks, key=lambda rank: rank.total)
        idle = _idle_heap_bytes(shape, layouts, largest, memories, sequence_length, precision, software)
    held = {name: round(float(getattr(memories, name)[0])) for name in _TERMS}
    copy = max(rank.sharded(layout) for rank in ranks) if device == "cpu" else 0
    return MemoryTerms(
        baseline_bytes=baseline_bytes, **held, allocator_bytes=round(idle), checkpoint_bytes=round(12 * copy)
    )


_TERMS = (
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes", "working_bytes",
)  # fmt: skip


def checkpoint_bytes(shape: ModelShape) -> int:
    """One checkpoint of all ranks: weights and AdamW's two moments, 12 N."""
    return 12 * shape.num_parameters


def layouts_of(shape: ModelShape, layout: ResolvedLayout, precision: str, device: str) -> Layouts:
    """The layout as arrays of one; zero is 0 where the worker shards nothing, offloading where it saves nothing."""
    on_device = device != "cpu"
    return Layouts.of(
        global_batch=layout.dp * layout.micro_batch * layout.grad_accum_steps,
        dp=layout.dp,
        dp_shard=layout.dp_shard,
        zero=layout.zero if is_sharded(shape, layout, precision) else 0,
        tp=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        pp=layout.pp,
        interleave=layout.interleave,
        cp=layout.cp,
        ep=layout.ep,
        micro_batch=layout.micro_batch,
        recompute=Recompute[layout.recompute.upper()],
        zero_bubble=layout.zero_bubble,
        offload=layout.offload_activations and on_device,
        offload_optimizer=layout.offload_optimizer and on_device,
    )


def _idle_heap_bytes(
    shape: ModelShape,
    layouts: Layouts,
    rank: RankParameters,
    memories: Memories,
    sequence_length: int,
    precision: str,
    software: Software,
) -> float:
    """Memory of glibc's heap that is resident and not in use.

    short-lived  `_UNUSED_SHARE` of activations, of the logits that are not mapped, and of a block's gradients
    recomputed   of all blocks but one: the next one does not reuse what the last one freed
    buffers      of gathered units
    """
    sizes = {"sequence_length": sequence_length, "precision": precision, "software": software}
    e = element_bytes(precision)
    full = activation_bytes(shape, layouts, **sizes, recompute=Recompute.NONE)  # type: ignore[arg-type]
    kept = activation_bytes(shape, layouts, **sizes)  # type: ignore[arg-type]
    again = (rank.layers - 1.0) * (full - kept)
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    piece = np.minimum(software.loss_chunk_bytes, 4 * tokens * shape.vocabulary / layouts.tp)
    mapped = np.where(piece >= _MAPPED_BYTES, 2 * piece, 0.0)
    width = (2.0 if shape.gated_mlp else 1.0) * shape.feed_forward
    live = stream_bytes(shape, layouts, **sizes) + e * tokens * width / layouts.tp  # type: ignore[arg-type]
    moving = memories.activations_bytes + np.maximum(0.0, memories.logits_bytes - mapped) + live
    buffers = np.where(layouts.zero > 0, _UNIT_BUFFERS * e * (rank.ends + rank.unit), 0.0)
    return float((_UNUSED_SHARE * moving + again + buffers)[0])
