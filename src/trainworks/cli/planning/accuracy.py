"""`trainworks accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.checks import check_writable
from trainworks.cli.options import AsJson
from trainworks.cli.output import show


def command(
    machine: Annotated[str | None, typer.Option(metavar="NAME", help="Kind of machine, as the table names it.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """A finished run is compared with the plan that it started with; later plans of that machine learn from it."""
    check_writable(plot, "--plot")
    show(trainworks.accuracy(machine), as_json=as_json, plot=plot)
