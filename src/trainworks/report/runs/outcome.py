"""The end of a failed run as one error: what failed, where its log is, and how to resume."""

from __future__ import annotations

from pathlib import Path

from trainworks.errors import RunFailedError
from trainworks.jobs.state import JobState
from trainworks.record.events import Event, read_events
from trainworks.record.manifest import complete_checkpoints, damaged_checkpoints
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import first_failure, since_user_start
from trainworks.report.runs.out_of_memory import build_out_of_memory, finding, remedy_lines


def failure_of(run_dir: RunDir, state: JobState) -> RunFailedError | None:
    """The error of a failed or lost run, with the exit code of its ranks; None for any other state."""
    if state not in (JobState.FAILED, JobState.LOST):
        return None
    status, events = run_dir.read_status(), read_events(run_dir.events_file)
    message = "its supervisor is gone" if state is JobState.LOST else status.message
    hint = status.hint
    if status.cause == "oom" and (explained := build_out_of_memory(run_dir.read_resolved(), events)):
        message = f"out of memory: {finding(explained)}"
        remedies = ["the cheapest ways to need less, as predicted", *remedy_lines(explained)]
        hint = "\n      ".join(remedies) if explained.remedies else None
    error = RunFailedError(
        f"run {run_dir.run_id} failed: {message}",
        place=_place(run_dir, events),
        hint=hint or _resume_hint(run_dir, events),
    )
    error.exit_code = status.exit_code or 1
    return error


def _place(run_dir: RunDir, events: list[Event]) -> str:
    failure = first_failure(events)
    if failure is None or failure.get("rank") is None:
        return str(run_dir.node_log(failure["node"]) if failure else run_dir.supervisor_log)
    return f"{run_dir.rank_log(failure['rank'])}  rank {failure['rank']} on node {failure['node']}"


def _resume_hint(run_dir: RunDir, events: list[Event]) -> str | None:
    damaged = damaged_checkpoints(events)
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir) if manifest.step not in damaged]
    if not steps:
        return None
    restart_refused = any(event["kind"] == "restart_refused" for event in since_user_start(events))
    then = "fix the cause, then" if restart_refused else "resume with"
    return f"the checkpoint of step {steps[-1]:,} is complete; {then}: {resume_command(run_dir)}"


def resume_command(run_dir: RunDir) -> str:
    """The command that resumes a run, from the current folder."""
    is_default_folder = (Path("runs") / run_dir.run_id).absolute() == run_dir.path.absolute()
    return f"trainworks resume {run_dir.run_id if is_default_folder else run_dir.path}"
