"""The plan of one run: layout, step time, memory, checkpoints and how long it all takes.

A model with a formula is predicted (`make_plan`). Of a custom model without one, the layouts to try and the conclusions
from a trial of one are planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from trainworks.catalog.facts import Accelerator
from trainworks.config.layout import ANY_LAYOUT, Layout, ModelSupport, ResolvedLayout, divisors, resolve_layout
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import LayoutError, UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.degrees import layouts_of
from trainworks.plan.layouts import Array
from trainworks.plan.reliability.checkpoint_interval import checkpoint_interval
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.run.memory import checkpoint_bytes
from trainworks.plan.run.optimizer import moment_bytes
from trainworks.plan.run.pricing import run_job
from trainworks.plan.run.steps import num_steps, planned_evaluation, samples_left_out, steps_of_epochs
from trainworks.plan.run.trainable import check_cut
from trainworks.plan.uncertainty import CALIBRATED_PRIOR, RATES, Belief, expected_step, parts_s
from trainworks.record.calibration import Calibration
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import CompileChoice, Plan, PlannedLayout
from trainworks.record.step_time import ExpectedStep, StepTimeGroups, StepTimeTerms, scaled
from trainworks.record.trial import Trial

USUAL_START_S = 6.0
"""Time from launch to the first step: importing torch, building the model, rendezvous. Set to: starts on two cores
(benchmarks/RESULTS.md)."""
_SAVE_FIXED_S = 0.02
"""Host work of starting an asynchronous checkpoint. Set to: the 25 ms of checkpoint_stall.py in 2026-11, now 10."""
_SAVE_BYTES_PER_S = 1e9
"""Rate of the copy of a custom model that stops training. Assumed: a low one."""
_LOG_INTERVAL_S = 1.0
_MAX_LOG_STEPS = 50
_MAX_BUCKET_MIB = 256
_LARGEST_MICRO_BATCH = 64
"""Samples of a custom model, where the run file leaves it open."""


def make_plan(
    run_file: RunFile,
    shape: ModelShape,
    layout: ResolvedLayout,
    processes: Processes,
    calibration: Calibration,
    *,
    steps: int,
    samples_left_out: int = 0,
    held_out_samples: Sequence[int] | None = None,
    compared: tuple[PlannedLayout, ...] = (),
    accelerator: Accelerator | None = None,
    support: ModelSupport = ANY_LAYOUT,
    compile_choice: CompileChoice | None = None,
) -> Plan:
    """Predict the run from its decisions and the calibration.

    Args:
        run_file: of the run.
        shape: of the model.
        layout: of the ranks.
        processes: the ranks.
        calibration: of this machine.
        steps: optimizer steps.
        samples_left_out: at the end of the last epoch.
        held_out_samples: of each set for evaluation; None where they are not counted.
        compared: layouts among which this one was chosen.
        accelerator: of the nodes, to look up their failure rate; None if the catalogue has none.
        support: of the model by the worker.
        compile_choice: what was decided of `compile: auto`; the run file's workload has it, too.
    """
    workload = run_file.workload
    assert workload is not None
    job = run_job(workload, shape, processes, calibration=calibration, support=support)
    if layout.dp_replicate == layout.world_size:
        layout = layout.model_copy(update={"bucket_mib": bucket_mib(job.num_trained, layout.dp_replicate, calibration)})
    layouts = layouts_of([layout])
    fastest = max(gemm.flops_per_s for gemm in calibration.gemms)
    saved_bytes = checkpoint_bytes(job.num_trained, moment_bytes(workload.optimizer, shape))
    return _plan(
        run_file,
        processes,
        job.step_times(layouts).terms(),
        accelerator=accelerator,
        save_s=_SAVE_FIXED_S + 2 * saved_bytes / processes.world_size / calibration.memory_bytes_per_s,
        held_out_samples=held_out_samples,
        model=shape,
        support=support,
        layout=layout,
        num_steps=steps,
        samples_left_out=samples_left_out,
        model_flops_per_token=job.flops_per_token,
        peak_flops_per_s=fastest,
        peak_source=f"fastest {workload.precision} matrix product of this model's shapes, measured on this machine",
        expected=expected_step(parts_s(job, layouts)[:, 0], Belief.of(CALIBRATED_PRIOR)),
        memory=job.memories(layouts).terms(),
        attention=job.attention.describe() if job.attention else "",
        compile_choice=compile_choice,
        compared=compared,
        checkpoint_bytes=saved_bytes,
    )


def _plan(
    run_file: RunFile,
    processes: Processes,
    step_time: StepTimeTerms | StepTimeGroups,
    *,
    accelerator: Accelerator | None,
    save_s: float,
    held_out_samples: Sequence[int] | None,
    num_steps: int,
    layout: ResolvedLayout,
    checkpoint_bytes: int,
    **decided: Any,
) -> Plan:
    """The plan with its checkpoints, its evaluations and its duration; `decided` are its other fields."""
    workload = run_file.workload
    assert workload is not None
    step_s = step_time.total_s
    node_mttf_s = usual_node_mttf(accelerator, run_file.recover.node_mttf).value
    every_steps, every_s = checkpoint_interval(
        run_file.checkpoint.every,
        stall_s=save_s,
        node_mttf_s=node_mttf_s,
        num_nodes=processes.nodes,
        write_s=checkpoint_bytes / processes.nodes / assumed("checkpoint rate per node").value,
        step_s=step_s,
    )
    interval_s = every_s or (every_steps or 1) * step_s
    evaluation = planned_evaluation(
        workload.eval,
        step_time,
        global_batch=workload.global_batch,
        layout=layout,
        num_steps=num_steps,
        held_out_samples=held_out_samples,
    )
    train_s, others_s = num_steps * step_s, evaluation.total_s if evaluation else 0.0
    return Plan(
        num_steps=num_steps,
        tokens_per_step=workload.tokens_per_step,
        step_time=step_time,
        layout=layout,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_every_steps=every_steps,
        checkpoint_every_s=every_s,
        mttf_s=node_mttf_s / processes.nodes,
        log_every_steps=max(1, min(_MAX_LOG_STEPS, round(_LOG_INTERVAL_S / step_s))),
        evaluation=evaluation,
        run_time_s=USUAL_START_S + train_s + others_s + (train_s // interval_s + 1) * save_s,
        **decided,
    )


def plan_of_command(plan: Plan, run_file: RunFile, *, least_logits_bytes: int = 0) -> Plan:
    """The plan of a workload as that of the command that trains it.

    It is of a step as the program counts them, r of the optimizer: `metrics.samples_per_step` over the global batch.
    Checkpoints are the program's own.

    Args:
        plan: of `trains` as a workload.
        run_file: with the command.
        least_logits_bytes: memory of the logits where the plan counts on a worker that computes them in pieces.
    """
    trains, metrics = run_file.trains, run_file.metrics
    assert trains is not None and plan.expected is not None
    ratio, expected = (metrics.samples_per_step or trains.global_batch) / trains.global_batch, plan.expected
    num_steps, step_time = metrics.steps or math.ceil(plan.num_steps / ratio), scaled(plan.step_time, ratio)
    logits_bytes = max(plan.memory.logits_bytes, least_logits_bytes)
    return plan.model_copy(
        update={
            "of_command": True,
            "attention": "",
            "compared": (),
            "num_steps": num_steps,
            "tokens_per_step": max(1, round(plan.tokens_per_step * ratio)),
            "step_time": step_time,
            "expected": ExpectedStep(
                low_s=expected.low_s * ratio,
                high_s=expected.high_s * ratio,
                by_rate_s={name: seconds * ratio for name, seconds in expected.by_rate_s.items()},
                learned_from=expected.learned_from,
            ),
            "memory": plan.memory.model_copy(update={"checkpoint_bytes": 0, "logits_bytes": logits_bytes}),
            "checkpoint_bytes": 0,
            "checkpoint_every_steps": None,
            "checkpoint_every_s": None,
            "run_time_s": USUAL_START_S + num_steps * step_time.total_s,
        }
    )


def bucket_mib(num_trained: int, num_ranks: int, calibration: Calibration) -> int:
    """MiB of gradients that replicas send at a time.

    Small buckets pay the latency a often, a large last one is exposed. With G bytes of gradients in buckets of S

        G / S * a + 2(n-1)/n * S / B    is least for    S = sqrt(G a B / (2(n-1)/n))

    Edge: 25, torch's default, for one rank; never below 1 nor above 256.
    """
    if num_ranks == 1:
        return 25
    gradient_bytes = 4 * num_trained
    product = gradient_bytes * calibration.all_reduce_latency_s * calibration.all_reduce_bytes_per_s
    best_bytes = math.sqrt(product / (2 * (num_ranks - 1) / num_ranks))
    return min(_MAX_BUCKET_MIB, max(1, round(best_bytes / 2**20)))


_SURGERY = ("tp", "pp", "cp", "ep")
_ONLY_WITH = {"sequence_parallel": "tp", "interleave": "pp", "zero_bubble": "pp", "stage_layers": "pp"}


def measured_layouts(
    workload: Workload, requested: Layout | None, *, world_size: int, support: ModelSupport | None = None
) -> Iterator[ResolvedLayout]:
    """Layouts in the order in which they are worth trying: replicas before shards, large micro-batches before small.

    `support` is that of a causal model without a formula whose layers a written layout cuts.

    Raises:
        LayoutError: the wanted one does not fit the ranks or the batch, or would have to cut the model's layers.
    """
    options = [requested] if requested else [Layout(dp_replicate=world_size), Layout(dp_shard=world_size)]
    batch = workload.global_batch
    resolved = partial(resolve_layout, world_size=world_size, global_batch=batch, support=support or ANY_LAYOUT)
    for degrees in options[: 1 if world_size == 1 else None]:
        if support is None:
            _check_uncut(degrees)
        if (micro := degrees.micro_batch) == "auto":
            per_rank = workload.global_batch // resolved(degrees, micro_batch=1).dp
            sizes = [size for size in divisors(per_rank) if size <= _LARGEST_MICRO_BATCH]
        else:
            sizes = [micro]
        for size in reversed(sizes):
            layout = resolved(degrees, micro_batch=size)
            if layout.grad_accum_steps < layout.pp and size > sizes[0]:
                continue  # a pipeline needs more micro-batches
            if support is not None:
                check_cut(layout, workload, support)
            yield layout


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


def check_own_optimizer(workload: Workload, trial: Trial) -> None:
    """Refuse an optimizer in the run file if the module builds its own.

    Raises:
        UsageError: the run file configures an optimizer.
    """
    keys = ("name", "betas", "eps", "weight_decay", "groups")
    written = [name for name in keys if name in workload.optimizer.model_fields_set]
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
    held_out_samples: Sequence[int] | None = None,
    accelerator: Accelerator | None = None,
) -> Plan:
    """The run as the trial went: step time and memory are measured, the sum over the steps is arithmetic."""
    workload = run_file.workload
    assert workload is not None
    epochs = workload.train_for.unit == "epochs"
    eager = CompileChoice(compiled=False, obstacle="no formula predicts this model's step with compiled blocks")
    return _plan(
        run_file,
        processes,
        trial.step_time,
        accelerator=accelerator,
        save_s=_SAVE_FIXED_S + trial.checkpoint_bytes / processes.world_size / _SAVE_BYTES_PER_S,
        held_out_samples=trial.held_out_samples if held_out_samples is None else held_out_samples,
        model=ModelShape.of_size(trial.num_parameters),
        layout=layout,
        num_steps=steps_of_epochs(workload, trial.num_samples) if epochs else num_steps(workload, tokens_in_data=None),
        samples_left_out=samples_left_out(workload, samples=trial.num_samples),
        model_flops_per_token=trial.flops_per_sample * workload.global_batch / workload.tokens_per_step,
        peak_flops_per_s=None,
        peak_source="none: the plan of this model is measured, not predicted",
        expected=expected_step(_parts_s(trial.step_time), Belief.of(CALIBRATED_PRIOR)),
        memory=_memory(trial),
        compile_choice=eager if workload.compile == "auto" and processes.device != "cpu" else None,
        checkpoint_bytes=trial.checkpoint_bytes,
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


def _memory(trial: Trial) -> MemoryTerms:
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
