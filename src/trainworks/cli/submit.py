"""`trainworks submit`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.array import array_of
from trainworks.cli.jobs import submit_job
from trainworks.cli.languages import As, job_as
from trainworks.cli.launch import (
    DryRun,
    Name,
    Nodes,
    ProcessesPerNode,
    Recalibrate,
    Target,
    discarded_if_refused,
    prepare,
    spec,
    wanted,
)
from trainworks.cli.options import RunsOption
from trainworks.errors import UsageError
from trainworks.report.console import SafeConsole

__all__ = ["command"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to all questions.")]
ArrayOption = Annotated[
    str | None,
    typer.Option(
        "--array", metavar="N|A-B", help="Submit one job per index, which is set in the environment of the command."
    ),
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
    asked = wanted(target, nodes=nodes, nproc=nproc, name=name)
    if language is not None:
        if not dry_run:
            raise UsageError(
                f"`--as {language}` submits nothing", hint="add `--dry-run`, and give the text to its backend"
            )
        typer.echo(job_as(language, asked), nl=False)
        return
    members = array_of(asked, array) if array else [asked]
    for member in members:
        first = member is members[0]
        prepared = prepare(
            member,
            runs=runs,
            dry_run=dry_run,
            recalibrate=recalibrate and first,
            console=talk,
            queued=True,
            ask=first and not yes,
            times=len(members),
        )
        if prepared is None:
            return
        assert prepared.backend is not None
        with discarded_if_refused(prepared.run_dir):
            submit_job(prepared.backend, spec(prepared.resolved), prepared.run_dir)
        typer.echo(prepared.run_dir.run_id)
