"""The state of a job from what its backend reports and what its run directory says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainworks.backends.backend import JobStatus
from trainworks.backends.job_tag import is_mark, mark_of
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import CAUSES, Cause, JobState, parse_state
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.record.status import RunStatus

_FORGOTTEN_S = 30.0
"""Time since its last change after which a job that its backend does not list counts as lost."""

_REQUEUE_TAKES_S = 120.0
"""Longest time from the record of a requeue until the backend has taken the job off its nodes."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """New state of a job, and other columns of its row."""

    state: JobState
    columns: dict[str, Any] = field(default_factory=dict)
    since: float | None = None
    """Time of the change, if known."""


def of_this_job(job: JobRow, status: JobStatus | None) -> JobStatus | None:
    """Status of a job; None if another job of Trainworks has its handle now.

    A slurmctld that lost jobs in a crash gives their numbers out again.
    """
    tag = status.tag if status is not None else None
    is_another = is_mark(tag) and tag != mark_of(RunDir(Path(job.run_dir)))
    return None if is_another else status


def next_step(job: JobRow, status: JobStatus | None, run_status: RunStatus, now: float) -> StateChange | None:
    """State of a job from its backend and its run directory; None while it is unknown.

    | backend           | run directory        | result                                                          |
    |-------------------|----------------------|-----------------------------------------------------------------|
    | ended             | ended                | run directory, which knows the cause                            |
    | succeeded         | starting, running .. | unknown; failed after 30 s: its supervisor left no last word    |
    | ended             | other                | backend                                                         |
    | waits             | any                  | waits; preempted if either reports that                         |
    | has its nodes     | starting, running .. | run directory                                                   |
    | has its nodes     | waits                | starting: its supervisor has not written yet                    |
    | has its nodes     | other                | backend                                                         |
    | unknown state     | any                  | unknown                                                         |
    | does not list it  | ended                | run directory                                                   |
    | does not list it  | other                | stopped if a user requested that; else failed after 30 s        |
    """
    said = parse_state(run_status.state)
    if status is None:
        return _forgotten(job, said, run_status, now)
    if status.state is JobState.SUCCEEDED and said.holds_resources:
        return _silent_success(job, status, now)
    if status.state.is_final:
        step = _from_record(said, run_status) if said.is_final else _from_backend(status)
        return replace(step, columns=step.columns | {"raw": status.raw, "restarts": status.restarts})
    columns: dict[str, Any] = {"raw": status.raw, "restarts": status.restarts}
    if status.state.waits:
        preempted = status.state is JobState.PREEMPTED or said is JobState.PREEMPTED
        columns |= {"cause": run_status.cause, "message": run_status.message} if said.waits else {}
        return StateChange(JobState.PREEMPTED if preempted else JobState.QUEUED, columns)
    if status.state.holds_resources and said.holds_resources:
        return StateChange(said, columns)
    return StateChange(JobState.STARTING if status.state.holds_resources and said.waits else status.state, columns)


def _from_record(said: JobState, run_status: RunStatus) -> StateChange:
    return StateChange(said, run_status.columns, since=run_status.updated_at or None)


def _from_backend(status: JobStatus) -> StateChange:
    cause = status.cause
    words = status.reason or status.raw
    message = f"{CAUSES[cause].words}{f': {words}' if words else ''}" if cause else None
    columns = {"cause": cause, "message": message, "exit_code": status.exit_code}
    return StateChange(status.state, columns)


def _silent_success(job: JobRow, status: JobStatus, now: float) -> StateChange | None:
    """A job whose supervisor was killed, or whose last word has not reached this machine yet."""
    if now - (status.ended_at or job.changed_at) < _FORGOTTEN_S:
        return None
    message = f"{job.engine} says {status.raw or 'that it succeeded'}, but its supervisor left no last word"
    found = {"cause": Cause.UNKNOWN, "message": message, "exit_code": 1}
    return StateChange(JobState.FAILED, found | {"raw": status.raw, "restarts": status.restarts})


def _forgotten(job: JobRow, said: JobState, run_status: RunStatus, now: float) -> StateChange | None:
    if said.is_final:
        return _from_record(said, run_status)
    if job.asked_to_end is not None:
        return StateChange(JobState.STOPPED, {"exit_code": 0})
    if now - job.changed_at < _FORGOTTEN_S:
        return None
    message = f"{job.engine} does not know job {job.handle} any more: it was cancelled there, or lost in a crash"
    return StateChange(JobState.FAILED, {"cause": Cause.UNKNOWN, "message": message, "exit_code": 1})


def as_a_gang(row: JobRow, status: JobStatus) -> JobStatus:
    """Report a job with only some of its nodes as waiting."""
    got, wanted = len(status.nodes), row.spec.min_nodes
    if not (row.state.waits and status.state.holds_resources and got < wanted):
        return status
    return replace(status, state=JobState.QUEUED, reason=f"{got} of {wanted} nodes are there", starts_at=None)


def is_requeue_lost(status: JobStatus, run_status: RunStatus, now: float) -> bool:
    """Whether a backend shows a job on nodes that it has left for another turn, as its run directory says, for long.

    A slurmctld that crashed may have forgotten that it requeued the job; it would wait for the job's end for ever.
    """
    has_left = parse_state(run_status.state).waits and run_status.cause is not None
    is_same_turn = status.state.holds_resources and (status.starts_at or now) < run_status.updated_at
    return has_left and is_same_turn and now - run_status.updated_at >= _REQUEUE_TAKES_S


def may_be_lost(job: JobRow, run_status: RunStatus, now: float) -> bool:
    """Whether a job that its backend does not list can be submitted again, if the backend has lost it.

    One that had begun can only after a while: its processes may still be ending.
    """
    said = parse_state(run_status.state)
    is_over = said.waits or (said.holds_resources and now - job.changed_at >= _FORGOTTEN_S)
    return is_over and job.asked_to_end is None
