"""`trainworks ps`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, RunsOption, runs_folder, warn
from trainworks.cli.output import show_document
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

_NAMED = 3
"""Largest number of runs that a warning names."""


def command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")] = False,
    state: Annotated[str | None, typer.Option("--state", help="Jobs in this state only.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Jobs of this name only.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Your own jobs only.")] = False,
    array: Annotated[str | None, typer.Option("--array", help="Jobs of the array of this id, one by one.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of jobs and arrays.")] = 50,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Newest first: waiting and running jobs, or all. The jobs of an array share a line."""
    from trainworks.api.jobs import JobState
    from trainworks.api.observing.job_details import array_states, costs_so_far, missing_runs
    from trainworks.report import jobs as view

    states = None if everything else [each for each in JobState if not each.is_final]
    if state is not None:
        if state.upper() not in JobState.__members__:
            raise UsageError(f"no state `{state}`", hint=f"one of {', '.join(JobState)}")
        states = [JobState(state.upper())]
    found = trainworks.jobs(
        states=states,
        name=name,
        mine=mine,
        array=array,
        one_per_array=array is None and not as_json,
        limit=limit,
        notify=warn,
    )
    rows = [job.row for job in found]
    _warn_of_missing(runs_folder(runs), missing_runs(runs_folder(runs)))
    if as_json:
        typer.echo(json.dumps([view.facts(row) for row in rows], indent=2))
    else:
        arrays = array_states(found) if array is None else {}
        now = time.time()
        show_document(view.list_document(rows, now, arrays=arrays, costs=costs_so_far(found, now, arrays)))


def _warn_of_missing(folder: Path, missing: list[str]) -> None:
    """Warn of submitted runs that are not in this store: it was deleted, or it is another one."""
    if missing:
        named = ", ".join(missing[-_NAMED:]) + (" ..." if len(missing) > _NAMED else "")
        warn(f"the job store does not have {len(missing)} submitted runs of `{folder}`: {named}")
        say("hint: add them: trainworks jobs rebuild", err=True)
