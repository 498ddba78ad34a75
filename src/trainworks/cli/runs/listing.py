"""`trainworks ls` and `status`."""

from __future__ import annotations

import json
import time

import typer

import trainworks
from trainworks.cli.arguments import OptionalRun
from trainworks.cli.options import AsJson, RunsOption, find, runs_folder
from trainworks.cli.output import show_document
from trainworks.report.rendering.printable import say
from trainworks.units import format_bytes, format_count, format_duration


def ls_command(runs: RunsOption = None, as_json: AsJson = False) -> None:
    """Lists the oldest run first."""
    rows = trainworks.runs(runs_folder(runs)).rows()[::-1]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from trainworks.report.artifacts import runs_document

    show_document(runs_document(rows, time.time()))


def status_command(run: OptionalRun = None, runs: RunsOption = None, as_json: AsJson = False) -> None:
    """Shows state, progress, newest and damaged checkpoints and, after a failure, its cause."""
    from trainworks.report.runs.run_progress import RunFollower

    found = find(run, runs)
    progress = RunFollower(found.run_dir).look()
    state, note = found.standing()
    plan = found.resolved.plan
    figures = {
        "run": found.id,
        "state": str(state),
        "idle_for_s": time.time() - progress.status.idle_since if progress.status.idle_since else None,
        "cause": progress.status.cause,
        "message": note or progress.status.message,
        "step": progress.latest["step"] if progress.latest else None,
        "num_steps": plan.num_steps if plan else None,
        "loss": progress.latest.get("loss") if progress.latest else None,
        "tokens_per_s": progress.tokens_per_s,
        "memory_peak_bytes": progress.memory_peak_bytes,
        "checkpoint_step": progress.checkpoint_step,
        "checkpoint_age_s": time.time() - progress.checkpoint_at if progress.checkpoint_at else None,
        "checkpoint_damage": progress.damage or None,
        "anchored_eta_s": progress.anchored_eta_s(plan.num_steps) if plan and not progress.state.is_final else None,
        "eta_s": progress.eta_s(plan.num_steps) if plan and not progress.state.is_final else None,
    }
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        if value is not None:
            say(f"{name:<18} {_readable(name, value)}")


def _readable(name: str, value: object) -> str:
    if isinstance(value, list):
        return f"\n{'':<18} ".join(value)
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("tokens_per_s"):
        return format_count(value)
    if name.endswith("_s"):
        return format_duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
