"""`trainworks calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import On, RunFilePath, option_errors
from trainworks.cli.output import show
from trainworks.report.rendering.printable import say

Benchmark = Annotated[
    Path | None, typer.Option("--benchmark", metavar="FILE", help="Benchmark record of one node, JSON.")
]


def command(
    run_file: RunFilePath,
    on: On = None,
    layout: Annotated[
        str,
        typer.Option(metavar="LAYOUT", help="The layout that ran: `tp=8,pp=4,micro_batch=1`; --step-time needs it."),
    ] = "",
    step_time: Annotated[str | None, typer.Option(metavar="TIME", help="Measured time of a step: `31.2 s`.")] = None,
    benchmark: Benchmark = None,
) -> None:
    """A measured step or a benchmark record calibrates later plans of this kind of cluster, and of no other."""
    with option_errors():
        result = trainworks.calibrate(run_file, on=on, layout=layout, step_time=step_time, benchmark=benchmark)
    show(result)
    say(f"stored in {result.path}", err=True)
