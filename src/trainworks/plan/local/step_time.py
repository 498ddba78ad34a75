"""Time of one optimizer step: a visible sum of small terms.

Symbols: M tokens of a micro-batch on this rank, b T / c; m micro-batches, p stages of v chunks, t tp, c cp, and those
of `plan.parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.local.communication import communication_s
from trainworks.plan.local.rank_parameters import RankParameters, rank_parameters
from trainworks.plan.parameters import (
    attention_parameters,
    dense_mlp_parameters,
    expert_parameters,
    num_expert_layers,
    router_parameters,
    shared_expert_parameters,
)
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import Processes, StepTimeTerms

__all__ = ["calibration_request", "predict_step_time"]

_OPS_PER_BLOCK = 70
"""Differentiable operations of one unfused block: norms, projections, rotations, attention, MLP, residuals."""
_PASSES_HIDDEN = 110
"""Reads and writes of h values per token and block in element-wise work, forward and backward, unfused."""
_PASSES_FEED_FORWARD = 20
"""The same for the f values of the MLP."""
_PASSES_LOGITS = 14
"""The same for the V logits: cast, log-softmax, loss and their gradients."""
_OPS_PER_TENSOR_PARALLEL_BLOCK = 140
"""More of them where weights are distributed tensors: wrapping, unwrapping and looking up how they are cut."""
_REPEATED = {"none": 0.0, "selective": 0.5, "full": 1.0}
"""Share of forward's element-wise work and operations that backward repeats."""
_DATA_S = 3e-5
"""Handing over a batch that was read ahead."""


def calibration_request(
    shape: ModelShape,
    layout: ResolvedLayout,
    processes: Processes,
    *,
    sequence_length: int,
    precision: str,
    machines: int = 1,
    modules: Sequence[str] = (),
) -> CalibrationRequest:
    """The matrix products and the attention of one micro-batch of this model; all nodes may share one machine."""
    tokens = layout.micro_batch * sequence_length
    return CalibrationRequest(
        device=processes.device,
        precision=precision,
        num_ranks=processes.world_size,
        nodes=machines,
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
        modules=tuple(modules),
    )


def predict_step_time(
    shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, *, sequence_length: int
) -> StepTimeTerms:
    """One optimizer step of the slowest pipeline rank, from rates that were measured with all ranks busy.

        compute        (m + bubble) * (matrix products + attention + element-wise traffic + host time per operation)
        bubble         (p - 1) / v micro-batches, with zero bubble a third of it
        communication  collectives of all axes, see `communication`
        optimizer      parameters that this rank keeps / the measured rate

    Source of the bubble: Narayanan et al. 2021, section 2.2; of its third: Qi et al. 2023, with forward, gradients of
    inputs and gradients of weights taking the same time.
    """
    parameters = [rank_parameters(shape, layout, rank) for rank in range(layout.pp)]
    micro = [_micro_batch_s(shape, layout, calibration, each, sequence_length) for each in parameters]
    waits = [communication_s(shape, layout, each, calibration, sequence_length=sequence_length) for each in parameters]
    slowest = max(range(layout.pp), key=lambda rank: layout.grad_accum_steps * micro[rank] + waits[rank])
    bubble = (sum(micro) - micro[slowest]) / layout.interleave * (1 / 3 if layout.zero_bubble else 1)
    return StepTimeTerms(
        compute_s=layout.grad_accum_steps * micro[slowest] + bubble,
        communication_s=waits[slowest],
        optimizer_s=max(each.sharded(layout) for each in parameters) / calibration.optimizer_params_per_s,
        data_s=_DATA_S,
    )


def _micro_batch_s(
    shape: ModelShape,
    layout: ResolvedLayout,
    calibration: Calibration,
    parameters: RankParameters,
    sequence_length: int,
) -> float:
    """Forward and backward of a pipeline rank, without waiting."""
    tokens = layout.micro_batch * sequence_length / layout.cp
    again = _REPEATED[layout.recompute]
    products = 4 / 3 if layout.recompute == "full" else 1.0
    blocks = products * (
        _products_s(shape, layout, calibration, tokens) + _attention_s(shape, layout, calibration, sequence_length)
    )
    operations = _OPS_PER_BLOCK + (_OPS_PER_TENSOR_PARALLEL_BLOCK if layout.tp > 1 else 0)
    blocks += (1 + again / 3) * (
        _elementwise_s(shape, layout, calibration, tokens) + operations * calibration.op_overhead_s
    )
    return parameters.layers * blocks + (_output_s(shape, layout, calibration, tokens) if parameters.has_last else 0.0)


def _products_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, tokens: float) -> float:
    """Products of one block: forward 2 FLOPs per weight and token, backward twice that, at the measured rate."""
    square, wide, _ = (gemm.flops_per_s for gemm in calibration.gemms)
    mlp = float(dense_mlp_parameters(shape))
    if shape.experts:
        routed = shape.experts_per_token * expert_parameters(shape)
        active = routed + shared_expert_parameters(shape) + router_parameters(shape)
        share = num_expert_layers(shape) / shape.layers
        mlp = share * active + (1 - share) * mlp
    return 6 * tokens / layout.tp * (attention_parameters(shape) / square + mlp / wide)


def _attention_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, sequence_length: int) -> float:
    flops = 12 * layout.micro_batch * shape.heads * shape.head_dim * sequence_length**2
    return flops / (layout.tp * layout.cp) / calibration.attention_flops_per_s


def _elementwise_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, tokens: float) -> float:
    """Bytes that pass through memory in one block."""
    width = shape.feed_forward
    if shape.experts:
        width = shape.experts_per_token * shape.expert_feed_forward + shape.shared_feed_forward
    split = layout.tp if layout.sequence_parallel else 1
    values = _PASSES_HIDDEN * shape.hidden / split + _PASSES_FEED_FORWARD * width / layout.tp
    return 4 * tokens * values / calibration.memory_bytes_per_s


def _output_s(shape: ModelShape, layout: ResolvedLayout, calibration: Calibration, tokens: float) -> float:
    """Logits and their loss."""
    rows = shape.vocabulary / layout.tp
    products = 6 * tokens * shape.hidden * rows / calibration.gemms[2].flops_per_s
    return products + 4 * tokens * _PASSES_LOGITS * rows / calibration.memory_bytes_per_s
