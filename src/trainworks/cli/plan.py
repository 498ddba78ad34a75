"""`trainworks plan`."""

from __future__ import annotations

import typer
from rich.console import Console

from trainworks.cli.launch import Nodes, ProcessesPerNode, Recalibrate, wanted
from trainworks.cli.options import AsJson, RunFilePath, RunsOption, runs_folder
from trainworks.cli.plan_view import print_plan
from trainworks.cli.planning import resolve
from trainworks.errors import UsageError

__all__ = ["command"]


def command(
    run_file: RunFilePath,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    recalibrate: Recalibrate = False,
) -> None:
    """The first plan on a machine measures it for a few seconds; later ones remember."""
    asked = wanted([str(run_file)], nodes=nodes, nproc=nproc, name=None)
    folder = runs_folder(runs, asked.run_file.checkpoint.to)
    resolved = resolve(
        asked.run_file, asked.source, run_id=asked.run_file.name, runs=folder, calibrate_again=recalibrate
    )
    if resolved.plan is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    if as_json:
        typer.echo(resolved.plan.model_dump_json(indent=2))
    else:
        print_plan(resolved, Console())
