"""`trainworks why`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.cli.output import show


def command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Lists the causes in order of the seconds that they cost, each with evidence from the record and a remedy.

    Works during the run, too. The planner prices the remedies with the rates that the run was planned with.
    """
    show(trainworks.why(find(run, runs)), as_json=as_json, plot=plot)
