"""`trainworks calibrate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from trainworks.cli.cluster_planning import ClusterPlan, plan_cluster
from trainworks.cli.launch import wanted
from trainworks.cli.options import RunFilePath
from trainworks.cli.plan import On, named_degrees
from trainworks.errors import UsageError
from trainworks.host.folders import data_folder
from trainworks.plan.conv_step import ConvJob
from trainworks.record.calibration import Calibration
from trainworks.record.measurement import MeasuredStep, Measurement
from trainworks.record.measurement_store import append_measurement
from trainworks.spec.run_file import RunFile
from trainworks.units import format_duration, parse_duration

__all__ = ["command"]

StepTime = Annotated[str | None, typer.Option("--step-time", metavar="TIME", help="Measured: `31.2 s`.")]
LayoutText = Annotated[str, typer.Option("--layout", metavar="LAYOUT", help="What ran: `tp=8,pp=4,micro_batch=1`.")]
Benchmark = Annotated[
    Path | None, typer.Option("--benchmark", metavar="FILE", help="A benchmark record of one node, JSON.")
]


def command(
    run_file: RunFilePath,
    on: On = None,
    layout: LayoutText = "",
    step_time: StepTime = None,
    benchmark: Benchmark = None,
) -> None:
    """One measured step, or a benchmark record, moves the next plans for this kind of cluster, and for no other."""
    if (step_time is None) == (benchmark is None):
        raise UsageError("give either --step-time or --benchmark", hint="--layout tp=8,pp=4 --step-time '31.2 s'")
    asked = wanted([str(run_file)], nodes=None, nproc=None, name=None)
    described = _on(asked.run_file, on)
    before = plan_cluster(described, asked.source, fixed=named_degrees(layout))
    measured = _step(before, step_time) if step_time is not None else _benchmark(before, benchmark)
    path = append_measurement(data_folder("clusters"), measured)
    after = plan_cluster(described, asked.source, fixed=named_degrees(layout))
    _print(before, after, step_time)
    typer.echo(f"kept in {path}", err=True)


def _on(run_file: RunFile, on: str | None) -> RunFile:
    if on is None and run_file.cluster.engine != "described":
        raise UsageError("calibration needs a described cluster", hint="name one with --on or in `cluster`")
    if on is None:
        return run_file
    cluster = run_file.cluster.model_copy(update={"engine": "described", "of": on})
    return run_file.model_copy(update={"cluster": cluster})


def _step(plan: ClusterPlan, written: str | None) -> Measurement:
    job = plan.job
    if isinstance(job, ConvJob):
        raise UsageError("only transformers can be calibrated by a step")
    step = MeasuredStep(
        shape=job.shape,
        sequence_length=job.sequence_length,
        precision=job.precision,
        global_batch=plan.global_batch,
        layout=plan.best[0].layout,
        fused_kernels=job.stack.fused_kernels,
        step_time_s=parse_duration(written or ""),
    )
    return Measurement(created_at=time.time(), cluster=job.cluster, step=step)


def _benchmark(plan: ClusterPlan, path: Path | None) -> Measurement:
    try:
        record = Calibration.model_validate_json((path or Path()).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read benchmark record `{path}`: {error.strerror}") from None
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise UsageError(f"`{path}` is no benchmark record: {place} {detail['msg'].lower()}") from None
    return Measurement(created_at=time.time(), cluster=plan.job.cluster, benchmark=record)


def _print(before: ClusterPlan, after: ClusterPlan, measured: str | None) -> None:
    table = Table("", "step time", "80 %", box=None, padding=(0, 2, 0, 0))
    for name, plan in (("before", before), ("after", after)):
        best = plan.best[0]
        between = f"{format_duration(best.low_s)} to {format_duration(best.high_s)}"
        table.add_row(name, format_duration(best.step_time_s), between)
    if measured is not None:
        table.add_row("measured", format_duration(parse_duration(measured)), "")
    Console().print(table)
