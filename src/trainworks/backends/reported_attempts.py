"""Attempts of a job with a readable run directory: from its events, completed with times that the backend reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainworks.agent.allocation import signs_of_life
from trainworks.backends.backend import Backend, JobStatus
from trainworks.jobs.job_row import Attempt, JobRow, Placement
from trainworks.jobs.state import CAUSES, Cause, JobState, attempt_state, parse_cause, parse_state
from trainworks.record.events import Event
from trainworks.record.run_dir import RunDir
from trainworks.record.status import End
from trainworks.recover.restarts import restarts_counted


def attempts_of(job: JobRow, events: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """One attempt per turn, oldest first; the last one is open while the record does not say how it ended.

    An attempt begins when the job got its nodes, or when its supervisor began where that is not known. It ends with the
    first state of the record that is final or waits for another turn.
    """
    turns: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["kind"] == "submitted":
            turns.append([])
        if turns:
            turns[-1].append(event)
    attempts = [_attempt(job, number, turn) for number, turn in enumerate(turns, start=1)]
    return [
        one if one.ended_at is not None or one is attempts[-1] else _cut_off(one, turn)
        for one, turn in zip(attempts, turns, strict=True)
    ]


def _attempt(job: JobRow, number: int, turn: Sequence[Mapping[str, Any]]) -> Attempt:
    submitted = turn[0]
    started_at = float(submitted.get("started_at") or submitted["t"])
    states = [event for event in turn if event["kind"] == "state"]
    last = states[-1] if states else {"state": JobState.STARTING}
    end = End.of_event(last)
    ends = [event for event in states if (said := parse_state(event["state"])).is_final or said.waits]
    ended_at = float(last.get("ended_at") or ends[0]["t"]) if ends else None
    return Attempt(
        job_id=job.id,
        number=number,
        state=attempt_state(parse_state(end.state), parse_cause(end.cause)),
        started_at=started_at,
        ended_at=None if ended_at is None else max(started_at, ended_at),
        placement=placement_on(job, submitted.get("hosts") or ()),
        **end.columns,
    )


def _cut_off(attempt: Attempt, turn: Sequence[Mapping[str, Any]]) -> Attempt:
    """An attempt without a recorded end, followed by another one."""
    ended_at = max(attempt.started_at, float(turn[-1]["t"]))
    return Attempt(
        job_id=attempt.job_id,
        number=attempt.number,
        state=JobState.FAILED,
        started_at=attempt.started_at,
        ended_at=ended_at,
        placement=attempt.placement,
    )


def placement_on(job: JobRow, nodes: Sequence[str]) -> tuple[Placement, ...]:
    """What a job holds of these nodes."""
    node = job.spec.node
    return tuple(Placement(name, node.cores or 0.0, tuple(range(node.accelerators))) for name in nodes)


_CLEARED_AT_START = dict.fromkeys(("reason", "detail", "position", "starts_at", "cause", "message", "exit_code"))
"""Columns with the reason of a wait; empty once the job has its nodes."""


def reported_attempts(
    row: JobRow,
    backend: Backend,
    status: JobStatus | None,
    events: Sequence[Event],
    state: JobState,
    columns: dict[str, Any],
) -> list[Attempt] | None:
    """All attempts of a job; None if its events have none."""
    run_dir = RunDir(Path(row.run_dir))
    attempts = attempts_of(row, events)
    if not attempts:
        return None
    last = attempts[-1]
    if state.is_final:
        attempts[-1] = _as_ended(last, run_dir, status, state, columns)
    elif state.waits and last.ended_at is None and row.handle is not None:
        cause, ended = backend.last_end(run_dir, row.handle) or (Cause.NODE_LOST, signs_of_life(run_dir))
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
    return replace(last, exit_code=columns.get("exit_code", last.exit_code)) if last.state is state else last


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


def recorded_end(attempts: Sequence[Attempt] | None, state: JobState) -> float | None:
    """When the latest attempt of a job ended in this state; None if it did not, or is unknown."""
    return attempts[-1].ended_at if attempts and attempts[-1].state is state else None


def ended_at(run_dir: RunDir, status: JobStatus | None) -> float:
    """End of a job that could not record it: as reported by its backend, else the last status or event."""
    return status.ended_at if status is not None and status.ended_at is not None else signs_of_life(run_dir)


def columns_of(attempts: list[Attempt], row: JobRow, events: Sequence[Event], state: JobState) -> dict[str, Any]:
    """Columns of a job's row about its latest attempt, and its restarts: a backend counts free starts as well."""
    last = attempts[-1]
    restarts = restarts_counted(events, waits=state.waits, cause=last.cause)
    columns: dict[str, Any] = {"attempt": last.number, "started_at": last.started_at, "restarts": restarts}
    if state.holds_resources:
        columns |= {"placement": last.placement} | (_CLEARED_AT_START if row.state.waits else {})
    elif state.waits and last.cause is not None:
        columns |= {"cause": last.cause, "message": last.message}
    return columns
