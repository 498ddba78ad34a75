"""A workload on ranks at hand, as a job of the planner: measured rates in place of those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator
from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.run.memory import predict_memory
from trainworks.plan.software import worker_software
from trainworks.plan.step_time import StepTimes, TrainingJob
from trainworks.plan.uncertainty import parts_s
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import MemoryTerms, Processes, StepTimeTerms


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


def cluster_of_ranks(calibration: Calibration, *, nodes: int = 1, memory_per_rank_bytes: int = 0) -> ClusterDescription:
    """The nodes that a calibration measured, described as a cluster whose accelerators are the ranks."""
    fastest = max(gemm.flops_per_s for gemm in calibration.gemms)
    rank = Accelerator(
        name=calibration.device,
        vendor="measured",
        launched=0,
        memory_bytes=memory_per_rank_bytes,
        memory_bytes_per_s=calibration.memory_bytes_per_s,
        peak_flops_per_s={calibration.precision: fastest},  # type: ignore[dict-item]
        scale_up="measured",
        scale_up_bytes_per_s=calibration.all_reduce_bytes_per_s,
        host_bytes_per_s=calibration.memory_bytes_per_s,
    )
    return ClusterDescription(
        name=f"{calibration.num_ranks} ranks at hand",
        accelerator=rank,
        num_nodes=nodes,
        accelerators_per_node=calibration.num_ranks // nodes,
        scale_up_domain=calibration.num_ranks,
        scale_up_bytes_per_s=calibration.all_reduce_bytes_per_s,
        node_bytes_per_s=calibration.all_reduce_bytes_per_s * calibration.num_ranks / nodes,
        network="measured",
    )


def training_job(workload: Workload, shape: ModelShape, calibration: Calibration) -> TrainingJob:
    """The workload as the worker trains it on the ranks that were measured."""
    return TrainingJob(
        shape,
        workload.data.sequence_length,
        workload.precision,
        cluster_of_ranks(calibration),
        worker_software(calibration.device, compiled=workload.compile, dropout=workload.model.dropout),
        calibration=calibration,
    )


def layouts_of(layouts: Sequence[ResolvedLayout], global_batch: int) -> Layouts:
    """The same layouts as arrays."""
    rows = [_degrees(layout) for layout in layouts]
    return Layouts.of(global_batch=global_batch, **{name: [row[name] for row in rows] for name in rows[0]})  # type: ignore[arg-type]


def _degrees(layout: ResolvedLayout) -> dict[str, int]:
    shares = layout.dp_shard * layout.cp > 1
    return {
        "dp": layout.dp,
        "dp_shard": layout.dp_shard,
        "zero": layout.zero if shares else 0,
        "tp": layout.tp,
        "sequence_parallel": layout.sequence_parallel,
        "pp": layout.pp,
        "interleave": layout.interleave,
        "cp": layout.cp,
        "ep": layout.ep,
        "micro_batch": layout.micro_batch,
        "recompute": Recompute[layout.recompute.upper()],
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }


def step_time_terms(times: StepTimes, index: int = 0) -> StepTimeTerms:
    """One of the layouts' step times."""
    return StepTimeTerms(**{term.name: float(getattr(times, term.name)[index]) for term in fields(times)})


@dataclass(frozen=True, slots=True)
class LayoutPrediction:
    """Predicted memory and time of a layout on its fullest rank."""

    memory: MemoryTerms
    step_time: StepTimeTerms


Pricing = Callable[[ResolvedLayout], LayoutPrediction]


def pricing(workload: Workload, shape: ModelShape, calibration: Calibration) -> Pricing:
    """Prices of this workload on this machine."""

    def price(layout: ResolvedLayout) -> LayoutPrediction:
        memory = predict_memory(
            shape,
            layout,
            sequence_length=workload.data.sequence_length,
            precision=workload.precision,
            baseline_bytes=calibration.baseline_bytes,
            dropout=workload.model.dropout,
            device=calibration.device,
        )
        job, layouts = _job_of(layout, workload, shape, calibration)
        return LayoutPrediction(memory, step_time_terms(job.step_times(layouts)))

    return price


def parts_of_step(layout: ResolvedLayout, workload: Workload, shape: ModelShape, calibration: Calibration) -> Array:
    """Predicted seconds of a step by rate, shape [R]; see `parts_s`."""
    parts: Array = parts_s(*_job_of(layout, workload, shape, calibration))[:, 0]
    return parts


def _job_of(
    layout: ResolvedLayout, workload: Workload, shape: ModelShape, calibration: Calibration
) -> tuple[TrainingJob, Layouts]:
    job = training_job(workload, shape, calibration)
    if layout.gradient_compression in ("bf16", "fp16"):
        job = replace(job, software=replace(job.software, sent_gradient_bytes=2))
    return job, layouts_of([layout], layout.dp * layout.micro_batch * layout.grad_accum_steps)
