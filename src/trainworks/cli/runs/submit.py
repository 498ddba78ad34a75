"""`trainworks submit`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.api.run_request import array_members
from trainworks.cli.languages import As, job_as
from trainworks.cli.launch import (
    DryRun,
    Name,
    Nodes,
    ProcessesPerNode,
    Recalibrate,
    Target,
    prepare,
    wanted,
)
from trainworks.cli.options import RunsOption
from trainworks.errors import UsageError
from trainworks.report.rendering.console import SafeConsole

__all__ = ["command"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation at a terminal.")]
ArrayOption = Annotated[
    str | None,
    typer.Option("--array", metavar="N|A-B", help="One job per index; a command reads TRAINWORKS_ARRAY_INDEX."),
]


def command(
    target: Target,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    name: Name = None,
    runs: RunsOption = None,
    dry_run: DryRun = False,
    recalibrate: Recalibrate = False,
    language: As = None,
    array: ArrayOption = None,
    yes: Yes = False,
) -> None:
    """The run is independent of this shell. Prints the run id; `trainworks logs -f` follows the run."""
    talk = SafeConsole(stderr=True)
    request = wanted(target, nodes=nodes, nproc=nproc, name=name)
    if language is not None:
        if not dry_run:
            raise UsageError(f"`--as {language}` cannot submit", hint="add `--dry-run`, and submit the text yourself")
        typer.echo(job_as(language, request), nl=False)
        return
    members = array_members(request, array) if array else [request]
    for member in members:
        first = member is members[0]
        launch = prepare(
            member,
            runs=runs,
            dry_run=dry_run,
            recalibrate=recalibrate and first,
            console=talk,
            queued=True,
            ask=first and not yes,
            times=len(members),
        )
        if launch is None:
            return
        launch.start()
        typer.echo(launch.run.id)
