"""A workload on ranks at hand, as a job of the planner: measured rates in place of those of the catalogue.

Preferences change memory and time. Samples of DPO are pairs, and a frozen reference reads them first. KTO trains on
single answers; model and reference read as many others, too. A reward model has no output matrix. Symbols: N parameters
of the model, s ranks that share them, F forwards without gradients: 1 with DPO, 3 with KTO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator
from trainworks.config.finetune import Adapter
from trainworks.config.layout import ANY_LAYOUT, ModelSupport, ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.config.software import AttentionTask
from trainworks.plan.activations import element_bytes
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.degrees import layouts_of
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.parameters import head_matmul_parameters
from trainworks.plan.run import adapters
from trainworks.plan.run.memory import FULL_PRECISIONS, RunMemories, effective_layouts, run_memories
from trainworks.plan.run.optimizer import moment_bytes, orthogonalisation_bytes, orthogonalisation_s, update_factor
from trainworks.plan.run.trainable import compiled_in_tests, trainable
from trainworks.plan.software import Software, worker_software
from trainworks.plan.step_time import TrainingJob
from trainworks.record.calibration import Calibration, CalibrationRequest
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import CompileChoice
from trainworks.record.step_time import StepTimeTerms


def count_in_sequences(layouts: Layouts, workload: Workload) -> Layouts:
    """The layouts with micro-batches in sequences, of which a pair has two."""
    return replace(layouts, micro_batch=layouts.micro_batch * workload.sequences_per_sample)


_ENOUGH_TOKENS = 8192
"""Tokens per micro-batch above which matrix products do not get faster. Assumed."""
_HOST_SHARE = 0.8
"""Share of a host's memory that its ranks may use; the rest is the system's and that of other programs. Assumed."""
_TYPICAL_BASELINE_BYTES = 400_000_000
"""Memory of a rank without a model on a CPU, before it is measured. Assumed."""
_CAPABILITIES = {"Pascal": (6, 0), "Volta": (7, 0), "Turing": (7, 5)}
"""Compute capability of the architectures without FlashAttention. Source: NVIDIA, CUDA GPUs by compute capability."""
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
    compile_choice: CompileChoice | None = None
    """What was decided of `compile: auto`; None before, and where the run file decides."""

    complication: ClassVar[float] = 0.05
    """More than on a described cluster: on ranks at hand plain data parallelism is what is measured best, and two
    layouts differ from their predictions by 7 % (median, docs/reference/local-accuracy.md)."""
    context_pieces: ClassVar[int] = 1

    @property
    def leaves_compile_open(self) -> bool:
        """Whether the plan has to decide about `compile: auto`, which is eager on processors."""
        return self.workload.compile == "auto" and self.device != "cpu"

    @property
    def largest_micro_batch(self) -> int:
        """Samples of one rank that a search tries at most: matrix products of more tokens are not faster."""
        return max(1, _ENOUGH_TOKENS // (self.sequence_length * self.workload.sequences_per_sample))

    def calibrated(self, calibration: Calibration) -> RunJob:
        """The same job with measured rates, and on a CPU with the measured memory of a rank without a model."""
        baseline = calibration.baseline_bytes if self.device == "cpu" else self.baseline_bytes
        return replace(self, calibration=calibration, baseline_bytes=baseline)

    @property
    def attention(self) -> AttentionTask | None:
        """The decoder's attention in training; None for a model that `transformers` computes, or may compute.

        GPUs at hand count as NVIDIA's of Ampere or later.
        """
        workload, shape = self.workload, self.shape
        is_decoder = workload.model.hf is None or (self.support.model_type and not self.support.uncut)
        if workload.task != "causal-lm" or not is_decoder:
            return None
        accelerator = self.cluster.accelerator
        return AttentionTask(
            device=self.device,
            capability=_CAPABILITIES.get(accelerator.architecture or "", (8, 0)),
            half=self.precision not in FULL_PRECISIONS,
            head_dim=shape.head_dim,
            positions=self.sequence_length,
            documents=workload.data.pack,
            window=shape.window if shape.window_layers == shape.layers else 0,
            dropout=workload.model.dropout > 0,
            deterministic=workload.deterministic,
            varlen=accelerator.vendor != "AMD",
        )

    def memories(self, layouts: Layouts) -> RunMemories:
        """Peak memory of the fullest rank of every layout.

        The frozen copy of a preference adds b N / s of weights, where b is 4, or 2 in bf16. Ranks of tp share it, and
        it is always sharded as with zero 3: gathered for a micro-batch and given back.
        """
        layouts, moments = count_in_sequences(layouts, self.workload), moment_bytes(self.workload.optimizer, self.shape)
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
            attention=self.attention,
        )
        if self.workload.trains_reward:
            memories = replace(memories, logits_bytes=np.zeros(len(layouts)))
        adapter, shape = self.workload.adapter, self.shape
        held = effective_layouts(shape, layouts, self.precision, self.device)
        if adapter is not None:
            memories = adapters.adapted_memories(
                memories,
                shape,
                held,
                adapter,
                length=self.sequence_length,
                precision=self.precision,
                software=self.software,
                device=self.device,
                moment_bytes=moments,
            )
        else:
            update_bytes = orthogonalisation_bytes(self.workload.optimizer, shape, self.precision)
            gone_bytes = memories.activations_bytes + memories.logits_bytes + memories.working_bytes
            working_bytes = memories.working_bytes + np.maximum(0.0, update_bytes - gone_bytes)
            memories = replace(memories, working_bytes=working_bytes)
        if not self._further_forwards or adapter is not None:  # adapters need no copy
            return memories
        shards = held.tp * np.where(held.zero > 0, np.maximum(1.0, held.dp_shard * held.cp), 1.0)
        copy_bytes = (2.0 if self.precision == "bf16" else 4.0) * shape.num_parameters / shards
        return replace(memories, weights_bytes=memories.weights_bytes + copy_bytes)

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout; with a reference also the F forwards without gradients.

        forward     1 + F times
        host        (3 + F) / 3: of two passes backward has twice the operations of forward
        head        (4 + F) / 3: two products of forward, as backward computes the logits again, and two of backward;
                    nothing of a reward model
        tp          (2 + F) / 2: backward exchanges as much as forward
        dp          shards gather weights once more, beside the gradients, and with KTO twice: its reference reads both
                    answers at once
        """
        layouts = count_in_sequences(layouts, self.workload)
        times = TrainingJob.step_times(self, layouts, coefficients)
        optimizer, adapter, precision = self.workload.optimizer, self.workload.adapter, self.precision
        times = replace(times, optimizer_s=update_factor(optimizer, self.device) * times.optimizer_s)
        if adapter is None:
            further_s = orthogonalisation_s(optimizer, self.shape, layouts, self.rates(coefficients), precision)
            times = replace(times, optimizer_s=times.optimizer_s + further_s)
        else:
            times = adapters.adapted_times(
                times,
                self.shape,
                layouts,
                adapter,
                length=self.sequence_length,
                precision=precision,
                device=self.rates(coefficients).device,
                fused=self.software.fuses(experts=bool(self.shape.experts)),
            )
        if self.workload.trains_reward:
            times = replace(times, head_s=np.zeros(len(layouts)))
        if not (further := self._further_forwards):
            return times
        weights, gradients = element_bytes(precision), 4.0
        again = (2 + min(further, 2)) * weights
        gathered = np.where(layouts.zero >= 3, (again + gradients) / (2 * weights + gradients), 1.0)
        return replace(
            times,
            forward_s=(1 + further) * times.forward_s,
            host_s=times.host_s * (3 + further) / 3,
            head_s=times.head_s * (4 + further) / 3,
            tp_s=times.tp_s * (2 + further) / 2,
            dp_s=times.dp_s * gathered,
        )

    @property
    def _further_forwards(self) -> int:
        """F."""
        preference = self.workload.preference
        return 0 if preference is None else {"dpo": 1, "kto": 3, "reward": 0}[preference.method]

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence, or of both of a pair."""
        return self.sequence_length * self.workload.sequences_per_sample

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs per token; frozen weights have no gradient, and each forward without gradients has a third."""
        shape, length, adapter = self.shape, self.sequence_length, self.workload.adapter
        plain = model_flops_per_token(shape, length)
        trained = plain if adapter is None else adapters.adapted_flops_per_token(shape, adapter, length)
        if self.workload.trains_reward:
            trained -= (6.0 if adapter is None else 4.0) * head_matmul_parameters(shape)
        return trained + self._further_forwards * plain / 3

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs of a sample, forward and backward."""
        return self.tokens_per_sample * self.flops_per_token

    @property
    def num_trained(self) -> int:
        """Parameters that take gradients: those of the adapter, or all."""
        adapter = self.workload.adapter
        return self.shape.num_parameters if adapter is None else adapters.adapter_parameters(self.shape, adapter)

    def runnable(self, layouts: Layouts) -> NDArray[np.bool_]:
        """True where the worker can train the layout; shape [n]."""
        mask = trainable(layouts, self.workload, self.shape, self.support)
        return mask & compiled_in_tests(layouts) if self.compile_choice and self.compile_choice.compiled else mask


def software_of_workload(workload: Workload, device: str) -> Software:
    """The worker's software for a workload; frozen weights that are kept in 16 bits or 4 are not cast at each use."""
    own = frozenset({"framework", "compiled", "attention"})
    software = worker_software(device, compiled=workload.compile is True, dropout=workload.model.dropout)
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
    # The ranks are its accelerators, and its rates are those of a calibration.
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
    cluster = ClusterDescription(
        name=f"{processes.world_size} ranks at hand",
        accelerator=rank,
        num_nodes=processes.nodes,
        accelerators_per_node=processes.processes_per_node,
        scale_up_domain=processes.processes_per_node,
        scale_up_bytes_per_s=0.0,
        node_bytes_per_s=0.0,
        network="measured",
    )
    job = replace(described_job(workload, shape, cluster, processes.device), support=support)
    return job if calibration is None else job.calibrated(calibration)


def described_job(workload: Workload, shape: ModelShape, cluster: ClusterDescription, device: str = "cuda") -> RunJob:
    """The workload as the worker trains it on a described cluster, one rank per accelerator, or per rank on a CPU."""
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
        return LayoutPrediction(job.memories(layouts).terms(), job.step_times(layouts).terms())

    return price


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedJob(TrainingJob):
    """A training job of any program that trains adapters beside frozen weights."""

    adapter: Adapter

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout."""
        return adapters.adapted_times(
            TrainingJob.step_times(self, layouts, coefficients),
            self.shape,
            layouts,
            self.adapter,
            length=self.sequence_length,
            precision=self.precision,
            device=self.rates(coefficients).device,
            fused=True,  # torchtune compiles it, and bitsandbytes has a kernel for it
            shares_codes=True,
        )

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout."""
        states = adapters.adapted_states(self.shape, layouts, self.adapter, precision=self.precision, shares_codes=True)
        return TrainingJob.memories(self, layouts).with_terms(**states)

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs, forward and backward; frozen weights have no gradient."""
        return self.sequence_length * adapters.adapted_flops_per_token(self.shape, self.adapter, self.sequence_length)
