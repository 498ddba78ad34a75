"""`trainworks ls`."""

from __future__ import annotations

import json
import time
from typing import Any

import typer
from rich.table import Table

from trainworks.api.run_handle import Run
from trainworks.api.run_handle import runs as list_runs
from trainworks.cli.options import AsJson, RunsOption, runs_folder
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.runs.run_progress import RunFollower
from trainworks.units import format_duration

__all__ = ["command"]


def command(runs: RunsOption = None, as_json: AsJson = False) -> None:
    """Lists the oldest run first."""
    rows = [_row(run) for run in list_runs(runs_folder(runs))]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("run", "state", "step", "loss", "last change", "cause", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        loss = f"{row['loss']:.4f}" if row["loss"] is not None else ""
        step = f"{row['step']:,}" if row["step"] is not None else ""
        age = format_duration(max(0.0, time.time() - row["updated_at"])) + " ago" if row["updated_at"] else ""
        table.add_row(row["run"], row["state"], step, loss, age, row["cause"] or "")
    SafeConsole().print(table)


def _row(run: Run) -> dict[str, Any]:
    progress = RunFollower(run.run_dir).look()
    state, note = run.standing()
    return {
        "run": run.id,
        "state": str(state),
        "step": progress.latest["step"] if progress.latest else None,
        "loss": progress.latest["loss"] if progress.latest else None,
        "updated_at": progress.status.updated_at,
        "cause": note or progress.status.cause,
    }
