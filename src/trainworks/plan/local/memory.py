"""Memory of the fullest rank, term by term.

Symbols: N parameters of a rank after pp, tp and ep have cut the model, s ranks that share a state, b micro-batch,
T sequence length, e bytes of a value in products (4 in fp32, else 2), m micro-batches per step. Weights, gradients and
AdamW's two moments are fp32.
"""

from __future__ import annotations

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.local.activations import BlockBytes, block_bytes, loss_bytes, micro_batches_under_way
from trainworks.plan.local.rank_parameters import FULL_PRECISIONS, RankParameters, is_sharded, rank_parameters
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import MemoryTerms

__all__ = ["checkpoint_bytes", "predict_memory"]

_HEAP_SHARE = 0.6
"""Share of glibc's memory for short-lived tensors that is in use: freed memory of their size cannot serve an aligned
request of the same size. Measured (docs/reference/local-accuracy.md)."""
_MAPPED_BYTES = 32 << 20
"""Larger tensors are mapped on their own and given back (MALLOC_MMAP_THRESHOLD_ of the ranks)."""
_BLOCKS_IN_FLIGHT = 2
"""Whose activations are on the device while they are moved to the host and back."""


def predict_memory(
    shape: ModelShape,
    layout: ResolvedLayout,
    *,
    sequence_length: int,
    precision: str,
    baseline_bytes: int,
    device: str = "cpu",
) -> MemoryTerms:
    """Peak of the fullest rank, resident on a CPU and allocated on an accelerator.

        weights      4 N / s, and what is gathered: with zero 3 e (embedding, output, two units), with 1 and 2 e N;
                     under autocast a 16-bit copy
        gradients    4 N / s; whole until the last micro-batch with zero 1 or pipelines, with shards a unit on its way
        optimizer    8 N / s
        activations  micro-batches under way * layers * b T / cp * bytes of a block; the block in backward; buffers of
                     a pipeline
        logits       of the chunked loss
        allocator    what comes and goes, times (1 / share in use - 1)
        checkpoint   12 N / s: the copy written while training continues

    On a CPU the optimizer and the activations are already in the host's memory, so offloading them saves nothing.
    """
    ranks = [
        _rank(shape, layout, pp_rank, sequence_length, precision, baseline_bytes, device)
        for pp_rank in range(layout.pp)
    ]
    return max(ranks, key=lambda terms: terms.total_bytes)


def checkpoint_bytes(shape: ModelShape) -> int:
    """One checkpoint of all ranks: weights and AdamW's two moments, 12 N."""
    return 12 * shape.num_parameters


def _rank(
    shape: ModelShape,
    layout: ResolvedLayout,
    pp_rank: int,
    sequence_length: int,
    precision: str,
    baseline_bytes: int,
    device: str,
) -> MemoryTerms:
    sharded = is_sharded(shape, layout, precision)
    parameters = rank_parameters(shape, layout, pp_rank)
    on_device = 0.0 if layout.offload_optimizer and device != "cpu" else parameters.sharded(layout)
    copies = _copies(parameters, layout, sharded, precision)
    whole_gradients = _gradients_on_the_way(parameters, layout, sharded)
    block = block_bytes(shape, layout, precision=precision, sharded=sharded)
    tokens = layout.micro_batch * sequence_length / layout.cp
    activations = _activations(parameters, block, layout, pp_rank, tokens, device)
    activations += _boundaries(shape, parameters, layout, tokens, precision)
    logits = (
        loss_bytes(shape, layout, sequence_length=sequence_length, precision=precision) if parameters.has_last else 0.0
    )
    moving = activations + copies + whole_gradients + 4 * on_device
    widest = tokens * max(shape.hidden, shape.feed_forward / layout.tp) * (4 if precision in FULL_PRECISIONS else 2)
    return MemoryTerms(
        baseline_bytes=baseline_bytes,
        weights_bytes=round(4 * on_device + copies),
        gradients_bytes=round(4 * on_device + whole_gradients),
        optimizer_bytes=round(8 * on_device),
        activations_bytes=round(activations),
        logits_bytes=round(logits),
        allocator_bytes=round(moving * _unused_share(widest, device)),
        checkpoint_bytes=round(12 * parameters.sharded(layout)) if device == "cpu" else 0,
    )


def _unused_share(tensor_bytes: float, device: str) -> float:
    """Bytes that the allocator holds in vain per byte in use."""
    if device != "cpu":
        return 1 / (1 - COEFFICIENTS.fragmentation) - 1
    return 1 / _HEAP_SHARE - 1 if tensor_bytes < _MAPPED_BYTES else 0.0


def _copies(parameters: RankParameters, layout: ResolvedLayout, sharded: bool, precision: str) -> float:
    """Weights besides the fp32 ones that the optimizer updates."""
    e = 4 if precision in FULL_PRECISIONS else 2
    if not sharded:
        return 0.0 if precision in FULL_PRECISIONS else e * parameters.total
    if layout.zero == 3 and layout.pp == 1:
        return e * (parameters.ends + min(2, parameters.units) * parameters.unit)
    return e * (parameters.total + parameters.unit)


def _gradients_on_the_way(parameters: RankParameters, layout: ResolvedLayout, sharded: bool) -> float:
    """Not yet reduced to shards: of a unit, with its copy for the reduction; or of all, as long as they accumulate."""
    if not sharded:
        return 0.0
    several = layout.grad_accum_steps > 1
    if layout.pp > 1 or (layout.zero == 1 and several):
        return 4 * parameters.total + 4 * max(parameters.unit, parameters.ends)
    return 8 * max(parameters.unit, parameters.ends)


def _activations(
    parameters: RankParameters, block: BlockBytes, layout: ResolvedLayout, pp_rank: int, tokens: float, device: str
) -> float:
    under_way = micro_batches_under_way(layout, pp_rank)
    stored = parameters.layers * under_way * block.kept
    if layout.offload_activations and device != "cpu":
        stored = min(stored, _BLOCKS_IN_FLIGHT * block.kept)
    return tokens * (stored + block.passing + block.whole - block.kept)


def _boundaries(
    shape: ModelShape, parameters: RankParameters, layout: ResolvedLayout, tokens: float, precision: str
) -> float:
    """Final norm, and what a pipeline rank receives into: inputs and gradients of every micro-batch of each chunk."""
    e = 4 if precision in FULL_PRECISIONS else 2
    hidden = tokens * shape.hidden / (layout.tp if layout.sequence_parallel else 1)
    norm = 3 * 4 * hidden if parameters.has_last else 0.0
    if layout.pp == 1:
        return norm
    sides = 2 * layout.interleave - parameters.has_first - parameters.has_last
    return norm + sides * layout.grad_accum_steps * e * hidden
