"""What SkyPilot's queue says of a managed job, and of the tasks of a job group, in the words of Trainworks.

Source: `ManagedJobStatus` of SkyPilot 0.14 (sky/jobs/state.py), and its queue, with a record for each task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainworks.backends.backend import JobStatus
from trainworks.backends.skypilot.client import COLOUR
from trainworks.jobs.state import Cause, JobState

Record = Mapping[str, Any]
"""Entry of the queue: a task of a job."""

JOB_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "SUBMITTED": JobState.STARTING,
    "STARTING": JobState.STARTING,
    "RUNNING": JobState.RUNNING,
    "WINDING_DOWN": JobState.RUNNING,
    "RECOVERING": JobState.RECOVERING,
    "CANCELLING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "CANCELLED": JobState.STOPPED,
    "FAILED": JobState.FAILED,
    "FAILED_SETUP": JobState.FAILED,
    "FAILED_PRECHECKS": JobState.FAILED,
    "FAILED_NO_RESOURCE": JobState.FAILED,
    "FAILED_CONTROLLER": JobState.FAILED,
}

_CAUSES: dict[str, Cause] = {
    "RECOVERING": Cause.NODE_LOST,  # or preempted: SkyPilot does not tell them apart
    "FAILED": Cause.USER_ERROR,
    "FAILED_SETUP": Cause.USER_ERROR,
    "FAILED_PRECHECKS": Cause.ENVIRONMENT,  # no access, or resources that no cloud offers
    "FAILED_NO_RESOURCE": Cause.NO_CAPACITY,
    "FAILED_CONTROLLER": Cause.AGENT_LOST,
}
_EMPTY = ("", "-")
_MACHINES_LEFT = (
    "machines may be left: `SKYPILOT_DEBUG=1 sky status --refresh` lists those of jobs, and `sky down NAME` ends one"
)
_DONE = "DONE"
"""State of the controller of a job that has deleted its machines."""
_RETURNS = "SkyPilot returns the machines of the job"
_MOST_ADVANCED = (JobState.RUNNING, JobState.RECOVERING, JobState.STARTING, JobState.QUEUED, JobState.UNKNOWN)


def job_status(tasks: Sequence[Record]) -> JobStatus:
    """Current status of a managed job, from the record of its task, or of each role of a job group.

    A job that has ended runs until SkyPilot has seen that its machines are gone. Its controller deletes them, checks
    that, and is `DONE` then; what it could not delete fails the job as `FAILED_CONTROLLER`.
    """
    tasks = sorted(tasks, key=_number)
    status = _task_status(tasks[0]) if len(tasks) == 1 else _group_status(tasks)
    if status.state.is_final and _plain(tasks[0].get("schedule_state")) not in (*_EMPTY, _DONE):
        return JobStatus(state=JobState.RUNNING, raw=status.raw, reason=_RETURNS, nodes=_nodes(tasks))
    return status


def tasks_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of a queue by the number of their job."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(str(record.get("job_id")), []).append(record)
    return found


def role_of_node(tasks: Sequence[Record], node: int) -> tuple[str, int] | None:
    """Role of a node of a job group, and its number there; None if the group has fewer nodes."""
    for task in sorted(tasks, key=_number):
        count = _num_nodes(task)
        if node < count:
            return _plain(task.get("task_name")), node
        node -= count
    return None


def _task_status(task: Record) -> JobStatus:
    raw = str(task.get("status"))
    state = JOB_STATES.get(raw, JobState.UNKNOWN)
    has_ended = state.is_final and _time(task.get("start_at")) is not None  # it had nodes
    wanted = (task.get(key) for key in ("failure_reason", "details", "infra"))  # the last one of a job with nodes
    return JobStatus(
        state=state,
        raw=raw,
        reason=next((text for text in map(_plain, wanted) if text not in _EMPTY), None),
        cause=_CAUSES.get(raw),
        hint=_MACHINES_LEFT if raw == "FAILED_CONTROLLER" else None,
        nodes=_nodes([task]) if state is JobState.RUNNING or has_ended else (),
        restarts=int(task.get("recovery_count") or 0),
        exit_code=0 if state is JobState.SUCCEEDED else _exit_code(task.get("failure_reason")),
        starts_at=None if state.waits else _time(task.get("start_at")),
        ended_at=_time(task.get("end_at")) if state.is_final else None,
    )


def _group_status(tasks: Sequence[Record]) -> JobStatus:
    """Status of a job group: it ends with the roles that decide, and its cause is the first failure of any role.

    A role whose program fails ends the group if it decides; one that cannot be launched always does. A role that
    SkyPilot starts again leaves the job running, as its other nodes stay; `raw` has the state of each.
    """
    roles = [
        _Role(_plain(task.get("task_name")), _task_status(task), task.get("is_primary_in_job_group") is not False)
        for task in tasks
    ]
    words = {one.status.raw for one in roles}
    raw = words.pop() if len(words) == 1 else ", ".join(f"{one.name} {one.status.raw}" for one in roles)
    deciding = [one.status.state for one in roles if one.decides]
    failed = [one for one in roles if one.status.state is JobState.FAILED]
    has_failed = any(one.decides or one.status.raw != "FAILED" for one in failed)
    is_done = _plain(tasks[0].get("schedule_state")) == _DONE
    if not (all(state.is_final for state in deciding) or (is_done and has_failed)):
        return _live_status(tasks, roles, raw)
    started = [one.status.starts_at for one in roles if one.status.starts_at is not None]
    ended = [one.status.ended_at for one in roles if one.status.ended_at is not None]
    last = JobStatus(state=JobState.SUCCEEDED, exit_code=0)
    if has_failed:
        first = min(failed, key=lambda one: one.status.ended_at or float("inf"))
        last = replace(first.status, reason=f"role `{first.name}`: {first.status.reason or first.status.raw}")
    elif any(state is not JobState.SUCCEEDED for state in deciding):
        last = JobStatus(state=JobState.STOPPED)
    starts_at, ended_at = min(started, default=None), max(ended, default=None)
    nodes = _nodes(tasks) if started else ()
    return replace(last, raw=raw, restarts=0, nodes=nodes, starts_at=starts_at, ended_at=ended_at)


@dataclass(frozen=True, slots=True)
class _Role:
    name: str
    status: JobStatus
    decides: bool
    """True for one of the `primary_tasks` of its group, and for each role of a group that names none."""


def _live_status(tasks: Sequence[Record], roles: Sequence[_Role], raw: str) -> JobStatus:
    """Status of a group that has not ended: SkyPilot starts the commands once all roles have their nodes."""
    live = [one for one in roles if not one.status.state.is_final]
    first = min(live, key=lambda one: _MOST_ADVANCED.index(one.status.state))
    status = first.status
    return replace(
        status,
        raw=raw,
        reason=f"role `{first.name}`: {status.reason}" if status.reason else None,
        nodes=_nodes(tasks) if status.state is JobState.RUNNING else (),
        restarts=0,
    )


def _number(task: Record) -> int:
    return int(task.get("task_id") or 0)


def _num_nodes(task: Record) -> int:
    count = re.match(r"(?P<nodes>\d+)x", _plain(task.get("resources")))  # `2x[CPU:2+][Spot]`
    return int(count["nodes"]) if count else 1


def _nodes(tasks: Sequence[Record]) -> tuple[str, ...]:
    """Names of the nodes of a job that runs, which has all of them; without names there, those of its clusters."""
    found: list[str] = []
    for task in tasks:
        names = [name.strip() for name in _plain(task.get("node_names")).split(",") if name.strip()]
        own = task.get("task_name") if len(tasks) > 1 else task.get("job_name")
        cluster = task.get("current_cluster_name") or own or task.get("job_id")
        found += names or [f"{cluster}-{index}" for index in range(_num_nodes(task))]
    return tuple(found)


def _exit_code(reason: object) -> int | None:
    """The first exit code of a node in SkyPilot's reason for a failure that is not 0."""
    found = re.search(r"exited with exit codes? \[?(?P<codes>\d+(?:, \d+)*)", _plain(reason))
    if found is None:
        return None
    return next((code for code in map(int, found["codes"].split(", ")) if code), None)


def _time(seconds: object) -> float | None:
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _plain(text: object) -> str:
    return " ".join(COLOUR.sub("", str(text)).split()) if text is not None else ""
