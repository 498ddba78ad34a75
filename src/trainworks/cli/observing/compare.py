"""`trainworks compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, RunsOption, find
from trainworks.cli.output import show


def command(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Run id or folder.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with it.")],
    runs: RunsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Shows settings that differ, the parts of a step, throughput, memory, losses at the same steps, and cost.

    Differences are those of the second run relative to the first.
    """
    show(trainworks.compare(find(first, runs), find(second, runs)), as_json=as_json, plot=plot)
