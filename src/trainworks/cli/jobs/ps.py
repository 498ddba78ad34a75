"""`trainworks ps`."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from trainworks.api.jobs import JobRow, JobState, jobs, missing_runs, this_host
from trainworks.cli.idle import idle_text
from trainworks.cli.options import AsJson, RunsOption, runs_folder, warn, wide_console
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say
from trainworks.units import format_duration

__all__ = ["command", "job_as_json"]

_NAMED = 3
"""Largest number of runs that a warning names."""


def command(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")] = False,
    state: Annotated[str | None, typer.Option("--state", help="Jobs in this state only.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Jobs of this name only.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Your own jobs only.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of jobs.")] = 50,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Newest first: waiting and running jobs, or all."""
    live = [one for one in JobState if not one.is_final]
    states = [_state(state)] if state else None if everything else live
    found = [job.row for job in jobs(states=states, name=name, mine=mine, limit=limit, notify=warn)]
    _warn_of_missing(runs_folder(runs))
    if as_json:
        typer.echo(json.dumps([job_as_json(job) for job in found], indent=2))
        return
    columns = ["job", "run", "engine", "state", "why", "starts", "nodes", "prio", "time"]
    of_several = any(job.uid != os.getuid() or job.host not in (None, this_host()) for job in found)
    table = Table(*columns, *(["owner"] if of_several else []), box=None, padding=(0, 2, 0, 0))
    for job in found:
        table.add_row(*_row(job, time.time()), *([_owner(job)] if of_several else []))
    wide_console().print(table)


def _warn_of_missing(folder: Path) -> None:
    """Warn of submitted runs that are not in this store: it was deleted, or it is another one."""
    if missing := missing_runs(folder):
        named = ", ".join(missing[-_NAMED:]) + (" ..." if len(missing) > _NAMED else "")
        say(f"warning: the job store does not have {len(missing)} submitted runs of `{folder}`: {named}", err=True)
        say("hint: add them: trainworks jobs rebuild", err=True)


def _state(text: str) -> JobState:
    try:
        return JobState(text.upper())
    except ValueError:
        raise UsageError(f"no state `{text}`", hint=f"one of {', '.join(JobState)}") from None


def _row(job: JobRow, now: float) -> list[str]:
    reachable = "" if job.reachable else " (not reached)"
    why = ": ".join(part for part in (job.reason, job.detail) if part) or job.cause or ""
    starts = format_duration(max(0.0, job.starts_at - now)) if job.starts_at else ""
    return [
        str(job.id),
        job.run_id,
        f"{job.engine} {job.handle or ''}".strip(),
        f"{job.state}{reachable}{idle_text(job, now)}",
        why,
        f"in {starts}" if starts else f"{job.position}." if job.position else "",
        ",".join(one.node for one in job.placement) or str(job.spec.max_nodes),
        str(job.priority),
        _time(job, now),
    ]


def _owner(job: JobRow) -> str:
    return job.owner if job.host in (None, this_host()) else f"{job.owner} on {job.host}"


def _time(job: JobRow, now: float) -> str:
    """How long the job has waited or run; empty for a job that ended without a start.

    The clocks of two machines may differ, so the start may lie in the future.
    """
    if job.state.waits:
        return f"{format_duration(max(0.0, now - job.submitted_at))} waiting"
    if job.started_at is None:
        return ""
    return format_duration(max(0.0, (job.ended_at or now) - job.started_at))


def job_as_json(job: JobRow) -> dict[str, Any]:
    """All columns of a job, for `--json`."""
    return dataclasses.asdict(job)
