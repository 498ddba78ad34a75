"""`trainworks ps`, `describe` and `jobs`: show jobs, and rebuild their store."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import trainworks
from trainworks.cli.arguments import JobArgument
from trainworks.cli.options import AsJson, RunsOption, runs_folder, warn
from trainworks.cli.output import show_document, show_facts
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.retention import Rebuilt


_NAMED = 3
"""Largest number of runs that a warning names."""


def ps_command(
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
    from trainworks.api.observing.job_board import array_states, costs_so_far, missing_runs
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
        limit=limit + 1,
        notify=warn,
    )
    if len(found) > limit:
        found = found[:limit]
        warn(f"only the newest {limit} are shown")
        say(f"hint: show more: trainworks ps --limit {10 * limit}", err=True)
    rows = [job.row for job in found]
    _warn_of_missing(runs_folder(runs), missing_runs(runs_folder(runs)))
    if as_json:
        typer.echo(json.dumps(list(map(view.facts, rows)), indent=2))
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


def describe_command(job: JobArgument, runs: RunsOption = None, as_json: AsJson = False) -> None:
    """It lists restarts in place. After a failure it shows the first failing rank, its host and the end of its log."""
    from trainworks.api.observing.job_board import first_failure_lines
    from trainworks.report import jobs as view

    found, attempts = trainworks.describe(job, runs_folder(runs), notify=warn)
    row, code, lives = found.row, found.kept_code, found.lives()
    if as_json:
        kept = code.model_dump(mode="json") if code else None
        facts = {**view.facts(row), "code": kept, "attempts": list(map(view.facts, attempts))}
        facts["lives"] = [asdict(life) for life in lives]
        typer.echo(json.dumps(facts, indent=2))
        return
    price = found.hour_price if attempts else None
    failure = first_failure_lines(found) if row.end.cause and row.state.is_final else []
    now = time.time()
    show_document(view.detail_document(row, attempts, price=price, code=code, failure=failure, now=now, lives=lives))


def jobs_command(
    action: Annotated[Literal["rebuild"], typer.Argument(help="What to do with the job store.")],
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`rebuild` adds the jobs of a folder of runs that are missing from the job store; a damaged store is moved away.

    Jobs that wait or run on another backend are found there, and not submitted twice. Jobs that waited on this machine
    return to its queue. Run it once for each folder of runs.
    """
    from trainworks.api.retention import rebuild_jobs

    _show(rebuild_jobs(runs_folder(runs), notify=lambda message: say(message, err=True)), as_json=as_json)


def _show(added: list[Rebuilt], *, as_json: bool) -> None:
    rows = [(one.run_dir.run_id, str(one.state or "") or None, one.note or None) for one in added]
    if not rows and not as_json:
        say("the job store has every run that was submitted", err=True)
        return
    from trainworks.report import jobs as view

    facts = [dict(zip(("run", "state", "note"), row, strict=True)) for row in rows]
    show_facts(facts, lambda: view.rebuilt_document(rows), as_json=as_json)
