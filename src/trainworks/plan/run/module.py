"""Plan of a custom model without a formula: layouts to try, and conclusions from a trial of one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainworks.catalog.facts import Accelerator
from trainworks.config.layout import Layout, ResolvedLayout, divisors, resolve_layout
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import LayoutError, UsageError
from trainworks.plan.layouts import Array
from trainworks.plan.reliability.checkpoint_interval import checkpoint_interval
from trainworks.plan.reliability.defaults import usual_node_mttf, usual_write_s
from trainworks.plan.run.evaluation import planned_evaluation
from trainworks.plan.run.steps import samples_left_out, steps_of_epochs
from trainworks.plan.uncertainty import CALIBRATED_PRIOR, RATES, Belief, expected_step
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import Plan, StepTimeGroups
from trainworks.record.trial import Trial

_START_S = 6.0
"""Time from launch to the first step: importing torch, building the model, rendezvous."""
_SAVE_FIXED_S = 0.02
_SAVE_BYTES_PER_S = 1e9
"""Rate of the copy that stops training: a cautious assumption, not measured."""
_LOG_INTERVAL_S = 1.0
_MAX_LOG_STEPS = 50
_LARGEST_MICRO_BATCH = 64
"""Samples, where the run file leaves it open."""
_SURGERY = ("tp", "pp", "cp", "ep")
_ONLY_WITH = {"sequence_parallel": "tp", "interleave": "pp", "zero_bubble": "pp", "stage_layers": "pp"}


def measured_layouts(workload: Workload, requested: Layout | None, *, world_size: int) -> Iterator[ResolvedLayout]:
    """Layouts in the order in which they are worth trying: replicas before shards, large micro-batches before small.

    Raises:
        LayoutError: the wanted one does not fit the ranks or the batch, or would have to cut the model's layers.
    """
    options = [requested] if requested else [Layout(dp_replicate=world_size), Layout(dp_shard=world_size)]
    for degrees in options[: 1 if world_size == 1 else None]:
        _check_uncut(degrees)
        micro = degrees.micro_batch
        if micro != "auto":
            yield _resolved(degrees, workload, world_size, micro)
            continue
        per_rank = workload.global_batch // _resolved(degrees, workload, world_size, 1).dp
        sizes = [size for size in divisors(per_rank) if size <= _LARGEST_MICRO_BATCH]
        for size in reversed(sizes):
            yield _resolved(degrees, workload, world_size, size)


def _check_uncut(layout: Layout) -> None:
    for axis in _SURGERY:
        if getattr(layout, axis) > 1:
            raise LayoutError(
                f"{axis} ({getattr(layout, axis)}) cuts the layers of a model, and those of this one cannot be cut",
                field=axis,
                hint="use `dp_shard` to spread the model, `dp_replicate` to copy it, or both",
            )
    for option, axis in _ONLY_WITH.items():
        if getattr(layout, option) not in ("auto", None, False, 1):
            raise LayoutError(f"{option} goes with {axis}, and {axis} is 1", field=option, hint="leave it out")


def _resolved(degrees: Layout, workload: Workload, world_size: int, micro_batch: int) -> ResolvedLayout:
    return resolve_layout(degrees, world_size=world_size, global_batch=workload.global_batch, micro_batch=micro_batch)


def check_own_optimizer(workload: Workload, trial: Trial) -> None:
    """Refuse an optimizer in the run file if the module builds its own.

    Raises:
        UsageError: the run file configures an optimizer.
    """
    written = [name for name in ("name", "betas", "eps", "weight_decay") if name in workload.optimizer.model_fields_set]
    if trial.own_optimizer and written:
        raise UsageError(
            f"`optimizer.{written[0]}` is for an optimizer of the run file, and the module builds its own optimizer",
            hint="write it into `build_optimizer`; schedule, warm-up and clipping stay in the run file",
        )


def make_measured_plan(
    run_file: RunFile,
    layout: ResolvedLayout,
    processes: Processes,
    trial: Trial,
    *,
    held_out_samples: int | None = None,
    accelerator: Accelerator | None = None,
) -> Plan:
    """The run as the trial went: step time and memory are measured, the sum over the steps is arithmetic."""
    workload = run_file.workload
    assert workload is not None
    step_s = trial.step_time.total_s
    save_s = _SAVE_FIXED_S + trial.checkpoint_bytes / processes.world_size / _SAVE_BYTES_PER_S
    node_mttf_s = usual_node_mttf(accelerator, run_file.recover.node_mttf).value
    every_steps, every_s = checkpoint_interval(
        run_file.checkpoint.every,
        stall_s=save_s,
        node_mttf_s=node_mttf_s,
        num_nodes=processes.nodes,
        write_s=usual_write_s(trial.checkpoint_bytes, processes.nodes),
        step_s=step_s,
    )
    steps = _num_steps(workload, trial)
    train_s = steps * step_s
    held_out = trial.held_out_samples if held_out_samples is None else held_out_samples
    evaluation = planned_evaluation(
        workload.eval,
        trial.step_time,
        global_batch=workload.global_batch,
        num_steps=steps,
        held_out_samples=held_out,
    )
    others_s = evaluation.total_s if evaluation else 0.0
    interval_s = every_s or (every_steps or 1) * step_s
    return Plan(
        model=ModelShape.of_size(trial.num_parameters),
        layout=layout,
        num_steps=steps,
        samples_left_out=samples_left_out(workload, samples=trial.num_samples),
        tokens_per_step=workload.tokens_per_step,
        model_flops_per_token=trial.flops_per_sample * workload.global_batch / workload.tokens_per_step,
        peak_flops_per_s=None,
        peak_source="none: the plan of this model is measured, not predicted",
        step_time=trial.step_time,
        expected=expected_step(_parts_s(trial.step_time), Belief.of(CALIBRATED_PRIOR)),
        memory=_memory(trial, processes),
        checkpoint_bytes=trial.checkpoint_bytes,
        checkpoint_every_steps=every_steps,
        checkpoint_every_s=every_s,
        mttf_s=node_mttf_s / processes.nodes,
        log_every_steps=max(1, min(_MAX_LOG_STEPS, round(_LOG_INTERVAL_S / step_s))),
        evaluation=evaluation,
        run_time_s=_START_S + train_s + others_s + (train_s // interval_s + 1) * save_s,
    )


def _parts_s(measured: StepTimeGroups) -> Array:
    """The groups of a trial by the rate that most of each depends on, shape [R]."""
    by_rate = {
        "products": measured.compute_s,
        "scale_up": measured.communication_s,
        "memory": measured.optimizer_s,
        "host": measured.data_s,
    }
    return np.array([by_rate.get(rate, 0.0) for rate in RATES])


def _num_steps(workload: Workload, trial: Trial) -> int:
    length = workload.train_for
    if length.unit == "steps":
        return length.amount
    if length.unit == "tokens":
        return -(-length.amount // (workload.global_batch * workload.data.sequence_length))
    return steps_of_epochs(workload, trial.num_samples)


def _memory(trial: Trial, processes: Processes) -> MemoryTerms:
    """Memory terms of a trial: activations are the rest of the measured peak; the copy of a checkpoint is added."""
    states = trial.weights_bytes + trial.gradients_bytes + trial.optimizer_bytes
    return MemoryTerms(
        baseline_bytes=trial.baseline_bytes,
        weights_bytes=trial.weights_bytes,
        gradients_bytes=trial.gradients_bytes,
        optimizer_bytes=trial.optimizer_bytes,
        activations_bytes=max(0, trial.peak_bytes - trial.baseline_bytes - states),
        logits_bytes=0,
        checkpoint_bytes=trial.weights_bytes + trial.optimizer_bytes,
    )
