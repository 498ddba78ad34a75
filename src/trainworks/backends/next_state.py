"""The state of a job and its attempts, from what its backend reports and what its run directory says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainworks.agent.allocation import signs_of_life
from trainworks.backends.backend import Backend, JobStatus
from trainworks.backends.job_tag import is_mark, mark_of
from trainworks.backends.ownership import stopped_by
from trainworks.jobs.job_row import Attempt, JobChanges, JobRow, Placement
from trainworks.jobs.state import Cause, JobState, attempt_state, parse_cause, parse_state
from trainworks.record.events.job import StateEvent, SubmittedEvent
from trainworks.record.events.log import Event, of_kind
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import restarts_counted

_FORGOTTEN_S = 30.0
"""Time since its last change after which a job that its backend does not list counts as lost."""

_REQUEUE_TAKES_S = 120.0
"""Longest time from the record of a requeue until the backend has taken the job off its nodes."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """New state of a job and how it came to it, and other columns of its row."""

    end: End
    columns: JobChanges = field(default_factory=JobChanges)

    @property
    def state(self) -> JobState:
        """The new state."""
        return parse_state(self.end.state)


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
        cause, words = status.cause, status.reason or status.raw
        message = f"{cause.words}{f': {words}' if words else ''}" if cause else None
        reported = End(status.state, cause, message, hint=status.hint, exit_code=status.exit_code)
        return StateChange(_with_user(run_status.end if said.is_final else reported, job, status), _columns(status))
    if status.state.waits:
        preempted = status.state is JobState.PREEMPTED or said is JobState.PREEMPTED
        end = run_status.end if said.waits else job.end
        state = JobState.PREEMPTED if preempted else JobState.QUEUED
    elif status.state.holds_resources:
        end, state = End(said), JobState.STARTING if said.waits else said if said.holds_resources else status.state
    else:
        end, state = job.end, status.state
    return StateChange(replace(end, state=state, at=None), _columns(status))


def _with_user(end: End, job: JobRow, status: JobStatus | None = None) -> End:
    """An end that says who has stopped the job, if that is known; one that has ended by itself is as it was."""
    if end.state != JobState.STOPPED or end.cause not in (None, Cause.KILLED):
        return end
    return end.because(stopped_by(job) or (status.ended_by if status is not None else None))


def _columns(status: JobStatus) -> JobChanges:
    return {"raw": status.raw, "restarts": status.restarts if status.restarts_used is None else status.restarts_used}


def _silent_success(job: JobRow, status: JobStatus, now: float) -> StateChange | None:
    """A job whose supervisor was killed, or whose last word has not reached this machine yet."""
    if now - (status.ended_at or job.changed_at) < _FORGOTTEN_S:
        return None
    message = f"{job.engine} says {status.raw or 'that it succeeded'}, but its supervisor left no last word"
    return StateChange(End(JobState.FAILED, Cause.UNKNOWN, message, exit_code=1), _columns(status))


def _forgotten(job: JobRow, said: JobState, run_status: RunStatus, now: float) -> StateChange | None:
    if said.is_final:
        return StateChange(_with_user(run_status.end, job))
    if job.asked_to_end is not None:
        return StateChange(_with_user(End(JobState.STOPPED, exit_code=0), job))
    if now - job.changed_at < _FORGOTTEN_S:
        return None
    message = f"{job.engine} does not know job {job.handle} any more: it was cancelled there, or lost in a crash"
    return StateChange(End(JobState.FAILED, Cause.UNKNOWN, message, exit_code=1))


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


def attempts_of(job: JobRow, events: Sequence[Event]) -> list[Attempt]:
    """One attempt per turn, oldest first; the last one is open while the record does not say how it ended.

    An attempt begins when the job got its nodes, or when its supervisor began where that is not known. It ends with the
    first state of the record that is final or waits for another turn.
    """
    turns: list[tuple[SubmittedEvent, list[Event]]] = []
    for event in events:
        if event["kind"] == "submitted":
            turns.append((event, []))
        if turns:
            turns[-1][1].append(event)
    attempts = [_attempt(job, number, *turn) for number, turn in enumerate(turns, start=1)]
    for index, (one, (_, turn)) in enumerate(zip(attempts[:-1], turns, strict=False)):
        if one.ended_at is None:  # no recorded end, and followed by another one
            attempts[index] = replace(one, end=End(JobState.FAILED, at=max(one.started_at, float(turn[-1]["t"]))))
    return attempts


def _attempt(job: JobRow, number: int, submitted: SubmittedEvent, turn: Sequence[Event]) -> Attempt:
    started_at = float(submitted.get("started_at") or submitted["t"])
    states = of_kind(turn, StateEvent)
    end = End.of_event(states[-1]) if states else End(state=JobState.STARTING)
    ends = [event for event in states if (said := parse_state(event["state"])).is_final or said.waits]
    ended_at = float(states[-1].get("ended_at") or ends[0]["t"]) if ends else None
    return Attempt(
        job_id=job.id,
        number=number,
        started_at=started_at,
        end=replace(
            end,
            state=attempt_state(parse_state(end.state), parse_cause(end.cause)),
            at=None if ended_at is None else max(started_at, ended_at),
        ),
        placement=placement_on(job, submitted.get("hosts") or ()),
    )


def placement_on(job: JobRow, nodes: Sequence[str]) -> tuple[Placement, ...]:
    """What a job holds of these nodes, which are those of one role after another if it has roles."""
    of_roles = [role.node for role in job.spec.roles for _ in range(role.nodes)]
    each = zip(nodes, of_roles or [job.spec.node] * len(nodes), strict=False)
    return tuple(Placement(name, node.cores or 0.0, tuple(range(node.accelerators))) for name, node in each)


def reported_attempts(
    row: JobRow, backend: Backend, status: JobStatus | None, events: Sequence[Event], end: End
) -> list[Attempt] | None:
    """All attempts of a job; None if its events have none."""
    run_dir = RunDir(Path(row.run_dir))
    attempts = attempts_of(row, events)
    if not attempts:
        return None
    last, state = attempts[-1], parse_state(end.state)
    if state.is_final and last.ended_at is None:
        ended = max(last.started_at, ended_at(run_dir, status))
        attempts[-1] = replace(last, end=replace(end, at=ended))
    elif state.is_final and last.state is state:
        attempts[-1] = replace(last, end=replace(last.end, exit_code=end.exit_code))
    elif state.waits and last.ended_at is None and row.handle is not None:
        cause, ended = backend.last_end(run_dir, row.handle) or (Cause.NODE_LOST, signs_of_life(run_dir))
        lost = End(attempt_state(state, cause), cause, cause.words, at=max(last.started_at, ended))
        attempts[-1] = replace(last, end=lost)
    elif state.holds_resources and last.ended_at is not None and status is not None:
        attempts += _begun(row, last, status)
    return attempts


def _begun(row: JobRow, last: Attempt, status: JobStatus) -> list[Attempt]:
    """The attempt that the backend has started and the job has not recorded yet."""
    if status.starts_at is None or status.starts_at < (last.ended_at or 0.0):
        return []
    return [
        Attempt(
            job_id=row.id,
            number=last.number + 1,
            started_at=status.starts_at,
            end=End(JobState.STARTING),
            placement=placement_on(row, status.nodes),
        )
    ]


def recorded_end(attempts: Sequence[Attempt] | None, state: JobState) -> float | None:
    """When the latest attempt of a job ended in this state; None if it did not, or is unknown."""
    return attempts[-1].ended_at if attempts and attempts[-1].state is state else None


def ended_at(run_dir: RunDir, status: JobStatus | None) -> float:
    """End of a job that could not record it: as reported by its backend, else the last status or event."""
    return status.ended_at if status is not None and status.ended_at is not None else signs_of_life(run_dir)


def columns_of(attempts: list[Attempt], row: JobRow, events: Sequence[Event], state: JobState) -> JobChanges:
    """Columns of a job's row about its latest attempt, and its restarts: a backend counts free starts as well."""
    last = attempts[-1]
    restarts = restarts_counted(events, waits=state.waits, cause=last.end.cause)
    columns: JobChanges = {"attempt": last.number, "started_at": last.started_at, "restarts": restarts}
    if state.holds_resources:
        columns["placement"] = last.placement
        if row.state.waits:  # the reason of the wait
            columns |= {"reason": None, "detail": None, "position": None, "starts_at": None}
    return columns
