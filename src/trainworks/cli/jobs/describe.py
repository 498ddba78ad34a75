"""`trainworks describe`."""

from __future__ import annotations

import dataclasses
import json
import time

import typer
from rich.table import Table

from trainworks.api.jobs import Attempt, Job, JobRow, cause_text, find_job, this_host
from trainworks.cli.idle import idle_text
from trainworks.cli.jobs.ps import job_as_json
from trainworks.cli.options import AsJson, JobArgument, warn, wide_console
from trainworks.report.request_text import request_text
from trainworks.units import format_duration

__all__ = ["command"]

_TAIL_LINES = 10


def command(job: JobArgument, as_json: AsJson = False) -> None:
    """After a failure it shows the first failing rank, its host and the end of its log."""
    found = find_job(job, notify=warn)
    row, attempts = found.row, found.attempts()
    if as_json:
        typer.echo(json.dumps(job_as_json(row) | {"attempts": [dataclasses.asdict(one) for one in attempts]}, indent=2))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for name, text in _rows(row, time.time()) + _held(found, attempts, time.time()):
        table.add_row(name, text)
    console = wide_console()
    console.print(table)
    if attempts:
        console.print(_attempts(attempts))
    if row.cause and row.state.is_final:
        for line in found.first_failure(_TAIL_LINES):
            console.print(line, highlight=False, markup=False)


def _rows(job: JobRow, now: float) -> list[tuple[str, str]]:
    spec = job.spec
    rows = [
        ("job", f"{job.id}, run {job.run_id} in {job.run_dir}"),
        ("state", f"{job.state}{'' if job.reachable else ', not reached now'}{idle_text(job, now)}"),
        ("engine", f"{job.engine} {job.handle or ''}".strip() + (f": {job.raw}" if job.raw else "")),
        ("requests", request_text(job.spec)),
        ("submitted", f"{format_duration(now - job.submitted_at)} ago by {job.owner}, priority {job.priority}"),
    ]
    if job.host not in (None, this_host()):
        rows.append(("machine", f"{job.host}, whose queue starts the job"))
    if job.state.waits:
        rows.append(("waits", _why(job)))
        if job.position:
            rows.append(("position", str(job.position)))
        expected = f"in {format_duration(max(0.0, job.starts_at - now))}" if job.starts_at else "unknown"
        rows.append(("starts", expected))
    if spec.depends_on:
        rows.append(("after", ", ".join(spec.depends_on)))
    if job.placement:
        rows.append(("runs on", ", ".join(one.node for one in job.placement)))
    if job.cause:
        rows.append(("cause", f"{job.cause}: {cause_text(job.cause)}"))
    return rows + ([("message", job.message)] if job.message else [])


def _why(job: JobRow) -> str:
    if job.reason is None:
        return "submitted; not evaluated by the queue yet"
    return f"{job.reason}: {job.detail}" if job.detail else job.reason


def _held(job: Job, attempts: list[Attempt], now: float) -> list[tuple[str, str]]:
    """Resources used so far, with their cost if the run file gives a price."""
    held_s = (max(0.0, (one.ended_at or now) - one.started_at) * len(one.placement) for one in attempts)
    hours = sum(held_s) / 3600
    node = job.row.spec.node
    if not hours or not (node.accelerators or node.cores):
        return []
    if not node.accelerators:
        return [("held", f"{hours * (node.cores or 0):.3g} core hours")]
    held = f"{hours * node.accelerators:.3g} accelerator hours"
    price = job.usd_per_accelerator_hour
    return [("held", held + (f", {hours * node.accelerators * price:,.2f} USD at {price:g} an hour" if price else ""))]


def _attempts(attempts: list[Attempt]) -> Table:
    table = Table("attempt", "state", "cause", "nodes", "took", "message", box=None, padding=(0, 2, 0, 0))
    for one in attempts:
        took = format_duration(one.ended_at - one.started_at) if one.ended_at else "running"
        nodes = ",".join(place.node for place in one.placement)
        table.add_row(str(one.number), str(one.state), one.cause or "", nodes, took, one.message or "")
    return table
