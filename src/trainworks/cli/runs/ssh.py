"""`trainworks ssh`."""

from __future__ import annotations

import typer

from trainworks.cli.attaching import NodeIndex, RunArgument
from trainworks.cli.options import RunsOption, find


def command(run: RunArgument, node: NodeIndex = 0, runs: RunsOption = None) -> None:
    """A bash with the environment, accelerators and folder of the node's first rank; it ends with the job.

    It needs no ssh server. For VS Code, see `trainworks dev`.
    """
    from trainworks.api.developing.attach import SHELL, run_in_job

    raise typer.Exit(run_in_job(find(run, runs), SHELL, node=node))
