"""`trainworks stop`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.report.rendering.printable import say


def command(
    run: OptionalRun = None,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without a checkpoint.")] = False,
    runs: RunsOption = None,
) -> None:
    """The command returns when the run has ended."""
    found = find(run, runs)
    job = found.job
    found.stop(at_once=now)
    if job is not None and not job.state.is_final and job.row.uid != os.getuid():
        typer.echo(f"asked {found.id} to stop; the queue of its owner ends it")
        return
    say(f"{found.id} {found.wait()}")
