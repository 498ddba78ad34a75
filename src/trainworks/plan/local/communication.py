"""Time a rank waits for others in one step: on a CPU every collective blocks its caller, so nothing is hidden.

Symbols: n ranks of a group, S bytes, B measured bus bandwidth, a measured latency of an all-reduce, M tokens of a
micro-batch on this rank, m micro-batches, and those of `plan.parameters`.

    all-reduce                                        a + 2 (n - 1) / n S / B
    gather, reduce to shards, all-to-all              a + (n - 1) / n S / B
    to the next stage                                 a + S / B
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.local.rank_parameters import FULL_PRECISIONS, RankParameters, is_sharded
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape

__all__ = ["all_reduce_time_s", "bucket_mib", "communication_s", "last_bucket_bytes", "ring_share"]

_FIRST_BUCKET_BYTES = 1 << 20
_MAX_BUCKET_MIB = 256


def ring_share(num_ranks: int) -> float:
    """Bytes over the wire per byte of an all-reduce: 2(n-1)/n; 0 for one rank."""
    return 2 * (num_ranks - 1) / num_ranks


def all_reduce_time_s(message_bytes: float, num_ranks: int, *, latency_s: float, bytes_per_s: float) -> float:
    """T = a + 2(n-1)/n * S / B; 0 for one rank.

    Args:
        message_bytes: S, the buffer each rank contributes.
        num_ranks: n.
        latency_s: a, of the whole collective.
        bytes_per_s: B, bus bandwidth, one direction, per rank.

    Source: nccl-tests doc/PERFORMANCE.md.

    >>> all_reduce_time_s(1e9, 8, latency_s=0.0, bytes_per_s=350e9)
    0.005
    """
    if num_ranks == 1:
        return 0.0
    return latency_s + ring_share(num_ranks) * message_bytes / bytes_per_s


def communication_s(
    shape: ModelShape,
    layout: ResolvedLayout,
    parameters: RankParameters,
    calibration: Calibration,
    *,
    sequence_length: int,
) -> float:
    """Waiting time of one pipeline rank in one step: the sum over the axes."""
    sharded = is_sharded(shape, layout, calibration.precision)
    wires = _Wires(calibration)
    tokens = layout.micro_batch * sequence_length / layout.cp
    narrow = calibration.precision not in FULL_PRECISIONS
    per_micro_batch = (
        _tensor_s(shape, layout, parameters, wires, tokens * (2 if narrow else 4))
        + _context_s(shape, layout, parameters, wires, tokens * (2 if narrow else 4))
        + _experts_s(shape, layout, parameters, wires, tokens * (2 if narrow and sharded else 4))
        + _pipeline_s(shape, layout, parameters, wires, tokens * (2 if narrow else 4))
    )
    of_weights = (_shards_s if sharded else _replicas_s)(shape, layout, parameters, wires, 2 if narrow else 4)
    return layout.grad_accum_steps * per_micro_batch + of_weights


@dataclass(frozen=True, slots=True)
class _Wires:
    """Times of collectives on this machine."""

    calibration: Calibration

    def all_reduce_s(self, num_bytes: float, ranks: int) -> float:
        """See the module."""
        rates = self.calibration
        return all_reduce_time_s(
            num_bytes, ranks, latency_s=rates.all_reduce_latency_s, bytes_per_s=rates.all_reduce_bytes_per_s
        )

    def half_s(self, num_bytes: float, ranks: int) -> float:
        """Time of a gather, a reduction to shards or an all-to-all of so many bytes on all ranks or on each."""
        return self.all_reduce_s(num_bytes / 2, ranks)

    def send_s(self, num_bytes: float) -> float:
        """Time to send to one other rank."""
        return self.all_reduce_s(num_bytes, 2)


def _replicas_s(shape: ModelShape, layout: ResolvedLayout, parameters: RankParameters, wires: _Wires, _: int) -> float:
    """Gradients are summed in buckets, each as soon as backward has filled it; the last one cannot hide."""
    sent = 0.5 if layout.gradient_compression in ("bf16", "fp16") else 1.0
    return wires.all_reduce_s(sent * last_bucket_bytes(shape, parameters, layout.bucket_mib << 20), layout.dp_replicate)


def bucket_mib(shape: ModelShape, num_ranks: int, calibration: Calibration) -> int:
    """MiB of gradients that replicas send at a time.

    Small buckets pay the latency a often, a large last one is exposed. With G bytes of gradients in buckets of S

        G / S * a + 2(n-1)/n * S / B    is least for    S = sqrt(G a B / (2(n-1)/n))

    Edge: 25, torch's default, for one rank; never below 1 nor above 256.
    """
    if num_ranks == 1:
        return 25
    gradient_bytes = 4 * shape.num_parameters
    product = gradient_bytes * calibration.all_reduce_latency_s * calibration.all_reduce_bytes_per_s
    best_bytes = math.sqrt(product / ring_share(num_ranks))
    return min(_MAX_BUCKET_MIB, max(1, round(best_bytes / 2**20)))


def _shards_s(shape: ModelShape, layout: ResolvedLayout, held: RankParameters, wires: _Wires, element: int) -> float:
    """Time of the collectives of sharded weights and gradients.

    With zero 3 two gathers of the weights per micro-batch, else and under pipelines one per step; fp32 gradients to
    their shards after every micro-batch, with zero 1 and under pipelines once; then summed over replicas.
    """
    m, at_once = layout.grad_accum_steps, layout.pp > 1
    gathers = 2 * m if layout.zero == 3 and not at_once else 1
    reductions = 1 if layout.zero == 1 or at_once else m
    shards = layout.dp_shard * layout.cp
    groups = [(held.dense, shards, held.units + 1), (held.experts, shards * layout.tp // layout.ep, held.layers)]
    total = 0.0
    for parameters, ranks, units in groups:
        if parameters and ranks > 1:
            total += gathers * units * wires.half_s(element * parameters / units, ranks)
            total += reductions * units * wires.half_s(4 * parameters / units, ranks)
    return total + wires.all_reduce_s(4 * held.sharded(layout), layout.dp_replicate)


def _tensor_s(
    shape: ModelShape, layout: ResolvedLayout, parameters: RankParameters, wires: _Wires, token_bytes: float
) -> float:
    """Two exchanges of a block's hidden states forward and two backward, each an all-reduce, or with sequence
    parallelism a gather and a reduction; one of the embedding, one of the loss, and three numbers per token of it.
    """
    hidden_bytes = token_bytes * shape.hidden
    all_reduce_s = wires.all_reduce_s(hidden_bytes, layout.tp)
    exchange = 2 * wires.half_s(hidden_bytes, layout.tp) if layout.sequence_parallel else all_reduce_s
    per_half = 3 if layout.recompute == "full" else 2
    per_block = per_half if shape.experts else 2 * per_half  # each rank routes its own positions
    at_ends = parameters.has_first + 3 * parameters.has_last
    return parameters.layers * per_block * exchange + at_ends * all_reduce_s


def _context_s(
    shape: ModelShape, layout: ResolvedLayout, parameters: RankParameters, wires: _Wires, token_bytes: float
) -> float:
    """Queries, keys and values to the ranks of their heads, the attention's output back, and their gradients."""
    width, kv_width = shape.heads * shape.head_dim / layout.tp, shape.kv_heads * shape.head_dim / layout.tp
    there, back = (wires.half_s(token_bytes * each, layout.cp) for each in (width + 2 * kv_width, width))
    return parameters.layers * _walks(layout) * (there + back)


def _experts_s(
    shape: ModelShape, layout: ResolvedLayout, parameters: RankParameters, wires: _Wires, token_bytes: float
) -> float:
    """Tokens to the ranks of their experts and back, and their gradients; first how many they are."""
    if not parameters.experts or layout.ep == 1:
        return 0.0
    routed_bytes = token_bytes * shape.experts_per_token / layout.tp * shape.hidden
    return parameters.layers * (_walks(layout) * 2 * wires.half_s(routed_bytes, layout.ep) + wires.half_s(0, layout.ep))


def _pipeline_s(
    shape: ModelShape, layout: ResolvedLayout, parameters: RankParameters, wires: _Wires, token_bytes: float
) -> float:
    """Hidden states to the next stage and gradients back, of every chunk."""
    if layout.pp == 1:
        return 0.0
    sides = 2 * layout.interleave - parameters.has_first - parameters.has_last
    split = layout.tp if layout.sequence_parallel else 1
    return 2 * sides * wires.send_s(token_bytes * shape.hidden / split)


def _walks(layout: ResolvedLayout) -> int:
    """Forward, backward, and forward again."""
    return 3 if layout.recompute == "full" else 2


def last_bucket_bytes(shape: ModelShape, parameters: RankParameters, bucket_bytes: int) -> float:
    """Gradients in DDP's last bucket. Backward fills the first with 1 MiB, then buckets of that size, and the input
    embeddings, the last to get their gradients, are never split (torch.nn.parallel.DistributedDataParallel).
    """
    embeddings = 4 * shape.hidden * (shape.vocabulary + shape.max_sequence_length * shape.learned_positions)
    before = max(0, 4 * parameters.total - embeddings - _FIRST_BUCKET_BYTES)
    return min(4 * parameters.total, before % bucket_bytes + embeddings)
