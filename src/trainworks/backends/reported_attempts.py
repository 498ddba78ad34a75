"""Attempts of a job with a readable run directory: from its events, completed with times that the backend reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainworks.agent.allocation import signs_of_life
from trainworks.backends.backend import Backend, JobStatus
from trainworks.jobs.attempts import attempts_of, placement_on
from trainworks.jobs.job_row import Attempt, JobRow
from trainworks.jobs.state import CAUSES, JobState, attempt_state
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir

_CLEARED_AT_START = dict.fromkeys(("reason", "detail", "position", "starts_at", "cause", "message", "exit_code"))
"""Columns with the reason of a wait; empty once the job has its nodes."""


def reported_attempts(
    row: JobRow, backend: Backend, status: JobStatus | None, state: JobState, columns: dict[str, Any]
) -> list[Attempt] | None:
    """All attempts of a job; None if its events have none.

    Args:
        row: the job in the store.
        backend: runs the job.
        status: reported by the backend; None if it does not list the job.
        state: new state of the job.
        columns: cause, message and exit code of an ended job.
    """
    run_dir = RunDir(Path(row.run_dir))
    attempts = attempts_of(row, read_events(run_dir.events_file))
    if not attempts:
        return None
    last = attempts[-1]
    if state.is_final:
        attempts[-1] = _as_ended(last, run_dir, status, state, columns)
    elif state.waits and last.ended_at is None and row.handle is not None:
        cause, ended = backend.last_end(run_dir, row.handle)
        attempts[-1] = replace(
            last,
            state=attempt_state(state, cause),
            cause=cause,
            message=CAUSES[cause].words,
            ended_at=max(last.started_at, ended),
        )
    elif state.holds_resources and last.ended_at is not None and status is not None:
        attempts += _begun(row, last, status)
    return attempts


def _as_ended(
    last: Attempt, run_dir: RunDir, status: JobStatus | None, state: JobState, columns: dict[str, Any]
) -> Attempt:
    words: dict[str, Any] = {name: columns.get(name) for name in ("cause", "message", "exit_code")}
    if last.ended_at is None:
        ended = max(last.started_at, ended_at(run_dir, status))
        return replace(last, state=state, ended_at=ended, **words)
    return replace(last, exit_code=columns.get("exit_code")) if last.state is state else last


def _begun(row: JobRow, last: Attempt, status: JobStatus) -> list[Attempt]:
    """The attempt that the backend has started and the job has not recorded yet."""
    if status.starts_at is None or status.starts_at < (last.ended_at or 0.0):
        return []
    nodes = placement_on(row, status.nodes)
    begun = Attempt(
        job_id=row.id,
        number=last.number + 1,
        state=JobState.STARTING,
        started_at=status.starts_at,
        placement=nodes,
    )
    return [begun]


def ended_at(run_dir: RunDir, status: JobStatus | None) -> float:
    """End of a job that could not record it: as reported by its backend, else the last status or event."""
    return status.ended_at if status is not None and status.ended_at is not None else signs_of_life(run_dir)


def columns_of(attempts: list[Attempt], row: JobRow, state: JobState) -> dict[str, Any]:
    """Columns of a job's row about its latest attempt."""
    last = attempts[-1]
    columns: dict[str, Any] = {"attempt": last.number, "started_at": last.started_at}
    if state.holds_resources:
        columns |= {"placement": last.placement} | (_CLEARED_AT_START if row.state.waits else {})
    elif state.waits and last.cause is not None:
        columns |= {"cause": last.cause, "message": last.message}
    return columns
