"""The plan of one run: layout, step time, memory, checkpoints and how long it all takes."""

from __future__ import annotations

import math

from trainworks.catalog.facts import Accelerator
from trainworks.config.layout import ANY_LAYOUT, ModelSupport, ResolvedLayout
from trainworks.config.run_file import RunFile
from trainworks.plan.degrees import layouts_of
from trainworks.plan.reliability.checkpoint_interval import checkpoint_interval
from trainworks.plan.reliability.defaults import usual_node_mttf, usual_write_s
from trainworks.plan.run.evaluation import planned_evaluation
from trainworks.plan.run.memory import checkpoint_bytes
from trainworks.plan.run.optimizer import moment_bytes, orthogonalisation_flops
from trainworks.plan.run.pricing import parts_of_step, run_job, step_time_terms, workload_flops_per_token
from trainworks.plan.uncertainty import CALIBRATED_PRIOR, RATES, Belief, expected_step
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import Plan, PlannedLayout

_START_S = 6.0
"""Time from launch to the first step: importing torch, building the model, rendezvous."""
_SAVE_FIXED_S = 0.02
"""Host work of starting an asynchronous checkpoint."""
_LOG_INTERVAL_S = 1.0
_MAX_LOG_STEPS = 50
_MAX_BUCKET_MIB = 256


def make_plan(
    run_file: RunFile,
    shape: ModelShape,
    layout: ResolvedLayout,
    processes: Processes,
    calibration: Calibration,
    *,
    steps: int,
    samples_left_out: int = 0,
    held_out_samples: int | None = None,
    compared: tuple[PlannedLayout, ...] = (),
    accelerator: Accelerator | None = None,
    support: ModelSupport = ANY_LAYOUT,
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
        held_out_samples: for evaluation; None where they are not counted.
        compared: layouts among which this one was chosen.
        accelerator: of the nodes, to look up their failure rate; None if the catalogue has none.
        support: of the model by the worker.
    """
    workload = run_file.workload
    assert workload is not None
    job = run_job(workload, shape, processes, calibration=calibration)
    if layout.dp_replicate == layout.world_size:
        layout = layout.model_copy(update={"bucket_mib": bucket_mib(job.num_trained, layout.dp_replicate, calibration)})
    layouts = layouts_of([layout])
    fastest = max(gemm.flops_per_s for gemm in calibration.gemms)
    flops = 0.0 if workload.adapter else orthogonalisation_flops(workload.optimizer, shape) / layout.pp
    step_time = step_time_terms(job.step_times(layouts))
    step_time = step_time.model_copy(update={"optimizer_s": step_time.optimizer_s + flops / fastest})
    parts_s = parts_of_step(job, layout)
    parts_s[RATES.index("products")] += flops / fastest
    saved_bytes = checkpoint_bytes(job.num_trained, moment_bytes(workload.optimizer, shape))
    save_s = _SAVE_FIXED_S + 2 * saved_bytes / processes.world_size / calibration.memory_bytes_per_s
    node_mttf_s = usual_node_mttf(accelerator, run_file.recover.node_mttf).value
    every_steps, every_s = checkpoint_interval(
        run_file.checkpoint.every,
        stall_s=save_s,
        node_mttf_s=node_mttf_s,
        num_nodes=processes.nodes,
        write_s=usual_write_s(saved_bytes, processes.nodes),
        step_s=step_time.total_s,
    )
    interval_s = every_s or (every_steps or 1) * step_time.total_s
    evaluation = planned_evaluation(
        workload.eval,
        step_time,
        global_batch=workload.global_batch,
        num_steps=steps,
        held_out_samples=held_out_samples,
    )
    train_s = steps * step_time.total_s
    others_s = evaluation.total_s if evaluation else 0.0
    return Plan(
        model=shape,
        support=support,
        layout=layout,
        num_steps=steps,
        samples_left_out=samples_left_out,
        tokens_per_step=workload.tokens_per_step,
        model_flops_per_token=workload_flops_per_token(job),
        peak_flops_per_s=fastest,
        peak_source=f"fastest {workload.precision} matrix product of this model's shapes, measured on this machine",
        step_time=step_time,
        expected=expected_step(parts_s, Belief.of(CALIBRATED_PRIOR)),
        memory=job.memories(layouts).terms(),
        compared=compared,
        checkpoint_bytes=saved_bytes,
        checkpoint_every_steps=every_steps,
        checkpoint_every_s=every_s,
        mttf_s=node_mttf_s / processes.nodes,
        log_every_steps=max(1, min(_MAX_LOG_STEPS, round(_LOG_INTERVAL_S / step_time.total_s))),
        evaluation=evaluation,
        run_time_s=_START_S + train_s + others_s + (train_s // interval_s + 1) * save_s,
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
