"""Measured rates of this machine, in the units of the planning formulas."""

from __future__ import annotations

from trainworks.config.spec import Spec


class CalibrationRequest(Spec):
    """Parameters of a calibration, with the shapes of the workload."""

    device: str
    precision: str
    num_ranks: int
    """Number of ranks on all nodes."""
    nodes: int = 1
    """Number of machines, with equally many ranks each."""
    threads_per_rank: int
    gemm_shapes: tuple[tuple[int, int, int], ...]
    """(m, n, k) each."""
    micro_batch: int
    sequence_length: int
    heads: int
    head_dim: int
    modules: tuple[str, ...] = ()
    """Modules that a rank of the run imports; their memory is part of the baseline."""


class GemmRate(Spec):
    """Speed of a product [m, k] x [k, n] and its gradients on one rank while all ranks compute it."""

    m: int
    n: int
    k: int
    flops_per_s: float


class Calibration(Spec):
    """Measured with all ranks busy; rates are per rank.

    A collective over S bytes is modelled as `all_reduce_latency_s + 2(n-1)/n * S / all_reduce_bytes_per_s`.
    """

    device: str
    precision: str
    num_ranks: int
    threads_per_rank: int
    gemms: tuple[GemmRate, ...]
    attention_flops_per_s: float
    """Scaled-dot-product attention, forward and backward, counted as 12 * heads * head_dim * T^2 per sequence."""
    memory_bytes_per_s: float
    """Bytes read plus bytes written per second by an element-wise operation on arrays larger than the caches."""
    optimizer_params_per_s: float
    """Parameters that the fused AdamW step updates per second, gradient clipping included."""
    op_overhead_s: float
    """Host time of one small differentiable operation, forward and backward together."""
    all_reduce_latency_s: float
    all_reduce_bytes_per_s: float
    """Bus bandwidth, one direction, per rank; meaningless for one rank."""
    baseline_bytes: int
    """Resident memory of one rank without a model."""
    seconds: float
    """Duration of the measurement."""
    others_share: float | None = None
    """Share of the cores' time that other programs used meanwhile, 0 to 1; None where several machines measured."""
