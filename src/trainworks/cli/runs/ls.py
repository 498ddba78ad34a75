"""`trainworks ls`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import typer

import trainworks
from trainworks.cli.options import AsJson, RunsOption, runs_folder
from trainworks.cli.output import show_document

if TYPE_CHECKING:
    from trainworks.api.run_handle import Run


def command(runs: RunsOption = None, as_json: AsJson = False) -> None:
    """Lists the oldest run first."""
    rows = [_row(run) for run in trainworks.runs(runs_folder(runs))]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from trainworks.report.run_list import document

    show_document(document(rows, time.time()))


def _row(run: Run) -> dict[str, Any]:
    from trainworks.report.runs.run_progress import RunFollower

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
