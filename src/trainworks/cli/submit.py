"""`trainworks submit`."""

from __future__ import annotations

import typer
from rich.console import Console

from trainworks.cli.languages import As, job_as
from trainworks.cli.launch import DryRun, Name, Nodes, ProcessesPerNode, Recalibrate, Target, prepare, ticket, wanted
from trainworks.cli.options import RunsOption
from trainworks.errors import UsageError
from trainworks.scheduler.local_engine import LocalEngine

__all__ = ["command"]


def command(
    target: Target,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    name: Name = None,
    runs: RunsOption = None,
    dry_run: DryRun = False,
    recalibrate: Recalibrate = False,
    language: As = None,
) -> None:
    """The run survives this shell. Prints the run id; `trainworks logs -f` follows it."""
    talk = Console(stderr=True)
    asked = wanted(target, nodes=nodes, nproc=nproc, name=name)
    if language is not None:
        if not dry_run:
            raise UsageError(
                f"`--as {language}` submits nothing", hint="add `--dry-run`, and give the text to its engine"
            )
        typer.echo(job_as(language, asked), nl=False)
        return
    engine = LocalEngine()
    prepared = prepare(asked, runs=runs, dry_run=dry_run, recalibrate=recalibrate, console=talk, check=engine.check)
    if prepared is None:
        return
    run_dir, resolved = prepared
    engine.submit(engine.render(ticket(resolved), run_dir), run_dir)
    typer.echo(run_dir.run_id)
