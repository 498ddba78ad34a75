"""`trainworks submit`."""

from __future__ import annotations

import typer
from rich.console import Console

from trainworks.cli.launch import DryRun, Name, Nodes, ProcessesPerNode, Recalibrate, Target, launch, wanted
from trainworks.cli.options import RunsOption

__all__ = ["command"]


def command(
    target: Target,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    name: Name = None,
    runs: RunsOption = None,
    dry_run: DryRun = False,
    recalibrate: Recalibrate = False,
) -> None:
    """The run survives this shell. Prints the run id; `trainworks logs -f` follows it."""
    talk = Console(stderr=True)
    asked = wanted(target, nodes=nodes, nproc=nproc, name=name)
    run_dir = launch(asked, runs=runs, attached=False, dry_run=dry_run, recalibrate=recalibrate, console=talk)
    if run_dir is not None:
        typer.echo(run_dir.run_id)
