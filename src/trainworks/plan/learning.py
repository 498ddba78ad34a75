"""Belief about a kind of cluster from measurements on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.collectives import collective_s, link_rates
from trainworks.plan.compute import device_rates, product_s
from trainworks.plan.conv_net import AnyJob
from trainworks.plan.layouts import Layouts, fixed_of
from trainworks.plan.software import Software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import RATES, Belief, Observation, believe, parts_s, prior_of
from trainworks.record.calibration import Calibration
from trainworks.record.measurement import MeasuredStep, Measurement

__all__ = ["belief_from"]

_PROBE_BYTES = 64 * 2**20


def belief_from(measurements: Sequence[Measurement], job: AnyJob) -> Belief:
    """Belief after these measurements of the kind of cluster that a job is planned for."""
    observations = [one for measurement in measurements for one in _observations(measurement)]
    return believe(observations, software=job.software, prior=prior_of(job))


def _observations(measurement: Measurement) -> Iterator[Observation]:
    if measurement.step is not None:
        yield _step(measurement.step, measurement)
    elif measurement.benchmark is not None:
        yield from _benchmark(measurement.benchmark, measurement)


def _step(step: MeasuredStep, measurement: Measurement) -> Observation:
    software = Software(fused_kernels=step.fused_kernels)
    job = TrainingJob(step.shape, step.sequence_length, step.precision, measurement.cluster, software)
    layouts = Layouts.of(global_batch=step.global_batch, **fixed_of(step.layout))
    return Observation(parts_s(job, layouts)[:, 0], step.step_time_s, software)


def _benchmark(benchmark: Calibration, measurement: Measurement) -> Iterator[Observation]:
    """Short products against products that no long run has heated up, and an all-reduce of 64 MiB."""
    cluster = measurement.cluster
    device = device_rates(cluster.accelerator, benchmark.precision, replace(COEFFICIENTS, gemm_share=1.0))
    for gemm in benchmark.gemms:
        predicted_s = float(product_s(gemm.m, gemm.n, gemm.k, device)[()])
        yield _of_rate("products", predicted_s, 2.0 * gemm.m * gemm.n * gemm.k / gemm.flops_per_s)
    if benchmark.num_ranks > 1:
        ranks = np.array([float(benchmark.num_ranks)])
        size = np.array([float(_PROBE_BYTES)])
        predicted_s = float(collective_s("all_reduce", size, ranks, np.ones(1), link_rates(cluster))[0])
        ring = 2 * (benchmark.num_ranks - 1) / benchmark.num_ranks
        measured_s = benchmark.all_reduce_latency_s + ring * _PROBE_BYTES / benchmark.all_reduce_bytes_per_s
        yield _of_rate("scale_up", predicted_s, measured_s)


def _of_rate(name: str, predicted_s: float, measured_s: float) -> Observation:
    """A benchmark of one rate, without training software."""
    return Observation(np.array([predicted_s if rate == name else 0.0 for rate in RATES]), measured_s, None)
