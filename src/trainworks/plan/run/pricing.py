"""A workload on ranks at hand, as a job of the planner: measured rates in place of those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator
from trainworks.config.layout import ANY_LAYOUT, ModelSupport, ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.degrees import layouts_of
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.run.adapters import adapted_flops_per_token, adapted_memories, adapted_times, adapter_parameters
from trainworks.plan.run.memory import RunMemories, held_as, run_memories
from trainworks.plan.run.optimizer import moment_bytes, update_factor
from trainworks.plan.run.preference import (
    in_sequences,
    reference_flops_per_token,
    with_reference_memory,
    with_reference_time,
)
from trainworks.plan.run.trainable import trainable
from trainworks.plan.software import Software, worker_software
from trainworks.plan.step_time import TrainingJob, predict_step_times
from trainworks.plan.uncertainty import parts_s
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import StepTimeTerms

_ENOUGH_TOKENS = 8192
"""Tokens per micro-batch above which matrix products do not get faster."""
_HOST_SHARE = 0.8
"""Share of a host's memory that its ranks may use; the rest is the system's and that of other programs."""
_TYPICAL_BASELINE_BYTES = 400_000_000
"""Memory of a rank without a model on a CPU, before it is measured."""
_CONTEXT_BYTES = round(COEFFICIENTS.context_bytes)
"""The same on an accelerator: the driver's context and the buffers of the collectives."""


def calibration_request(
    shape: ModelShape,
    processes: Processes,
    *,
    micro_batch: int,
    sequence_length: int,
    precision: str,
    machines: int = 1,
    modules: Sequence[str] = (),
) -> CalibrationRequest:
    """The matrix products and the attention of one micro-batch of this model; all nodes may share one machine.

    The products of a micro-batch of 1 are measured, too: on a CPU they fit into its caches and may be the faster ones.
    """
    return CalibrationRequest(
        device=processes.device,
        precision=precision,
        num_ranks=processes.world_size,
        nodes=machines,
        threads_per_rank=processes.threads_per_process,
        gemm_shapes=tuple(
            (size * sequence_length, width, shape.hidden)
            for size in sorted({1, micro_batch})
            for width in (shape.hidden, shape.feed_forward, shape.vocabulary)
        ),
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        heads=shape.heads,
        head_dim=shape.head_dim,
        modules=tuple(modules),
    )


def cluster_of_ranks(processes: Processes, *, memory_per_rank_bytes: int) -> ClusterDescription:
    """The ranks of a run, described as a cluster whose accelerators they are; its rates are those of a calibration."""
    rank = Accelerator(
        name=processes.device,
        vendor="measured",
        launched=0,
        memory_bytes=memory_per_rank_bytes,
        usable_bytes=round(_HOST_SHARE * memory_per_rank_bytes) if processes.device == "cpu" else None,
        memory_bytes_per_s=0.0,
        peak_flops_per_s={},
        scale_up="measured",
        scale_up_bytes_per_s=0.0,
        host_bytes_per_s=0.0,
    )
    return ClusterDescription(
        name=f"{processes.world_size} ranks at hand",
        accelerator=rank,
        num_nodes=processes.nodes,
        accelerators_per_node=processes.processes_per_node,
        scale_up_domain=processes.processes_per_node,
        scale_up_bytes_per_s=0.0,
        node_bytes_per_s=0.0,
        network="measured",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob(TrainingJob):
    """A workload as the worker trains it on the ranks of a run.

    Before a calibration it has memory and no times.
    """

    workload: Workload
    device: str
    """`cpu` or `cuda`."""
    baseline_bytes: int
    """Memory of a rank without a model, on its device."""
    support: ModelSupport = ANY_LAYOUT

    complication: ClassVar[float] = 0.05
    """More than on a described cluster: on ranks at hand plain data parallelism is what is measured best, and two
    layouts differ from their predictions by 7 % (median, docs/reference/local-accuracy.md)."""
    context_pieces: ClassVar[int] = 1

    @property
    def largest_micro_batch(self) -> int:
        """Samples of one rank that a search tries at most: matrix products of more tokens are not faster."""
        return max(1, _ENOUGH_TOKENS // (self.sequence_length * self.workload.sequences_per_sample))

    def calibrated(self, calibration: Calibration) -> RunJob:
        """The same job with measured rates, and on a CPU with the measured memory of a rank without a model."""
        baseline = calibration.baseline_bytes if self.device == "cpu" else self.baseline_bytes
        return replace(self, calibration=calibration, baseline_bytes=baseline)

    def memories(self, layouts: Layouts) -> RunMemories:
        """Peak memory of the fullest rank of every layout."""
        layouts, moments = in_sequences(layouts, self.workload), moment_bytes(self.workload.optimizer, self.shape)
        memories = run_memories(
            self.shape,
            layouts,
            sequence_length=self.sequence_length,
            precision=self.precision,
            baseline_bytes=self.baseline_bytes,
            device=self.device,
            dropout=self.workload.model.dropout,
            moment_bytes=moments,
            autocast=self.software.autocast,
        )
        adapter, shape = self.workload.adapter, self.shape
        held = held_as(shape, layouts, self.precision, self.device)
        if adapter is not None:
            kept = {"precision": self.precision, "device": self.device}
            memories = adapted_memories(memories, shape, held, adapter, moment_bytes=moments, **kept)
        if self.workload.preference is None:
            return memories
        return with_reference_memory(memories, shape, held, self.workload)

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout."""
        layouts = in_sequences(layouts, self.workload)
        times = predict_step_times(self, layouts, coefficients)
        factor = update_factor(self.workload.optimizer, self.device)
        times = replace(times, optimizer_s=factor * times.optimizer_s)
        adapter, precision = self.workload.adapter, self.precision
        if adapter is not None:
            length = self.sequence_length
            times = adapted_times(times, self.shape, layouts, adapter, length=length, precision=precision)
        return times if self.workload.preference is None else with_reference_time(times, layouts, precision)

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence, or of both of a pair."""
        return self.sequence_length * self.workload.sequences_per_sample

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs of a sample, forward and backward; frozen weights have no gradient, a reference forward alone."""
        return self.tokens_per_sample * workload_flops_per_token(self)

    @property
    def num_trained(self) -> int:
        """Parameters that take gradients: those of the adapter, or all."""
        adapter = self.workload.adapter
        return self.shape.num_parameters if adapter is None else adapter_parameters(self.shape, adapter)

    def runnable(self, layouts: Layouts) -> NDArray[np.bool_]:
        """True where the worker can train the layout; shape [n]."""
        return trainable(layouts, self.workload, self.shape, self.support)


def workload_flops_per_token(job: RunJob) -> float:
    """Model FLOPs per token of the workload."""
    workload, shape, length = job.workload, job.shape, job.sequence_length
    trained = (
        model_flops_per_token(shape, length)
        if workload.adapter is None
        else adapted_flops_per_token(shape, workload.adapter, length)
    )
    return trained if workload.preference is None else trained + reference_flops_per_token(shape, length)


def software_of_workload(workload: Workload, device: str) -> Software:
    """The worker's software for a workload; frozen weights that are kept in 16 bits or 4 are not cast at each use."""
    own = frozenset({"framework", "compiled", "attention"})
    software = worker_software(device, compiled=workload.compile, dropout=workload.model.dropout)
    software = replace(software, name="Trainworks", said=own)
    kept_in_32_bits = workload.adapter is None or workload.adapter.base == "fp32"
    return software if kept_in_32_bits else replace(software, autocast=False)


def run_job(
    workload: Workload,
    shape: ModelShape,
    processes: Processes,
    *,
    calibration: Calibration | None = None,
    memory_per_rank_bytes: int = 0,
    support: ModelSupport = ANY_LAYOUT,
) -> RunJob:
    """The workload on these ranks.

    Args:
        workload: of the run file.
        shape: of its model.
        processes: the ranks.
        calibration: their measured rates; None before they are measured.
        memory_per_rank_bytes: what there is; 0 where nothing is checked against it.
        support: of the model by the worker, which a search of layouts needs.
    """
    cluster = cluster_of_ranks(processes, memory_per_rank_bytes=memory_per_rank_bytes)
    job = replace(_job(workload, shape, cluster, processes.device), support=support)
    return job if calibration is None else job.calibrated(calibration)


def described_job(workload: Workload, shape: ModelShape, cluster: ClusterDescription) -> RunJob:
    """The workload as the worker trains it on a described cluster, one rank per accelerator."""
    return _job(workload, shape, cluster, "cuda")


def _job(workload: Workload, shape: ModelShape, cluster: ClusterDescription, device: str) -> RunJob:
    return RunJob(
        shape,
        workload.data.sequence_length,
        workload.precision,
        cluster,
        software_of_workload(workload, device),
        workload=workload,
        device=device,
        baseline_bytes=_TYPICAL_BASELINE_BYTES if device == "cpu" else _CONTEXT_BYTES,
    )


def step_time_terms(times: StepTimes, index: int = 0) -> StepTimeTerms:
    """One of the layouts' step times."""
    return StepTimeTerms(**{term.name: float(getattr(times, term.name)[index]) for term in fields(times)})


@dataclass(frozen=True, slots=True)
class LayoutPrediction:
    """Predicted memory and time of a layout on its fullest rank."""

    memory: MemoryTerms
    step_time: StepTimeTerms


Pricing = Callable[[ResolvedLayout], LayoutPrediction]


def pricing(workload: Workload, shape: ModelShape, processes: Processes, calibration: Calibration) -> Pricing:
    """Prices of this workload on these ranks."""
    job = run_job(workload, shape, processes, calibration=calibration)

    def price(layout: ResolvedLayout) -> LayoutPrediction:
        layouts = layouts_of([layout])
        return LayoutPrediction(job.memories(layouts).terms(), step_time_terms(job.step_times(layouts)))

    return price


def parts_of_step(job: RunJob, layout: ResolvedLayout) -> Array:
    """Predicted seconds of a step by rate, shape [R]; see `parts_s`."""
    parts: Array = parts_s(job, layouts_of([layout]))[:, 0]
    return parts
