"""Memory of the fullest rank of many layouts, term by term.

Symbols: those of `compute`; p stages, v chunks, m micro-batches, s ranks that share a state, B blocks of a stage.
A stage holds its states, the activations of every micro-batch in flight, and the additional memory of its peak, in the
loss or inside a block:

    allocated = weights + gradients + optimizer + activations + logits + working
    reserved  = allocated / (1 - fragmentation)
    device    = reserved + context

`allocated` and `reserved` are torch.cuda.max_memory_allocated and _reserved, `device` is the figure of nvidia-smi. The
allocator may hold more than it needs (`Memories.cached_bytes`). XLA places all buffers in advance, without gaps. The
result is the fullest stage: the first has the most micro-batches in flight, the last the logits, the second a block
more than an end that has one less, and if a model begins with dense blocks, the first stage without them has the most
experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainworks.plan.activations import activation_bytes, element_bytes, has_casts, stream_bytes
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.compression import error_bytes
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.parameters import StageParameters, dense_blocks, stage_blocks, stage_parameters
from trainworks.plan.software import Software
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape

_Position = Literal["first", "middle", "last"]
_Mask = NDArray[np.bool_]
_BLOCKS_IN_FLIGHT = 3
"""Whose activations are on their way to or from the host. Assumed: one is computed, one waits, one travels."""


@dataclass(frozen=True, slots=True)
class Memories:
    """Bytes of the fullest stage by term, shape [n]; all but the last two fields add up to the device's memory."""

    weights_bytes: Array
    gradients_bytes: Array
    """Those that exist at the peak."""
    optimizer_bytes: Array
    activations_bytes: Array
    logits_bytes: Array
    working_bytes: Array
    """Memory of the block being computed: gathered or cast weights, recomputed activations, gradients of them."""
    allocator_bytes: Array
    baseline_bytes: Array
    cached_bytes: Array
    """Memory that the allocator keeps for another moment of the step, and gives back before it runs out."""
    stage: Array
    """Number of the fullest stage."""

    @property
    def allocated_bytes(self) -> Array:
        """The peak that the framework's allocator hands out."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.working_bytes

    def reserved_bytes(self) -> Array:
        """Memory the allocator needs of the device: allocated / (1 - fragmentation)."""
        return self.allocated_bytes + self.allocator_bytes

    def device_bytes(self) -> Array:
        """Memory the device needs: reserved, the driver's context, buffers of the collectives."""
        return self.reserved_bytes() + self.baseline_bytes

    def terms(self, index: int = 0) -> MemoryTerms:
        """Memory of one layout in whole bytes."""
        return MemoryTerms(**{name: round(float(getattr(self, name)[index])) for name in TERMS}, checkpoint_bytes=0)

    def with_terms(self, **terms: Array) -> Memories:
        """The same with other terms, and gaps in proportion."""
        changed = replace(self, **terms)
        return replace(changed, allocator_bytes=self.allocator_bytes * changed.allocated_bytes / self.allocated_bytes)

    @classmethod
    def with_overheads(
        cls, *, fragmentation: float = COEFFICIENTS.fragmentation, context_bytes: float, **terms: Array
    ) -> Memories:
        """Terms that are allocated and what comes on top of them: gaps of the allocator, and the driver's context."""
        allocated = sum((terms[name] for name in TERMS[:-2]), np.zeros(1))
        gaps = allocated * fragmentation / (1.0 - fragmentation)
        return cls(**terms, allocator_bytes=gaps, baseline_bytes=np.full(len(gaps), context_bytes))


TERMS = tuple(field.name for field in fields(Memories) if field.name not in ("cached_bytes", "stage"))
"""Fields that add up to the memory of the device; but for the last two they are allocated."""


def predict_memories(
    shape: ModelShape,
    layouts: Layouts,
    *,
    sequence_length: int,
    precision: str,
    software: Software,
    context_bytes: float = COEFFICIENTS.context_bytes,
) -> Memories:
    """Peak memory of the fullest rank of every layout.

    weights     `Software.weight_bytes` N, / s with zero 3; a sharded model keeps its fp32 copy there instead
    gradients   `Software.gradient_bytes` N, / s with zero 2 and 3, and whole ones of one chunk of several with
                zero 2; 4 N more with PowerSGD, its error
    optimizer   `Software.optimizer_bytes` N, / s with zero 1 and more; 8 N where weights are fp32
    update      `Software.update_bytes` N, / s with zero 1 and more, when the activations are gone

    Native software shares all of them with any zero. It holds whole gradients beside the shards where they are reduced
    once per step: in a pipeline, and with zero 1 and several micro-batches.
    """
    kept = partial(activation_bytes, shape, layouts, sequence_length=sequence_length, precision=precision)
    stored, full = kept(software=software), kept(software=software, recompute=Recompute.NONE)
    stream = stream_bytes(shape, layouts, sequence_length=sequence_length, precision=precision, software=software)
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    of_stage = partial(_stage, shape, layouts, tokens, (stored, full, stream), precision, software)
    middle, last = stage_blocks(shape.layers, layouts)
    fullest = of_stage("first")
    differs = (shape.experts and shape.dense_layers and not shape.interleaved) or (last < middle).any()
    for position in ("last", "middle") if differs else ("last",):
        other = of_stage(position)
        fuller = sum(other[name] for name in TERMS[:-2]) > sum(fullest[name] for name in TERMS[:-2])
        fullest = {name: np.where(fuller, other[name], fullest[name]) for name in fullest}
    fragmentation = 0.0 if software.framework == "jax" else COEFFICIENTS.fragmentation
    return Memories.with_overheads(fragmentation=fragmentation, context_bytes=context_bytes, **fullest)


def _stage(
    shape: ModelShape,
    layouts: Layouts,
    tokens: Array,
    of_block: tuple[Array, Array, Array],
    precision: str,
    software: Software,
    position: _Position,
) -> dict[str, Array]:
    """Fields of `Memories` of one stage but for overheads; a block's activations are kept ones, all, and a stream."""
    stored, full, stream = of_block
    at = _place(shape, layouts, position, software)
    parameters = stage_parameters(shape, layouts, at.blocks, embeddings=at.tables, without_experts=at.dense)
    weights, gradients, optimizer, update = _states(parameters, layouts, at.blocks, precision, software)
    e = element_bytes(precision)
    has_logits = (layouts.pp == 1) | (position == "last")
    logits = np.where(has_logits, _loss_memory(shape, layouts, tokens, e, software), 0.0)
    # torch.distributed.pipelining keeps the outputs of chunks (`fwd_cache`), others free them once they are sent.
    at_ends = stream * np.where(has_logits, 2.0, layouts.interleave if software.native else 1.0) * (at.tables > 0)
    again = layouts.recomputing(at.blocks)
    of_blocks = again * stored + (at.blocks - again) * full
    under_way, of_end = _micro_batches_under_way(layouts, at)
    kept_by_all = under_way * of_blocks + (under_way if software.native else of_end) * at_ends
    activations = np.where(layouts.offload > 0, np.minimum(_BLOCKS_IN_FLIGHT * stored, kept_by_all), kept_by_all)
    # Inputs and gradients of every micro-batch that each chunk receives (torch.distributed.pipelining).
    sides = 2.0 * layouts.interleave - (position != "middle")
    activations = activations + np.where(software.native & (layouts.pp > 1), sides * layouts.accum * stream, 0.0)
    product, matrix = _largest_product(shape, layouts, tokens)
    tables = stage_parameters(shape, layouts, np.zeros_like(at.blocks), embeddings=at.tables).total
    table, block = tables / np.maximum(at.tables, 1.0), (parameters.total - tables) / np.maximum(at.blocks, 1)
    by_matrix = software.framework == "jax"
    # Gradients do not exist before backward if they are freed after the update, and neither accumulated nor in DDP's
    # buckets, which are as large.
    buckets = (layouts.zero == 0) & (layouts.dp > 1)
    frees_gradients = software.native & (layouts.accum == 1) & (layouts.pp == 1) & ~buckets
    moments = _Moments(
        e=e,
        r=software.gradient_bytes,
        blocks=at.blocks,
        block=block,
        unit=np.minimum(block, matrix) if by_matrix else block,
        tables=table if by_matrix else tables,
        table=table,
        kept=stored,
        at_ends=at_ends,
        stream=stream,
        live=stream + e * np.maximum(product, matrix) + full - stored,
        matrix=matrix,
        loss=logits,
        activations=activations,
        coming=np.where(frees_gradients, gradients, 0.0),
        parameters=parameters.total,
    )
    peak = moments.peak(
        gathered=layouts.zero >= (1 if software.native else 3),
        again=layouts.zero == 3,
        cast=has_casts(layouts, precision, software) > 0,
    )
    gradients, working = gradients + np.minimum(0.0, peak - logits), np.maximum(0.0, peak - logits)
    moving = activations + logits + working
    return {
        "weights_bytes": weights,
        "gradients_bytes": gradients,
        "optimizer_bytes": optimizer,
        "activations_bytes": activations,
        "logits_bytes": logits,
        "working_bytes": working + np.maximum(0.0, update - moving),
        "cached_bytes": np.minimum(update, moving),
        "stage": at.number,
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """A stage, and the parts of the model on it."""

    number: Array
    blocks: Array
    dense: Array
    """Number of its blocks without experts."""
    tables: Array
    """Embedding and output matrix: 0, 1 or 2 of them."""


def _place(shape: ModelShape, layouts: Layouts, position: _Position, software: Software) -> _Place:
    """The first stage, the last, or in the middle the first that has no dense block and no end of the model."""
    middle, last = stage_blocks(shape.layers, layouts)
    alone, none = layouts.pp == 1, np.zeros(len(layouts))
    # Both ends have a block less, or the last alone.
    counts = (software.shares == "blocks and ends") | (layouts.pp > shape.layers)
    first = np.where(counts & (2 * last + (layouts.pp - 2) * middle == shape.layers), last, middle)
    if software.shares == "products":
        block = stage_parameters(shape, layouts, none + 1.0, embeddings=0.0).total
        output = stage_parameters(shape, layouts, none).total / block
        share = (shape.layers + output) / layouts.pp
        first, middle = np.minimum(shape.layers, np.floor(share)), np.ceil(share)
        last = np.maximum(0.0, np.floor(share - output + 1e-9))
    blocks = last if position == "last" else first
    tables = np.where(alone & (not shape.tie_embeddings), 2.0, 1.0)
    dense = dense_blocks(shape, layouts, blocks, end=position == "last")
    if position != "middle":
        number = layouts.pp - 1 if position == "last" else none
        return _Place(number, blocks, dense, tables)
    number = np.maximum(1.0, np.minimum(np.ceil(shape.dense_layers / np.maximum(middle, 1)), layouts.pp - 1))
    only_experts = shape.experts and not shape.interleaved
    inside = none if only_experts else dense_blocks(shape, layouts, middle, end=False)
    of_middle, of_end = (number, middle, inside, none), (none, blocks, dense, tables)
    return _Place(*(np.where(layouts.pp > 2, one, other) for one, other in zip(of_middle, of_end, strict=True)))


@dataclass(frozen=True, slots=True)
class _Moments:
    """Components of the peaks of a step, in bytes except for parameter counts; shape [n]."""

    e: int
    r: int
    """Bytes per parameter of gradients that are reduced."""
    blocks: Array
    block: Array
    """Parameters of one block."""
    unit: Array
    """Parameters that are gathered at once: those of a block, or a matrix in JAX programs."""
    tables: Array
    """Parameters of embedding and output, which are one unit of FSDP2; of one of them in JAX programs."""
    table: Array
    """Parameters of one of them."""
    kept: Array
    """Activations of one block."""
    at_ends: Array
    """Activations of embedding and final norm."""
    stream: Array
    """One residual stream."""
    live: Array
    """Memory of the block in backward: recomputed activations, and the largest gradient."""
    matrix: Array
    """Elements of the largest weight's gradient."""
    loss: Array
    """Logits, and what the loss makes of them."""
    activations: Array
    coming: Array
    """Gradients that do not exist before backward, and all at its end."""
    parameters: Array

    def peak(self, *, gathered: _Mask, again: _Mask, cast: _Mask) -> Array:
        """Largest of the moments, beyond states and activations.

            in the loss      loss, and gathered: tables and the last block, which was prefetched
            last blocks      see `_last_block_moments`
            first block      activations of this block alone, and all gradients
            at the end       gradients of the tables in both precisions, all activations gone

        Weights that are gathered once, and 16-bit copies by autocast, are there from forward to backward.

        Args:
            gathered: whether FSDP2 gathers weights.
            again: whether it gathers them again in backward, a unit at a time.
            cast: whether autocast makes 16-bit copies.

        Source: torch.distributed.fsdp, `reshard_after_forward` (the root keeps its weights), measured on fake tensors.
        """
        of_tables = np.where(gathered, self.e * self.tables, 0.0)
        standing = of_tables + np.where(cast | (gathered & ~again), self.e * self.blocks * self.block, 0.0)
        unit = np.where(again, self.e * self.unit, 0.0)
        in_loss = self.loss + standing + unit - self.coming
        last = standing + self._last_block_moments(unit, gathered) - self.coming * (1 - self.table / self.parameters)
        first = of_tables + unit + self.live + self.kept - self.activations
        at_end = np.where(gathered, (self.e + self.r) * self.tables, 0.0) - self.activations
        peak: Array = np.maximum(np.maximum(in_loss, last), np.maximum(first, at_end))
        return peak

    def _last_block_moments(self, unit: Array, gathered: _Mask) -> Array:
        """Largest of three moments in the backward of the last two blocks.

        last unit         this unit's weights and the next one's; gradients of output and largest weight
        one before        the same, and the gradients of the last unit on their way to their shards
        reducing          gradients of a whole unit in both precisions
        """
        ahead = np.where(self.blocks > 2, unit, 0.0)
        own = unit + ahead + self.e * self.matrix + self.live - self.at_ends
        second = own + self.r * self.unit - self.kept
        reducing = (self.e + self.r) * self.unit + unit + ahead + 4.0 * self.stream
        reducing = reducing - np.minimum(self.blocks, 2) * self.kept
        sharded = self.e * self.table + np.maximum(np.maximum(own, second), reducing)
        return np.where(gathered, sharded, self.live)


def _largest_product(shape: ModelShape, layouts: Layouts, tokens: Array) -> tuple[Array, Array]:
    """Elements of the widest output of a block's products, and of its largest weight: both have gradients."""
    first, t = 2.0 if shape.gated_mlp else 1.0, layouts.tp
    width, matrix = shape.feed_forward * np.ones_like(t), shape.hidden * shape.feed_forward / t
    if shape.experts:
        width = shape.experts_per_token * shape.expert_feed_forward * layouts.expert_rows
        matrix = shape.experts * (shape.expert_latent or shape.hidden) * shape.expert_feed_forward / layouts.ep
    if shape.state_space is None:
        return tokens * first * width / t, matrix
    projected = shape.state_space.projected
    return tokens * np.maximum(first * width, projected) / t, np.maximum(matrix, shape.hidden * projected / t)


def _loss_memory(shape: ModelShape, layouts: Layouts, tokens: Array, e: int, software: Software) -> Array:
    """Memory of logits and loss.

    at once    M V / t (e + `Software.loss_bytes`); V whole without loss parallelism
    in pieces  the larger of the first piece (logits and exponentials, 8 bytes per logit) and a later one (12: the
               piece before it too), in 16 bits 2 more; gradients of hidden states and of the output matrix, and one
               product that is added to the latter
    """
    rows = shape.vocabulary / (layouts.tp if software.loss_parallel else 1.0)
    if not software.loss_chunk_bytes:
        return tokens * rows * (e + software.loss_bytes)
    piece = np.minimum(tokens, np.maximum(1.0, software.loss_chunk_bytes // (4 * rows)))
    per_logit = np.where(piece == tokens, 8.0, 12.0) + (0.0 if e == 4 else 2.0)
    matrix = rows * shape.hidden
    pieces = np.maximum(per_logit * piece * rows + 4 * matrix, 4 * piece * rows + (4 + e) * matrix)
    return pieces + e * tokens * shape.hidden


def _states(
    parameters: StageParameters, layouts: Layouts, blocks: Array, precision: str, software: Software
) -> tuple[Array, Array, Array, Array]:
    """Weights, gradients, optimizer, and what the update alone needs."""
    dense_shards = layouts.dp_shard * layouts.cp
    expert_shards = np.maximum(1.0, dense_shards * layouts.tp / layouts.ep)

    def of(per_parameter: float, stage: int) -> Array:
        shared = layouts.zero >= (1 if software.native else stage)
        dense = parameters.dense / np.where(shared, dense_shards, 1.0)
        return per_parameter * (dense + parameters.experts / np.where(shared, expert_shards, 1.0))

    if element_bytes(precision) == 4:
        weights, gradients, optimizer = of(4.0, 3), of(4.0, 2), of(min(8.0, software.optimizer_bytes), 1)
        update = np.zeros(len(layouts))
    else:
        copy = 4.0 if software.optimizer_bytes >= 12 else 0.0
        cut = copy * (layouts.zero >= (1 if software.native else 3))
        weights = np.where(cut > 0, of(4.0, 3), of(software.weight_bytes, 3))
        optimizer = of(software.optimizer_bytes, 1) - np.where(cut > 0, of(copy, 1), 0.0)
        bucket = 2.0 * software.reduce_bucket * (software.update_bytes > 0) * (layouts.zero > 0)
        gradients, update = of(software.gradient_bytes, 2), np.maximum(of(software.update_bytes, 1), bucket)
    if software.native:
        once = (layouts.zero > 0) & ((layouts.pp > 1) | ((layouts.zero == 1) & (layouts.accum > 1)))
        whole = parameters.dense * (dense_shards > 1) + parameters.experts * (expert_shards > 1)
        gradients = gradients + np.where(once, software.gradient_bytes * whole, 0.0)
    else:  # those of a chunk are added up over the micro-batches that follow each other on it
        adds_first = (layouts.zero == 2) & (layouts.interleave > 1)
        gradients = gradients + np.where(adds_first, of(software.gradient_bytes, 4) / layouts.interleave, 0.0)
    away = layouts.offload_optimizer > 0
    gradients = gradients + error_bytes(parameters.total, layouts)
    left = np.minimum(1, 2 / np.maximum(blocks, 1)) if not software.native else 0.0
    weights = np.where(away & software.native, 0.0, weights)
    gradients = np.where(away, gradients * left, gradients)
    return weights, gradients, np.where(away, 0.0, optimizer), np.where(away, 0.0, update)


def _micro_batches_under_way(layouts: Layouts, at: _Place) -> tuple[Array, Array]:
    """Forward passes whose backward has not run: in micro-batches of the stage's blocks, and of its end of the model.

    1F1B keeps min(m, p - i) on stage i. With chunks, i warms up with 2 (p - 1 - i) + (v - 1) p passes through one of
    them, and one more is under way (Megatron-Core, `get_pp_rank_microbatches`; the count of torch's
    `ScheduleInterleaved1F1B` is the same), so that the first stage keeps p (1 + (p - 1) / (p v)) micro-batches
    (Korthikanti et al. 2022, section 4.2.3). Of these passes min(m, 2 p - 1) are through its first chunk, which lacks
    the block of a stage that has one less than others. The last stage lacks it in its last chunk, which has one pass
    or none under way. With zero bubble p of all stages: activations wait for the gradients of the weights.
    """
    p, v, m = layouts.pp, layouts.interleave, layouts.accum
    plain = np.minimum(m, np.maximum(1.0, p - at.number))
    passes = np.minimum(m * v, 2 * (p - 1 - at.number) + (v - 1) * p + 1)
    of_first = np.where(at.number == 0, np.minimum(m, 2 * p - 1), 0.0)
    of_chunk = np.ceil(at.blocks / v)
    chunked = (of_chunk * passes - (of_chunk * v - at.blocks) * of_first) / np.maximum(1.0, at.blocks)
    bubbles = (layouts.zero_bubble > 0) & (v == 1)
    plain = np.where(bubbles, np.minimum(m, p), plain)
    return np.where(v > 1, np.minimum(m, chunked), plain), np.where(v > 1, np.maximum(1.0, of_first), plain)
