"""Next state of a local job whose supervisor has ended: a table over its last status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.record.events.log import Event
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, may_restart

_MAX_LAUNCHES = 5
"""Launches in a row of a supervisor that dies before it has started anything."""

STOPPED_BEFORE_START = End(JobState.STOPPED, exit_code=0)
"""The end of a job that was stopped while it waited."""


def outcome_of(job: JobRow, status: RunStatus, events: Sequence[Event], failed_launches: int) -> End:
    """The next state of a job whose supervisor, agents and ranks are all gone.

    | last status        | requested end          | next                                                       |
    |--------------------|------------------------|------------------------------------------------------------|
    | succeeded, failed  | any                    | the same                                                   |
    | stopped            | none, or by a user     | stopped                                                    |
    | stopped            | for another job        | waits again, no restart counted                            |
    | stopped            | time limit reached     | failed, `time_limit`                                       |
    | not launched yet   | none                   | waits again                                                |
    | waits, with cause  | none                   | waits again: its supervisor has left its nodes for others  |
    | created            | none                   | waits again; failed after the fifth failed launch in a row |
    | running            | by a user, time limit  | stopped, or failed with `time_limit`                       |
    | running            | none                   | waits again if it may; else failed                         |

    `failed_launches` counts supervisors in a row that this dispatcher launched and saw end before they began. A launch
    that is cut short by the end of its dispatcher is not the job's fault, and does not count.
    """
    state = parse_state(status.state)
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        return status.end
    if state is JobState.STOPPED or job.asked_to_end is not None:
        return _ended_on_request(job, status)
    if state is JobState.QUEUED and status.cause is not None:
        return status.end
    if state is JobState.QUEUED:  # its dispatcher was killed before it launched it
        return End(JobState.QUEUED, Cause.CONTROLLER_ERROR, "its dispatcher was killed before the launch")
    return _never_began(failed_launches) if state is JobState.CREATED else _interrupted(job, events)


def _interrupted(job: JobRow, events: Sequence[Event]) -> End:
    message = "its supervisor was killed, and all that it had started with it"
    if may_restart(events, RestartLimit(job.spec.max_restarts, job.spec.restart_window_s), NEXT_TURN):
        return End(JobState.QUEUED, Cause.AGENT_LOST, message)
    return End(JobState.FAILED, Cause.AGENT_LOST, message, exit_code=ExitCode.ENVIRONMENT)


def _ended_on_request(job: JobRow, status: RunStatus) -> End:
    if job.asked_to_end == "preempt":
        return End(JobState.PREEMPTED, Cause.PREEMPTED, status.message)
    if job.asked_to_end == "time_limit":
        message = f"its time limit of {job.spec.time_limit_s or 0.0:.0f} s was over"
        return End(JobState.FAILED, Cause.TIME_LIMIT, message, exit_code=ExitCode.USER_ERROR)
    return replace(status.end, state=JobState.STOPPED, exit_code=0)


def _never_began(failed_launches: int) -> End:
    if failed_launches == 0:
        return End(JobState.QUEUED, Cause.CONTROLLER_ERROR, "its dispatcher was killed during the launch")
    message = "its supervisor ended before it had started anything"
    if failed_launches < _MAX_LAUNCHES:
        return End(JobState.QUEUED, Cause.LAUNCH_FAILED, message)
    return launch_failed(message)


def launch_failed(message: str, *, hint: str | None = None) -> End:
    """The end of a job that cannot be started."""
    return End(JobState.FAILED, Cause.LAUNCH_FAILED, message, hint=hint, exit_code=ExitCode.ENVIRONMENT)
