"""Belief about a kind of cluster from measurements on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.collectives import collective_s
from trainworks.plan.compute import device_rates, product_s
from trainworks.plan.degrees import fixed_of
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.programs import planned_programs
from trainworks.plan.rates import link_rates
from trainworks.plan.software import planned_software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import (
    CALIBRATED_PRIOR,
    RATES,
    Belief,
    Observation,
    believe,
    expected_step,
    parts_s,
    prior_of,
)
from trainworks.record.calibration import Calibration
from trainworks.record.measured.measurement import ClusterMeasurement, MeasuredStep
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.resolved import Plan

_PROBE_BYTES = 64 * 2**20


def belief_from(measurements: Sequence[ClusterMeasurement], job: AnyJob) -> Belief:
    """Belief after these measurements of the kind of cluster that a job is planned for."""
    observations = [one for measurement in measurements for one in _observations(measurement)]
    return believe(observations, software=job.software, prior=prior_of(job))


def _observations(measurement: ClusterMeasurement) -> Iterator[Observation]:
    if measurement.step is not None:
        yield _step(measurement.step, measurement)
    elif measurement.benchmark is not None:
        yield from _benchmark(measurement.benchmark, measurement)
    for rate in measurement.rates:
        yield _observe_rate(rate.rate, rate.of_expected, 1.0)


def _step(step: MeasuredStep, measurement: ClusterMeasurement) -> Observation:
    software = planned_software(
        step.software, compiled=step.fused_kernels or (None if step.software is None else False)
    )
    programs = planned_programs(software, step.precision, measurement.cluster.accelerator)
    job = TrainingJob(
        step.shape, step.sequence_length, step.precision, measurement.cluster, software, programs=programs
    )
    layouts = Layouts.of(global_batch=step.global_batch, **fixed_of(step.layout))
    return Observation(parts_s(job, layouts)[:, 0], step.step_time_s, software)


def _benchmark(benchmark: Calibration, measurement: ClusterMeasurement) -> Iterator[Observation]:
    """Short products against products that no long run has heated up, and an all-reduce of 64 MiB."""
    cluster = measurement.cluster
    device = device_rates(cluster.accelerator, benchmark.precision, replace(COEFFICIENTS, gemm_share=1.0))
    for gemm in benchmark.gemms:
        predicted_s = float(product_s(gemm.m, gemm.n, gemm.k, device)[()])
        yield _observe_rate("products", predicted_s, 2.0 * gemm.m * gemm.n * gemm.k / gemm.flops_per_s)
    if benchmark.num_ranks > 1:
        ranks = np.array([float(benchmark.num_ranks)])
        size = np.array([float(_PROBE_BYTES)])
        predicted_s = float(collective_s("all_reduce", size, ranks, np.ones(1), link_rates(cluster))[0])
        ring = 2 * (benchmark.num_ranks - 1) / benchmark.num_ranks
        measured_s = benchmark.all_reduce_latency_s + ring * _PROBE_BYTES / benchmark.all_reduce_bytes_per_s
        yield _observe_rate("scale_up", predicted_s, measured_s)


def _observe_rate(name: str, predicted_s: float, measured_s: float) -> Observation:
    return Observation(np.array([predicted_s if rate == name else 0.0 for rate in RATES]), measured_s, None)


def with_learning(plan: Plan, finished: Sequence[FinishedRun], *, software: str) -> Plan:
    """The plan of a run on this machine after learning from finished runs on it; the terms keep their shares.

    Args:
        plan: without any learning.
        finished: runs on this kind of machine; those of another software teach what carries over.
        software: of the run.
    """
    if plan.expected is None or not finished:
        return plan
    observations = [
        Observation(_rate_matrix(run.by_rate_s), run.measured_s, run.software, run.spread) for run in finished
    ]
    belief = believe(observations, software=software, prior=CALIBRATED_PRIOR)
    parts = _rate_matrix(plan.expected.by_rate_s)
    factor = float((parts * belief.factors).sum() / parts.sum())
    terms = {name: seconds * factor for name, seconds in plan.step_time.model_dump().items()}
    step_time = type(plan.step_time).model_validate(terms)
    longer_s = plan.num_steps * (step_time.total_s - plan.step_time.total_s)
    changes = {
        "step_time": step_time,
        "expected": expected_step(parts, belief, learned_from=len(finished)),
        "run_time_s": plan.run_time_s + longer_s,
    }
    return plan.model_copy(update=changes)


def _rate_matrix(seconds: Mapping[str, float]) -> Array:
    return np.array([seconds.get(rate, 0.0) for rate in RATES])
