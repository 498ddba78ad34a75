"""Next state of a local job whose supervisor has ended: a table over its last status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.record.events import Event
from trainworks.record.exit_code import ExitCode
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, may_restart

_MAX_LAUNCHES = 5
"""Launches in a row of a supervisor that dies before it has started anything."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The next state of a job."""

    state: JobState
    cause: Cause | str | None = None
    message: str | None = None
    exit_code: int | None = None

    def status(self, now: float) -> RunStatus:
        """The status with which the run directory records it."""
        cause = str(self.cause) if self.cause else None
        return RunStatus(state=self.state, cause=cause, message=self.message, exit_code=self.exit_code, updated_at=now)


def outcome_of(job: JobRow, status: RunStatus, events: Sequence[Event], failed_launches: int) -> Outcome:
    """The next state of a job whose supervisor, agents and ranks are all gone.

    | last status        | requested end          | next                                                       |
    |--------------------|------------------------|------------------------------------------------------------|
    | succeeded, failed  | any                    | the same                                                   |
    | stopped            | none, or by a user     | stopped                                                    |
    | stopped            | for another job        | waits again, no restart counted                            |
    | stopped            | time limit reached     | failed, `time_limit`                                       |
    | not launched yet   | none                   | waits again                                                |
    | created            | none                   | waits again; failed after the fifth failed launch in a row |
    | running            | by a user, time limit  | stopped, or failed with `time_limit`                       |
    | running            | none                   | waits again if it may; else failed                         |

    Args:
        job: the job.
        status: its last status.
        events: of its run.
        failed_launches: supervisors in a row that this dispatcher launched and saw end before they began. A launch that
            is cut short by the end of its dispatcher is not the job's fault, and does not count.
    """
    state = parse_state(status.state)
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        return Outcome(state, status.cause, status.message, status.exit_code)
    if state is JobState.STOPPED or job.asked_to_end is not None:
        return _ended_on_request(job, status)
    if state is JobState.QUEUED:  # its dispatcher was killed before it launched it
        return Outcome(JobState.QUEUED, Cause.CONTROLLER_ERROR, "its dispatcher was killed before the launch")
    return _never_began(failed_launches) if state is JobState.CREATED else _in_the_middle(job, events)


def _in_the_middle(job: JobRow, events: Sequence[Event]) -> Outcome:
    message = "its supervisor was killed, and all that it had started with it"
    if may_restart(events, RestartLimit(job.spec.max_restarts, job.spec.restart_window_s), NEXT_TURN):
        return Outcome(JobState.QUEUED, Cause.AGENT_LOST, message)
    return Outcome(JobState.FAILED, Cause.AGENT_LOST, message, int(ExitCode.ENVIRONMENT))


def _ended_on_request(job: JobRow, status: RunStatus) -> Outcome:
    if job.asked_to_end == "preempt":
        return Outcome(JobState.PREEMPTED, Cause.PREEMPTED, status.message)
    if job.asked_to_end == "time_limit":
        return Outcome(JobState.FAILED, Cause.TIME_LIMIT, _over(job), int(ExitCode.USER_ERROR))
    return Outcome(JobState.STOPPED, status.cause, status.message, 0)


def _over(job: JobRow) -> str:
    return f"its time limit of {job.spec.time_limit_s or 0.0:.0f} s was over"


def _never_began(failed_launches: int) -> Outcome:
    if failed_launches == 0:
        return Outcome(JobState.QUEUED, Cause.CONTROLLER_ERROR, "its dispatcher was killed during the launch")
    message = "its supervisor ended before it had started anything"
    if failed_launches < _MAX_LAUNCHES:
        return Outcome(JobState.QUEUED, Cause.LAUNCH_FAILED, message)
    return launch_failed(message)


def launch_failed(message: str) -> Outcome:
    """The end of a job that cannot be started."""
    return Outcome(JobState.FAILED, Cause.LAUNCH_FAILED, message, int(ExitCode.ENVIRONMENT))
