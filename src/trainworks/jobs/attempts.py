"""Attempts of a job, as the events of its run tell them: every turn in which it held its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainworks.jobs.job_row import Attempt, JobRow, Placement
from trainworks.jobs.state import JobState, attempt_state, parse_cause, parse_state


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
    state, cause = parse_state(last["state"]), last.get("cause")
    ends = [event for event in states if (said := parse_state(event["state"])).is_final or said.waits]
    ended_at = float(last.get("ended_at") or ends[0]["t"]) if ends else None
    return Attempt(
        job_id=job.id,
        number=number,
        state=attempt_state(state, parse_cause(cause)),
        started_at=started_at,
        ended_at=None if ended_at is None else max(started_at, ended_at),
        cause=cause,
        message=last.get("message"),
        placement=placement_on(job, submitted.get("hosts") or ()),
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
