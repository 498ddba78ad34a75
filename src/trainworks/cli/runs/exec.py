"""`trainworks exec`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.attaching import NodeIndex, RunArgument
from trainworks.cli.options import RunsOption, find


def command(
    run: RunArgument,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Command, after `--`.")],
    node: NodeIndex = 0,
    runs: RunsOption = None,
) -> None:
    """The command gets the environment, accelerators and folder of the node's first rank, and ends with the job."""
    from trainworks.api.developing.attach import run_in_job

    raise typer.Exit(run_in_job(find(run, runs), words, node=node))
