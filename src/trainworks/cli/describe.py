"""`trainworks describe`."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import typer
from rich.table import Table

from trainworks.backends.registry import cluster_of_job
from trainworks.cli.idle import idle_text
from trainworks.cli.jobs import JobArgument, find_job, jobs
from trainworks.cli.options import AsJson, wide_console
from trainworks.cli.ps import job_as_json
from trainworks.cli.wish import wish
from trainworks.host.users import this_host
from trainworks.jobs.state import CAUSES, Cause, parse_cause
from trainworks.jobs.store import Attempt, JobRow
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import describe_failure, first_failure
from trainworks.units import format_duration

__all__ = ["command"]

_TAIL_LINES = 10


def command(job: JobArgument, as_json: AsJson = False) -> None:
    """After a failure it shows the first failing rank, its host and the end of its log."""
    store = jobs()
    row = find_job(store, job)
    attempts = store.attempts(row.id)
    if as_json:
        typer.echo(json.dumps(job_as_json(row) | {"attempts": [dataclasses.asdict(one) for one in attempts]}, indent=2))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, text in _rows(row, time.time()) + _held(row, attempts, time.time()):
        table.add_row(name, text)
    console = wide_console()
    console.print(table)
    if attempts:
        console.print(_attempts(attempts))
    if row.cause and row.state.is_final:
        for line in _first_failure(row):
            console.print(line, highlight=False, markup=False)


def _rows(job: JobRow, now: float) -> list[tuple[str, str]]:
    spec = job.spec
    rows = [
        ("job", f"{job.id}, run {job.run_id} in {job.run_dir}"),
        ("state", f"{job.state}{'' if job.reachable else ', not reached now'}{idle_text(job, now)}"),
        ("engine", f"{job.engine} {job.handle or ''}".strip() + (f": {job.raw}" if job.raw else "")),
        ("asks for", wish(job.spec)),
        ("submitted", f"{format_duration(now - job.submitted_at)} ago by {job.owner}, priority {job.priority}"),
    ]
    if job.host not in (None, this_host()):
        rows.append(("machine", f"{job.host}, whose queue starts the job"))
    if job.state.waits:
        rows.append(("waits", _why(job)))
        if job.position:
            rows.append(("position", str(job.position)))
        expected = f"in {format_duration(max(0.0, job.starts_at - now))}" if job.starts_at else "nobody can say"
        rows.append(("starts", expected))
    if spec.depends_on:
        rows.append(("after", ", ".join(spec.depends_on)))
    if job.placement:
        rows.append(("runs on", ", ".join(one.node for one in job.placement)))
    if job.cause:
        rows.append(("cause", f"{job.cause}: {CAUSES[parse_cause(job.cause) or Cause.UNKNOWN].words}"))
    return rows + ([("message", job.message)] if job.message else [])


def _why(job: JobRow) -> str:
    if job.reason is None:
        return "submitted; nobody has looked at it yet"
    return f"{job.reason}: {job.detail}" if job.detail else job.reason


def _held(job: JobRow, attempts: list[Attempt], now: float) -> list[tuple[str, str]]:
    """What the job has held so far, and what that costs where the run file names a price."""
    held_s = (max(0.0, (one.ended_at or now) - one.started_at) * len(one.placement) for one in attempts)
    hours = sum(held_s) / 3600
    node = job.spec.node
    if not hours or not (node.accelerators or node.cores):
        return []
    if not node.accelerators:
        return [("held", f"{hours * (node.cores or 0):.3g} core hours")]
    held = f"{hours * node.accelerators:.3g} accelerator hours"
    cluster = cluster_of_job(job)
    price = cluster.usd_per_accelerator_hour if cluster else None
    return [("held", held + (f", {hours * node.accelerators * price:,.2f} USD at {price:g} an hour" if price else ""))]


def _attempts(attempts: list[Attempt]) -> Table:
    table = Table("attempt", "state", "cause", "nodes", "took", "message", box=None, padding=(0, 2, 0, 0))
    for one in attempts:
        took = format_duration(one.ended_at - one.started_at) if one.ended_at else "still at it"
        nodes = ",".join(place.node for place in one.placement)
        table.add_row(str(one.number), str(one.state), one.cause or "", nodes, took, one.message or "")
    return table


def _first_failure(job: JobRow) -> list[str]:
    """The rank that failed first, and how its log ends."""
    run_dir = RunDir(Path(job.run_dir))
    events = read_events(run_dir.events_file)
    failure = first_failure(events)
    if failure is None or failure.get("rank") is None:
        return []
    rank = failure["rank"]
    lines = [
        f"first to fail: rank {rank} on {failure.get('host', 'an unknown host')}: {describe_failure(failure, events)}"
    ]
    try:
        log = run_dir.rank_log(rank).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return lines
    return [*lines, f"end of {run_dir.rank_log(rank)}:", *(f"    {line}" for line in log[-_TAIL_LINES:])]
