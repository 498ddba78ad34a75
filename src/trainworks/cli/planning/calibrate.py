"""`trainworks calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trainworks.api.calibrate import CalibrationResult, calibrate
from trainworks.cli.options import On, RunFilePath, option_errors, wide_console
from trainworks.plan.prediction import describe_layout
from trainworks.report.rendering.parts import print_parts
from trainworks.report.rendering.printable import say
from trainworks.units import format_step_time

__all__ = ["command"]

StepTime = Annotated[str | None, typer.Option("--step-time", metavar="TIME", help="Measured time of a step: `31.2 s`.")]
LayoutText = Annotated[
    str,
    typer.Option(
        "--layout", metavar="LAYOUT", help="The layout that ran: `tp=8,pp=4,micro_batch=1`; --step-time needs it."
    ),
]
Benchmark = Annotated[
    Path | None, typer.Option("--benchmark", metavar="FILE", help="Benchmark record of one node, JSON.")
]


def command(
    run_file: RunFilePath,
    on: On = None,
    layout: LayoutText = "",
    step_time: StepTime = None,
    benchmark: Benchmark = None,
) -> None:
    """A measured step or a benchmark record calibrates later plans of this kind of cluster, and of no other."""
    with option_errors():
        result = calibrate(run_file, on=on, layout=layout, step_time=step_time, benchmark=benchmark)
    _print(result)
    say(f"stored in {result.path}", err=True)


def _print(result: CalibrationResult) -> None:
    before, after, measured_s = result.before, result.after, result.measured_s
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
