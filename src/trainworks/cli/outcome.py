"""How a run ended, as an exit code and, if it failed, as one clear error."""

from __future__ import annotations

import typer
from rich.console import Console

from trainworks.cli.options import runs_folder
from trainworks.errors import RunFailedError
from trainworks.jobs.state import JobState
from trainworks.record.events import Event, read_events
from trainworks.record.manifest import complete_checkpoints, damaged_checkpoints
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import first_failure, since_user_start
from trainworks.report.out_of_memory import build_out_of_memory, finding, remedy_lines

__all__ = ["raise_for_failure", "resume_command", "say_stopped"]

_STOPPED = 130


def raise_for_failure(run_dir: RunDir, state: JobState) -> None:
    """Raise the error of a run that failed or was lost; nothing happens for any other state.

    Raises:
        RunFailedError: the first failing rank, its log, what can be resumed; exit code as the ranks gave it.
    """
    if state not in (JobState.FAILED, JobState.LOST):
        return
    status = run_dir.read_status()
    message = "its supervisor is gone" if state is JobState.LOST else status.message
    if status.cause == "oom" and (explained := build_out_of_memory(run_dir.read_resolved(), _events(run_dir))):
        message = f"out of memory: {finding(explained)}"
        hint = (
            "\n      ".join(["the cheapest ways to need less, as predicted", *remedy_lines(explained)])
            if explained.remedies
            else None
        )
    else:
        hint = status.hint
    error = RunFailedError(
        f"run {run_dir.run_id} failed: {message}", place=_place(run_dir), hint=hint or _resume_hint(run_dir)
    )
    error.exit_code = status.exit_code or 1
    raise error


def _place(run_dir: RunDir) -> str:
    failure = first_failure(_events(run_dir))
    if failure is None or failure.get("rank") is None:
        return str(run_dir.node_log(failure["node"]) if failure else run_dir.supervisor_log)
    return f"{run_dir.rank_log(failure['rank'])}  rank {failure['rank']} on node {failure['node']}"


def _events(run_dir: RunDir) -> list[Event]:
    return read_events(run_dir.events_file)


def _resume_hint(run_dir: RunDir) -> str | None:
    damaged = damaged_checkpoints(_events(run_dir))
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir) if manifest.step not in damaged]
    if not steps:
        return None
    refused = any(event["kind"] == "restart_refused" for event in since_user_start(_events(run_dir)))
    then = "fix the cause, then" if refused else "go on with"
    return f"the checkpoint of step {steps[-1]:,} is kept; {then}: {resume_command(run_dir)}"


def say_stopped(run_dir: RunDir, talk: Console) -> None:
    """Say how to go on, and end the program as Ctrl-C does.

    Raises:
        typer.Exit: with 130.
    """
    lost = run_dir.read_status().message
    if lost:
        talk.print(f"warning: {lost}", style="yellow", highlight=False)
    talk.print(f"stopped; go on with: {resume_command(run_dir)}", highlight=False)
    raise typer.Exit(_STOPPED)


def resume_command(run_dir: RunDir) -> str:
    """The command that goes on with a run, from the current folder."""
    name = run_dir.run_id if _is_found_by_id(run_dir) else str(run_dir.path)
    return f"trainworks resume {name}"


def _is_found_by_id(run_dir: RunDir) -> bool:
    return (runs_folder(None) / run_dir.run_id).absolute() == run_dir.path.absolute()
