"""Memory of the fullest rank of many layouts, term by term.

Symbols: those of `compute`; p stages, v chunks, m micro-batches, s ranks that share a state, B blocks of a stage.
A stage holds its states, the activations of every micro-batch in flight, and the additional memory of its peak, in the
loss or inside a block:

    allocated = weights + gradients + optimizer + activations + logits + working
    reserved  = allocated / (1 - fragmentation)
    device    = reserved + context

`allocated` and `reserved` are torch.cuda.max_memory_allocated and _reserved, `device` is the figure of nvidia-smi. The
result is the fullest stage: the first has the most micro-batches in flight, the last the logits, and if a model begins
with dense blocks, the first stage without them has the most experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from trainworks.plan.blocks import head_dims
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.compute import element_bytes
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.parameters import num_expert_layers
from trainworks.plan.software import Software
from trainworks.plan.states import StageParameters, dense_blocks, stage_blocks, stage_parameters
from trainworks.record.model_shape import ModelShape

__all__ = ["Memories", "activation_bytes", "predict_memories"]


_Position = Literal["first", "middle", "last"]
_BLOCKS_IN_FLIGHT = 3
"""Whose activations are on their way to or from the host."""


@dataclass(frozen=True, slots=True)
class Memories:
    """Bytes of the fullest stage by term, shape [n]; the terms add up to what is allocated."""

    weights_bytes: Array
    gradients_bytes: Array
    optimizer_bytes: Array
    activations_bytes: Array
    logits_bytes: Array
    working_bytes: Array
    """Memory of the block being computed: gathered weights, recomputed activations, gradients of them."""
    stage: Array
    """0 where the first stage is the fullest, else p - 1."""

    @property
    def allocated_bytes(self) -> Array:
        """Sum of the terms: the peak that the framework's allocator hands out."""
        total: Array = np.sum([getattr(self, field.name) for field in fields(self) if field.name != "stage"], axis=0)
        return total

    def reserved_bytes(self, coefficients: Coefficients = COEFFICIENTS) -> Array:
        """Memory the allocator takes from the device: allocated / (1 - fragmentation)."""
        return self.allocated_bytes / (1.0 - coefficients.fragmentation)

    def device_bytes(self, coefficients: Coefficients = COEFFICIENTS) -> Array:
        """Memory the device reports as used: reserved, the driver's context, buffers of the collectives."""
        return self.reserved_bytes(coefficients) + coefficients.context_bytes


def predict_memories(
    shape: ModelShape, layouts: Layouts, *, sequence_length: int, precision: str, software: Software
) -> Memories:
    """Peak memory of the fullest rank of every layout.

    weights     e N, / s with zero 3; a sharded model keeps its fp32 copy there instead
    gradients   `Software.gradient_bytes` N with fp32 accumulation, / s with zero 2 and 3
    optimizer   12 N (fp32 copy and two moments), / s with zero 1 and more; 8 N where weights are fp32
    """
    fullest = _stage(shape, layouts, sequence_length, precision, software, "first")
    for position in ("last", "middle") if shape.experts and shape.dense_layers else ("last",):
        other = _stage(shape, layouts, sequence_length, precision, software, position)
        fuller = other.allocated_bytes > fullest.allocated_bytes
        fullest = Memories(
            *(np.where(fuller, getattr(other, field.name), getattr(fullest, field.name)) for field in fields(Memories))
        )
    return fullest


def _stage(
    shape: ModelShape, layouts: Layouts, sequence_length: int, precision: str, software: Software, position: _Position
) -> Memories:
    at = _place(shape, layouts, position)
    alone, blocks, tables = layouts.pp == 1, at.blocks, at.tables
    parameters = stage_parameters(shape, layouts, blocks, embeddings=tables, without_experts=at.dense)
    weights, gradients, optimizer = _states(parameters, layouts, precision, software)
    gradients = np.where(layouts.offload_optimizer > 0, gradients * np.minimum(1, 2 / np.maximum(blocks, 1)), gradients)
    tables_held = stage_parameters(shape, layouts, np.zeros_like(blocks), embeddings=tables).total

    tokens = layouts.micro_batch * sequence_length / layouts.cp
    sizes = {"sequence_length": sequence_length, "precision": precision, "software": software}
    stored = activation_bytes(shape, layouts, **sizes)  # type: ignore[arg-type]
    full = activation_bytes(shape, layouts, **sizes, recompute=Recompute.NONE)  # type: ignore[arg-type]
    e = element_bytes(precision)
    stream = e * tokens * shape.hidden / np.where(layouts.sequence_parallel > 0, layouts.tp, 1.0)
    has_logits = alone | (position == "last")
    logit_bytes = e + (4.0 if software.fused_attention else 8.0)
    logits = np.where(has_logits, tokens * shape.vocabulary / layouts.tp * logit_bytes, 0.0)
    at_ends = stream * np.where(has_logits, 2.0, layouts.interleave) * (tables > 0)
    kept_by_all = _micro_batches_under_way(layouts, position, at.number) * (blocks * stored + at_ends)
    activations = np.where(layouts.offload > 0, np.minimum(_BLOCKS_IN_FLIGHT * stored, kept_by_all), kept_by_all)
    product, matrix = _largest_product(shape, layouts, tokens)
    live = stream + e * np.maximum(product, matrix)
    live = live + np.where(layouts.recompute == Recompute.NONE, 0.0, full - stored)
    block = (parameters.total - tables_held) / np.maximum(blocks, 1)
    moments = _Moments(
        blocks, block, tables_held, np.maximum(tables, 1.0), stored, at_ends, stream, live, matrix, logits, activations
    )
    working = np.where(layouts.zero == 3, moments.peak_with_shards(), np.maximum(logits, live)) - logits
    return Memories(weights, gradients, optimizer, activations, logits, working, at.number)


@dataclass(frozen=True, slots=True)
class _Place:
    """A stage, and the parts of the model on it."""

    number: Array
    blocks: Array
    dense: Array
    """Number of its blocks without experts."""
    tables: Array
    """Embedding and output matrix: 0, 1 or 2 of them."""


def _place(shape: ModelShape, layouts: Layouts, position: _Position) -> _Place:
    """The first stage, the last, or in the middle the first that has no dense block."""
    middle, last = stage_blocks(shape.layers, layouts)
    alone = layouts.pp == 1
    blocks = last if position == "last" else np.where(alone, last, middle)
    tables = np.where(alone & (not shape.tie_embeddings), 2.0, 1.0)
    dense = dense_blocks(shape, layouts, blocks, end=position == "last")
    if position != "middle":
        number = layouts.pp - 1 if position == "last" else np.zeros(len(layouts))
        return _Place(number, blocks, dense, tables)
    number = np.minimum(np.ceil(shape.dense_layers / np.maximum(blocks, 1)), layouts.pp - 1)
    return _Place(np.where(alone, 0.0, number), blocks, np.where(alone, dense, 0.0), np.where(alone, tables, 0.0))


@dataclass(frozen=True, slots=True)
class _Moments:
    """Components of the peaks of a step, in bytes except for parameter counts; shape [n]."""

    blocks: Array
    block: Array
    """Parameters of one block."""
    tables: Array
    """Parameters of embedding and output, which are one unit of FSDP2."""
    num_tables: Array
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
    logits: Array
    activations: Array

    def peak_with_shards(self) -> Array:
        """Largest of four moments under FSDP2 with 16-bit weights and fp32 reduction, beyond states and activations.

            in the loss             logits, and gathered: tables and the last block, which was prefetched
            in the last block       gathered: tables, this block and the next; gradients of output and largest weight
            in the one before       the same, and the fp32 gradients of the last block on their way to their shards
            reducing                gradients of a whole block in 16 and 32 bits
            at the end              gradients of the tables in 16 and 32 bits, all activations gone

        Source: torch.distributed.fsdp, `reshard_after_forward` (the root keeps its weights), measured on fake tensors.
        """
        ahead = np.where(self.blocks > 2, 2.0 * self.block, 0.0)
        in_loss = self.logits + 2.0 * self.tables + 2.0 * self.block
        first = 2.0 * self.block + ahead + 2.0 * self.matrix + self.live - self.at_ends
        second = first + 4.0 * self.block - self.kept
        reducing = 8.0 * self.block + ahead + 4.0 * self.stream - np.minimum(self.blocks, 2) * self.kept
        gathered = 2.0 * self.tables * (1.0 + 1.0 / self.num_tables)
        in_block = gathered + np.maximum(np.maximum(first, second), reducing)
        at_end = 6.0 * self.tables - self.activations
        peak: Array = np.maximum(np.maximum(in_loss, in_block), at_end)
        return peak


def _largest_product(shape: ModelShape, layouts: Layouts, tokens: Array) -> tuple[Array, Array]:
    """Elements of the widest output of a block's products, and of its largest weight: both have gradients."""
    first = 2.0 if shape.gated_mlp else 1.0
    if shape.experts:
        width = shape.experts_per_token * shape.expert_feed_forward
        return (
            tokens * first * width / layouts.tp,
            shape.experts * shape.hidden * shape.expert_feed_forward / layouts.ep,
        )
    return tokens * first * shape.feed_forward / layouts.tp, shape.hidden * shape.feed_forward / layouts.tp


def _states(
    parameters: StageParameters, layouts: Layouts, precision: str, software: Software
) -> tuple[Array, Array, Array]:
    dense_shards = layouts.dp_shard * layouts.cp
    expert_shards = np.maximum(1.0, dense_shards * layouts.tp / layouts.ep)

    def of(per_parameter: float, stage: int) -> Array:
        shared = layouts.zero >= stage
        dense = parameters.dense / np.where(shared, dense_shards, 1.0)
        return per_parameter * (dense + parameters.experts / np.where(shared, expert_shards, 1.0))

    if element_bytes(precision) == 4:
        return of(4.0, 3), of(4.0, 2), of(8.0, 1)
    narrow = layouts.zero < 3
    weights = np.where(narrow, of(2.0, 3), of(4.0, 3))
    state_bytes = 12.0 if software.fused_attention else 16.0
    optimizer = np.where(layouts.offload_optimizer > 0, 0.0, np.where(narrow, of(state_bytes, 1), of(8.0, 1)))
    both = 2.0 if precision == "bf16" and not software.fused_attention else 0.0
    return weights, of(software.gradient_bytes + both, 2), optimizer


def _micro_batches_under_way(layouts: Layouts, position: _Position, ahead: Array) -> Array:
    """Forward passes whose backward has not run, in micro-batches of the whole stage.

    1F1B keeps min(m, p - i) on stage i, 1 on the last; interleaved p (1 + (p - 1) / (p v)) on the first
    (Korthikanti et al. 2022, section 4.2.3) and ((v - 1) p + 1) / v on the last.
    """
    p, v = layouts.pp, layouts.interleave
    if position == "last":
        return np.where(v > 1, np.minimum(layouts.accum, ((v - 1) * p + 1) / v), 1.0)
    plain = np.minimum(layouts.accum, np.maximum(1.0, p - ahead))
    chunked = np.minimum(layouts.accum, np.maximum(1.0, p * (1 + (p - 1) / (p * v)) - 2 * ahead / v))
    return np.where(v > 1, chunked, plain)


def activation_bytes(
    shape: ModelShape,
    layouts: Layouts,
    *,
    sequence_length: int,
    precision: str,
    software: Software,
    recompute: Recompute | None = None,
) -> Array:
    """Activations that one block keeps of one micro-batch for its backward, on one rank.

    Unfused, with dropout (Korthikanti et al. 2022, equation 2), per token in 16 bits: h (10 + 24 / t) + 5 H T / t, of
    which sequence parallelism splits the 10 h of norms and dropouts too.

    Fused, without dropout: inputs of the two norms and of the two projections after them 4 e h, queries, keys, values
    and attention output e (2 H + 2 K) d / t, the MLP's first product and its activation e (3 or 2) f / t. Selective
    recomputation drops the scores; 8-bit products keep their inputs in 8 bits; full keeps the block's input alone.

    Args:
        shape: the model.
        layouts: shape [n].
        sequence_length: tokens of a sequence.
        precision: of the products.
        software: whether attention is fused.
        recompute: of all layouts; by default their own.
    """
    e = element_bytes(precision)
    tokens = layouts.micro_batch * sequence_length / layouts.cp
    t = layouts.tp
    hidden_split = np.where(layouts.sequence_parallel > 0, t, 1.0)
    query_dim, value_dim = head_dims(shape)
    heads = (shape.heads + shape.kv_heads) * (query_dim + value_dim)
    dense_width = (3.0 if shape.gated_mlp else 2.0) * shape.feed_forward
    width = dense_width
    if shape.experts:
        routed = shape.experts_per_token * (3 * shape.expert_feed_forward + 2 * shape.hidden)
        share = num_expert_layers(shape) / shape.layers
        width = share * (routed + 3 * shape.shared_feed_forward) + (1 - share) * dense_width
    hidden_bytes = 4.0 * e * shape.hidden + (0.0 if software.fused_attention else 2.0 * shape.hidden)
    inner_bytes = e * (heads + width)
    if precision in ("fp8", "fp4"):
        hidden_bytes -= 2.0 * shape.hidden
        inner_bytes -= shape.heads * value_dim + (1 / 3 if shape.gated_mlp else 1 / 2) * width
    stored = tokens * (hidden_bytes / hidden_split + inner_bytes / t)
    scores = 0.0 if software.fused_attention else (2 * e + 1.0) * tokens * sequence_length * shape.heads / t
    whole = stored + scores
    full = tokens * e * shape.hidden / hidden_split
    chosen = layouts.recompute if recompute is None else np.full(len(layouts), float(recompute))
    return np.select([chosen == Recompute.FULL, chosen == Recompute.SELECTIVE], [full, stored], whole)
