"""`trainworks describe`."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import typer
from rich.table import Table

from trainworks.cli.jobs import JobArgument, find_job, jobs
from trainworks.cli.options import AsJson, wide_console
from trainworks.cli.ps import job_as_json
from trainworks.job.state import CAUSES, Cause, parse_cause
from trainworks.job.store import Attempt, JobRow
from trainworks.record.events import read_events
from trainworks.record.failures import first_failure
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes, format_duration

__all__ = ["command"]

_TAIL_LINES = 10


def command(job: JobArgument, as_json: AsJson = False) -> None:
    """Why it waits, where it runs, or why it failed: the first failing rank, its host and the end of its log."""
    store = jobs()
    row = find_job(store, job)
    attempts = store.attempts(row.id)
    if as_json:
        typer.echo(json.dumps(job_as_json(row) | {"attempts": [dataclasses.asdict(one) for one in attempts]}, indent=2))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, text in _rows(row, time.time()):
        table.add_row(name, text)
    console = wide_console()
    console.print(table)
    if attempts:
        console.print(_attempts(attempts))
    if row.cause and row.state.is_final:
        for line in _first_failure(row):
            console.print(line, highlight=False, markup=False)


def _rows(job: JobRow, now: float) -> list[tuple[str, str]]:
    ticket = job.ticket
    rows = [
        ("job", f"{job.id}, run {job.run_id} in {job.run_dir}"),
        ("state", f"{job.state}{'' if job.reachable else ', not reached now'}"),
        ("asks for", _wish(job)),
        ("submitted", f"{format_duration(now - job.submitted_at)} ago by {job.owner}, priority {job.priority}"),
    ]
    if job.state.waits:
        rows.append(("waits", f"{job.reason or 'Submitted'}: {job.detail or 'nobody has looked at it yet'}"))
        if job.position:
            rows.append(("position", str(job.position)))
        expected = f"in {format_duration(max(0.0, job.starts_at - now))}" if job.starts_at else "nobody can say"
        rows.append(("starts", expected))
    if ticket.depends_on:
        rows.append(("after", ", ".join(ticket.depends_on)))
    if job.placement:
        rows.append(("runs on", ", ".join(one.node for one in job.placement)))
    if job.cause:
        rows.append(("cause", f"{job.cause}: {CAUSES[parse_cause(job.cause) or Cause.UNKNOWN].words}"))
    return rows + ([("message", job.message)] if job.message else [])


def _wish(job: JobRow) -> str:
    ticket, node = job.ticket, job.ticket.node
    fewest, most = ticket.min_nodes, ticket.max_nodes
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    parts = [f"{node.cores:g} cores"] if node.cores else []
    parts += [f"{node.accelerators} accelerators"] if node.accelerators else []
    parts += [format_bytes(node.memory_bytes)] if node.memory_bytes else []
    limit = f", at most {format_duration(ticket.time_limit_s)}" if ticket.time_limit_s else ", no time limit"
    return f"{number} node(s) of {', '.join(parts) or 'anything'}{limit}"


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
    failure = first_failure(read_events(run_dir.events_file))
    if failure is None or failure.get("rank") is None:
        return []
    rank = failure["rank"]
    lines = [f"first to fail: rank {rank} on {failure.get('host', 'an unknown host')}: {failure.get('message')}"]
    try:
        log = run_dir.rank_log(rank).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return lines
    return [*lines, f"end of {run_dir.rank_log(rank)}:", *(f"    {line}" for line in log[-_TAIL_LINES:])]
