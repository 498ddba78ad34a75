"""`trainworks calibrate`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trainworks.api.arguments import on_cluster
from trainworks.api.cluster_layout import as_option, parse_layout
from trainworks.api.cluster_plan import ClusterPlan, plan_cluster
from trainworks.cli.launch import Wanted, wanted
from trainworks.cli.options import RunFilePath, wide_console
from trainworks.cli.plan import On
from trainworks.config.layout import Layout
from trainworks.config.run_file import Goal, RunFile
from trainworks.errors import UsageError
from trainworks.host.folders import data_folder
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.prediction import describe_layout
from trainworks.record.calibration import Calibration
from trainworks.record.measurement import MeasuredStep, Measurement
from trainworks.record.measurement_store import append_measurement
from trainworks.report.parts import print_parts
from trainworks.report.printable import say
from trainworks.units import format_step_time, parse_duration

__all__ = ["command"]

StepTime = Annotated[str | None, typer.Option("--step-time", metavar="TIME", help="Measured: `31.2 s`.")]
LayoutText = Annotated[
    str, typer.Option("--layout", metavar="LAYOUT", help="What ran: `tp=8,pp=4,micro_batch=1`; --step-time needs it.")
]
Benchmark = Annotated[
    Path | None, typer.Option("--benchmark", metavar="FILE", help="A benchmark record of one node, JSON.")
]
_LONGEST_STEP_S = 1e7


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
    seconds = None if step_time is None else _seconds(step_time)
    asked = wanted([str(run_file)], nodes=None, nproc=None, name=None)
    described = _on(asked.run_file, on)
    ran = parse_layout(layout) if layout else None
    if seconds is not None and ran is None and described.layout is None:
        raise _which_layout(plan_cluster(described, asked.source), step_time or "")
    before = plan_cluster(described, asked.source, layout=ran)
    measured = _step(before, seconds) if seconds is not None else _benchmark(before, benchmark)
    after = _used_once(described, asked, before.best[0].layout, measured)
    path = append_measurement(data_folder("clusters"), measured)
    _print(before, after, seconds)
    say(f"kept in {path}", err=True)


def _seconds(written: str) -> float:
    seconds = parse_duration(written)
    if not 0 < seconds <= _LONGEST_STEP_S:
        raise UsageError(
            f"`{written}` is {seconds:,.0f} s, and a step takes more than 0 s and at most {_LONGEST_STEP_S:,.0f} s",
            place="--step-time",
            hint="the mean of some steps after the first ones, written like `31.2 s`",
        )
    return seconds


def _on(run_file: RunFile, on: str | None) -> RunFile:
    """The run file on the cluster that was measured; a goal says nothing here."""
    if on is None and run_file.cluster.engine != "described":
        raise UsageError("calibration needs a described cluster", hint="name one with --on or in `cluster`")
    return on_cluster(run_file, on).model_copy(update={"goal": Goal()})


def _which_layout(plan: ClusterPlan, step_time: str) -> UsageError:
    return UsageError(
        f"--step-time `{step_time}` is of one layout, and none is named",
        place="--layout",
        hint=f"say which one ran; the fastest would be\n      --layout {as_option(plan.best[0].layout)}",
    )


def _step(plan: ClusterPlan, seconds: float) -> Measurement:
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
        step_time_s=seconds,
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


def _used_once(run_file: RunFile, asked: Wanted, layout: Layout, measured: Measurement) -> ClusterPlan:
    """The same layout with what was learned: only a measurement that a plan can be made of is kept.

    Raises:
        UsageError: the plan would be of no finite time.
    """
    after = plan_cluster(run_file, asked.source, layout=layout, learned=[measured])
    best = after.best[0]
    if not all(0 < seconds < math.inf for seconds in (best.low_s, best.step_time_s, best.high_s)):
        raise UsageError(
            f"no plan can be made of this measurement: a step would take {best.step_time_s:g} s",
            hint="check the measurement; nothing was kept",
        )
    return after


def _print(before: ClusterPlan, after: ClusterPlan, measured_s: float | None) -> None:
    table = Table("", "step time", "80 %", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, plan in (("before", before), ("after", after)):
        best = plan.best[0]
        between = f"{format_step_time(best.low_s)} to {format_step_time(best.high_s)}"
        table.add_row(name, format_step_time(best.step_time_s), between)
    remarks: list[RenderableType] = []
    if measured_s is not None:
        table.add_row("measured", format_step_time(measured_s), "")
        planned = before.best[0]
        if not planned.low_s <= measured_s <= planned.high_s:
            outside = "outside the 80 % interval that was planned: check the run for disturbances, or measure again"
            remarks.append(Text(f"note: {format_step_time(measured_s)} is {outside}", style="yellow"))
    layout = Text(f"layout  {describe_layout(before.best[0].layout)}")
    print_parts([[layout], [table], remarks], wide_console())
