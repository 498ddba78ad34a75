"""Belief about a cluster's step times from measurements on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainworks.config.layout import Layout
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.collectives import collective_s, link_rates
from trainworks.plan.compute import device_rates, product_s
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.software import Software
from trainworks.plan.step_time import TrainingJob, predict_step_times
from trainworks.plan.uncertainty import Belief, learn, learn_group, prior_of
from trainworks.record.calibration import Calibration
from trainworks.record.measurement import MeasuredStep, Measurement

__all__ = ["belief_from", "fixed_of"]

_PROBE_BYTES = 64 * 2**20


def belief_from(measurements: Sequence[Measurement], *, experts: bool = False) -> Belief:
    """Belief after these measurements of one kind of cluster, oldest first.

    Args:
        measurements: of dense models and of others.
        experts: whether the model to be predicted has routed experts.
    """
    belief = prior_of(experts=experts)
    for measurement in measurements:
        if measurement.step is not None:
            belief = _after_step(measurement.step, measurement, belief)
        elif measurement.benchmark is not None:
            belief = _after_benchmark(measurement.benchmark, measurement, belief)
    return belief


def _after_step(step: MeasuredStep, measurement: Measurement, belief: Belief) -> Belief:
    job = TrainingJob(
        step.shape,
        step.sequence_length,
        step.precision,
        measurement.cluster,
        Software(fused_kernels=step.fused_kernels),
    )
    layouts = Layouts.of(global_batch=step.global_batch, **fixed_of(step.layout))
    return learn(predict_step_times(job, layouts), [step.step_time_s], belief)


def _after_benchmark(benchmark: Calibration, measurement: Measurement, belief: Belief) -> Belief:
    """Short products against products that no long run has heated up, and an all-reduce of 64 MiB."""
    cluster = measurement.cluster
    machine = device_rates(cluster.accelerator, benchmark.precision, replace(COEFFICIENTS, gemm_share=1.0))
    for gemm in benchmark.gemms:
        predicted_s = float(product_s(gemm.m, gemm.n, gemm.k, machine)[()])
        measured_s = 2.0 * gemm.m * gemm.n * gemm.k / gemm.flops_per_s
        belief = learn_group(belief, "kernels", measured_s / predicted_s)
    if benchmark.num_ranks > 1:
        ranks = np.array([float(benchmark.num_ranks)])
        size = np.array([float(_PROBE_BYTES)])
        predicted_s = float(collective_s("all_reduce", size, ranks, np.ones(1), link_rates(cluster))[0])
        ring = 2 * (benchmark.num_ranks - 1) / benchmark.num_ranks
        measured_s = benchmark.all_reduce_latency_s + ring * _PROBE_BYTES / benchmark.all_reduce_bytes_per_s
        belief = learn_group(belief, "scale-up", measured_s / predicted_s)
    return belief


def fixed_of(layout: Layout) -> dict[str, int]:
    """Decided fields of a written layout, under the names of `Layouts`; `auto` decides nothing.

    `dp_shard` shards everything (zero 3) unless `zero` is lower.
    """
    automatic = 3 if layout.dp_shard > 1 else 0
    alone = layout.dp_shard * layout.cp == 1
    fixed = {
        "dp": layout.dp_replicate * layout.dp_shard,
        "dp_shard": layout.dp_shard,
        "zero": automatic if layout.zero == "auto" or alone else layout.zero,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
    }
    kinds = {kind.name.lower(): int(kind) for kind in Recompute}
    chosen = {
        "micro_batch": layout.micro_batch,
        "interleave": layout.interleave,
        "recompute": kinds.get(layout.recompute, "auto"),
        "sequence_parallel": layout.sequence_parallel,
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }
    return fixed | {name: int(value) for name, value in chosen.items() if value != "auto"}
