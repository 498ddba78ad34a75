"""Time of one optimizer step: a visible sum of small terms.

Symbols: b micro-batch, T sequence length, m accumulation steps, N parameters, n ranks, and those of `model_shape`.
"""

from __future__ import annotations

from trainworks.plan.model_shape import block_matmul_parameters
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.resolved import ModelShape, Processes, StepTimeTerms
from trainworks.spec.layout import ResolvedLayout

__all__ = ["all_reduce_time_s", "calibration_request", "predict_step_time", "ring_share"]

_OPS_PER_BLOCK = 70
"""Differentiable operations of one unfused block: norms, projections, rotations, attention, MLP, residuals."""
_PASSES_HIDDEN = 110
"""Reads and writes of h values per token and block in element-wise work, forward and backward, unfused."""
_PASSES_FEED_FORWARD = 20
"""The same for the f values of the MLP."""
_PASSES_LOGITS = 14
"""The same for the V logits: cast, log-softmax, loss and their gradients."""
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_DATA_S = 3e-5
"""Handing over a batch that was read ahead."""


def calibration_request(
    shape: ModelShape, layout: ResolvedLayout, processes: Processes, *, sequence_length: int, precision: str
) -> CalibrationRequest:
    """The matrix products and the attention of one micro-batch of this model."""
    tokens = layout.micro_batch * sequence_length
    return CalibrationRequest(
        device=processes.device,
        precision=precision,
        num_ranks=processes.world_size,  # all nodes share this machine
        threads_per_rank=processes.threads_per_process,
        gemm_shapes=(
            (tokens, shape.hidden, shape.hidden),
            (tokens, shape.feed_forward, shape.hidden),
            (tokens, shape.vocabulary, shape.hidden),
        ),
        micro_batch=layout.micro_batch,
        sequence_length=sequence_length,
        heads=shape.heads,
        head_dim=shape.head_dim,
    )


def predict_step_time(
    shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, *, sequence_length: int
) -> StepTimeTerms:
    """One optimizer step on one rank, from rates that were measured with all ranks busy.

    compute        m * (matrix products + attention + element-wise traffic + host time per operation)
    communication  gradients once per step, what backward does not hide
    optimizer      N / s divided by the measured rate
    """
    micro = (
        _matmul_s(shape, layout, calibration, sequence_length)
        + _attention_s(shape, layout, calibration, sequence_length)
        + _elementwise_s(shape, layout, calibration, sequence_length)
        + shape.layers * _OPS_PER_BLOCK * calibration.op_overhead_s
    )
    return StepTimeTerms(
        compute_s=layout.grad_accum_steps * micro,
        communication_s=_communication_s(shape, layout, calibration),
        optimizer_s=shape.num_parameters / layout.dp_shard / calibration.optimizer_params_per_s,
        data_s=_DATA_S,
    )


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


def _matmul_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, sequence_length: int) -> float:
    """Forward 2 FLOPs per weight and token, backward twice that, at the rate of the matching measured product."""
    tokens = layout.micro_batch * sequence_length
    square, wide, vocabulary = (gemm.flops_per_s for gemm in calibration.gemms)
    mlp = (3 if shape.gated_mlp else 2) * shape.hidden * shape.feed_forward
    attention = block_matmul_parameters(shape) - mlp
    per_token = shape.layers * (attention / square + mlp / wide) + shape.hidden * shape.vocabulary / vocabulary
    return 6 * tokens * per_token


def _attention_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, sequence_length: int) -> float:
    flops = 12 * shape.layers * layout.micro_batch * shape.heads * shape.head_dim * sequence_length**2
    return flops / calibration.attention_flops_per_s


def _elementwise_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, sequence_length: int) -> float:
    per_block = _PASSES_HIDDEN * shape.hidden + _PASSES_FEED_FORWARD * shape.feed_forward
    values = shape.layers * per_block + _PASSES_LOGITS * shape.vocabulary
    return 4 * layout.micro_batch * sequence_length * values / calibration.memory_bytes_per_s


def _communication_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration) -> float:
    """Exposed communication of one step.

    Replicas: gradients are summed in buckets, each as soon as backward has filled it; the last one cannot hide.
    Shards: per micro-batch 2 gathers of parameters and one reduction of fp32 gradients, each (n-1)/n of its bytes, and
    a latency per unit and collective; nothing hidden, as on a CPU.
    """
    rates = {"latency_s": calibration.all_reduce_latency_s, "bytes_per_s": calibration.all_reduce_bytes_per_s}
    gradient_bytes = 4 * shape.num_parameters
    if layout.dp_shard > 1:
        gathers = 2 * layout.grad_accum_steps
        element_bytes = 4 if calibration.precision == "fp32" else 2
        moved_bytes = (gathers * element_bytes + 4 * layout.grad_accum_steps) * shape.num_parameters
        volume = ring_share(layout.dp_shard) / 2 * moved_bytes / calibration.all_reduce_bytes_per_s
        latencies = (shape.layers + 1) * 3 * layout.grad_accum_steps * calibration.all_reduce_latency_s
        outer = all_reduce_time_s(gradient_bytes / layout.dp_shard, layout.dp_replicate, **rates)
        return volume + latencies + outer
    return all_reduce_time_s(last_bucket_bytes(shape), layout.dp_replicate, **rates)


def last_bucket_bytes(shape: ModelShape) -> int:
    """Gradients in DDP's last bucket. Backward fills the first with 1 MiB, then buckets of 25 MiB, and the input
    embeddings, the last to get their gradients, are never split (torch.nn.parallel.DistributedDataParallel).
    """
    embeddings = 4 * shape.hidden * (shape.vocabulary + shape.max_sequence_length * shape.learned_positions)
    before = max(0, 4 * shape.num_parameters - embeddings - _FIRST_BUCKET_BYTES)
    return min(4 * shape.num_parameters, before % _BUCKET_BYTES + embeddings)
