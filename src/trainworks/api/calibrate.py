"""Teach the planner a measurement of a cluster."""

from __future__ import annotations

import math
import time
from pathlib import Path

from pydantic import ValidationError

from trainworks.api.inputs import Quantity, RunInput, argument, described_run, seconds
from trainworks.api.planning.described import plan_cluster
from trainworks.config.layout import Layout
from trainworks.config.recovery import Goal
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.folders import data_folder
from trainworks.plan.cluster.layout import as_option, parse_layout
from trainworks.plan.cluster.plan import CalibrationResult, ClusterPlan
from trainworks.plan.degrees import written_layout
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.record.calibration import Calibration
from trainworks.record.measured.measurement import ClusterMeasurement, MeasuredStep
from trainworks.record.measured.measurement_store import append_measurement

_LONGEST_STEP_S = 1e7


def calibrate(
    run: RunInput,
    *,
    on: str | None = None,
    layout: str = "",
    step_time: Quantity | None = None,
    benchmark: Path | str | None = None,
) -> CalibrationResult:
    """Store a measured step time, or a benchmark record, for the plans of this kind of cluster.

    Args:
        run: a run file, or its path.
        on: description of the measured cluster, which replaces that of the run file.
        layout: the layout that ran, such as `tp=8,pp=4,micro_batch=1`; the run file's when left out.
        step_time: mean time of a step.
        benchmark: benchmark record of one node, JSON.

    Raises:
        UsageError: neither or both measurements are given, or one is not valid.

    >>> result = calibrate("examples/plan-llama-2-7b.yaml", layout="dp_shard=8,micro_batch=1", step_time="12 s")
    >>> result.after.notes[-1][:13]
    'calibrated by'
    """
    if (step_time is None) == (benchmark is None):
        raise UsageError("give either --step-time or --benchmark", hint="--layout tp=8,pp=4 --step-time '31.2 s'")
    measured_s = _step_time_s(step_time)
    run_file, source = described_run(run, on, task="a calibration is")
    run_file = run_file.model_copy(update={"goal": Goal()})
    with argument("layout"):
        chosen = parse_layout(layout) if layout else None
    if step_time is not None and chosen is None and run_file.layout is None:
        raise _missing_layout(plan_cluster(run_file, source), step_time)
    before = plan_cluster(run_file, source, layout=chosen)
    measurement = _step(run_file, before, measured_s) if measured_s else _benchmark(before, Path(benchmark or ""))
    after = _plan_with(run_file, source, written_layout(before.best[0].layout), measurement)
    path = append_measurement(data_folder("clusters"), measurement)
    return CalibrationResult(before, after, measured_s, path)


def _step_time_s(step_time: Quantity | None) -> float | None:
    value = seconds("step_time", step_time)
    if value is not None and value > _LONGEST_STEP_S:
        raise ArgumentError(
            f"a step of {value:,.0f} s is longer than {_LONGEST_STEP_S:,.0f} s",
            argument="step_time",
            hint="give the mean of some steps after the first ones, such as `31.2 s`",
        )
    return value


def _missing_layout(plan: ClusterPlan, step_time: Quantity) -> ArgumentError:
    return ArgumentError(
        f"the step time `{step_time}` needs the layout that ran",
        argument="layout",
        hint=f"name it; the fastest is\n      --layout {as_option(written_layout(plan.best[0].layout))}",
    )


def _step(run_file: RunFile, plan: ClusterPlan, seconds: float) -> ClusterMeasurement:
    job = plan.job
    if isinstance(job.shape, ConvNetShape):
        raise UsageError("only transformers can be calibrated by a step")
    step = MeasuredStep(
        shape=job.shape,
        sequence_length=job.sequence_length,
        precision=job.precision,
        global_batch=plan.global_batch,
        layout=written_layout(plan.best[0].layout),
        fused_kernels=job.software.fused_kernels,
        software=run_file.software,
        step_time_s=seconds,
    )
    return ClusterMeasurement(created_at=time.time(), cluster=job.cluster, step=step)


def _benchmark(plan: ClusterPlan, path: Path) -> ClusterMeasurement:
    try:
        record = Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read benchmark record `{path}`: {error.strerror}") from None
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise UsageError(f"`{path}` is not a benchmark record: {place} {detail['msg'].lower()}") from None
    return ClusterMeasurement(created_at=time.time(), cluster=plan.job.cluster, benchmark=record)


def _plan_with(
    run_file: RunFile, source: Source | None, layout: Layout, measurement: ClusterMeasurement
) -> ClusterPlan:
    """Plan the same layout with the measurement: only one that leads to a finite plan is stored."""
    after = plan_cluster(run_file, source, layout=layout, learned=[measurement])
    best = after.best[0]
    if not all(0 < bound < math.inf for bound in (best.low_s, best.step_time_s, best.high_s)):
        raise UsageError(
            f"this measurement cannot calibrate a plan: a step would take {best.step_time_s:g} s",
            hint="check the measurement; nothing was stored",
        )
    return after
