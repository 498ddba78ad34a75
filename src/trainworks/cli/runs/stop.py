"""`trainworks stop`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainworks.cli.options import Runs, RunsOption, find_each
from trainworks.report.rendering.printable import say


def command(
    names: Runs = None,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without a checkpoint.")] = False,
    runs: RunsOption = None,
) -> None:
    """All runs are asked at once. The command returns when they have ended."""
    found = find_each(names, runs, live=True)
    for run in found:
        run.stop(at_once=now)
    for run in found:
        job = run.job
        if job is not None and not job.state.is_final and job.row.uid != os.getuid():
            say(f"asked {run.id} to stop; the queue of its owner ends it")
        else:
            say(f"{run.id} {run.wait()}")
