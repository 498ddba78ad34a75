"""`trainworks submit`."""

from __future__ import annotations

import typer
from rich.console import Console

from trainworks.cli.launch import DryRun, Name, Nodes, ProcessesPerNode, Recalibrate, Target, prepare, wanted
from trainworks.cli.options import RunsOption
from trainworks.job.request import job_request
from trainworks.scheduler.local import LocalScheduler

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
    prepared = prepare(asked, runs=runs, dry_run=dry_run, recalibrate=recalibrate, console=talk)
    if prepared is None:
        return
    run_dir, resolved = prepared
    scheduler = LocalScheduler()
    scheduler.submit(scheduler.render(job_request(resolved), run_dir), run_dir, attached=False)
    typer.echo(run_dir.run_id)
