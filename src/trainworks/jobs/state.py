"""States of a job and causes of their changes, as tables.

CREATED -> QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | STOPPED
             ^  ^       ^           |
             |  |       +-- RECOVERING (a failure that a restart can help)
             |  +---------- PREEMPTED  (somebody else has its place; it waits again)
             +------------- retried, or released by its scheduler

Whether somebody can see the job is not a state: one that cannot be reached keeps the state it had.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["CAUSES", "TRANSITIONS", "Cause", "JobState", "parse_cause", "parse_state"]


class JobState(enum.StrEnum):
    """Where a job stands."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    """It waits; the reason is kept beside it."""
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    PREEMPTED = "PREEMPTED"
    """It lost its place, and waits for another."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    """Its supervisor is gone without a last word; seen from outside, never written."""
    UNKNOWN = "UNKNOWN"
    """What a scheduler says of it is a word that this version does not know; the word is kept."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens unless somebody resumes the job."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST)

    @property
    def waits(self) -> bool:
        """Whether it holds nothing, and wants to start."""
        return self in (JobState.QUEUED, JobState.PREEMPTED)

    @property
    def holds_resources(self) -> bool:
        """Whether nodes are taken for it."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)


_ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})
_ANY_TIME = _ENDS | {JobState.UNKNOWN}

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.QUEUED, JobState.STARTING}),
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.RUNNING}) | _ANY_TIME,
    JobState.STARTING: frozenset({JobState.QUEUED, JobState.RUNNING, JobState.RECOVERING, JobState.PREEMPTED})
    | _ANY_TIME,
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.RECOVERING, JobState.PREEMPTED}) | _ANY_TIME,
    JobState.RECOVERING: frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTED})
    | _ANY_TIME,
    JobState.PREEMPTED: frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING}) | _ANY_TIME,
    JobState.SUCCEEDED: frozenset({JobState.QUEUED, JobState.STARTING}),
    JobState.FAILED: frozenset({JobState.QUEUED, JobState.STARTING}),
    JobState.STOPPED: frozenset({JobState.QUEUED, JobState.STARTING}),
    JobState.LOST: frozenset({JobState.QUEUED, JobState.STARTING}),
    JobState.UNKNOWN: frozenset(JobState) - {JobState.CREATED, JobState.LOST},
}
"""Which state may follow which; a final state is left by `resume` and `retry` alone."""


def parse_state(text: str) -> JobState:
    """The state of that name; UNKNOWN for any other text."""
    return JobState.__members__.get(text, JobState.UNKNOWN)


def attempt_state(state: JobState, cause: Cause | None) -> JobState:
    """State of the latest attempt of a job: an attempt whose job waits again was preempted, or has failed."""
    if not state.waits:
        return state
    is_free = cause is not None and not CAUSES[cause].counts_as_restart
    return JobState.PREEMPTED if is_free or state is JobState.PREEMPTED else JobState.FAILED


class Cause(enum.StrEnum):
    """Why a job fails, starts again or loses its place."""

    USER_ERROR = "user_error"
    OOM = "oom"
    DIVERGED = "diverged"
    HANG = "hang"
    NCCL_TIMEOUT = "nccl_timeout"
    GPU_FAULT = "gpu_fault"
    STORAGE_FAULT = "storage_fault"
    NODE_LOST = "node_lost"
    AGENT_LOST = "agent_lost"
    PEER_LOST = "peer_lost"
    KILLED = "killed"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    LAUNCH_FAILED = "launch_failed"
    NO_CAPACITY = "no_capacity"
    DEPENDENCY = "dependency"
    IDLE = "idle"
    DISK_FULL = "disk_full"
    ENVIRONMENT = "environment"
    CONTROLLER_ERROR = "controller_error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CauseFacts:
    """What follows from a cause."""

    words: str
    another_start_helps: bool
    """Whether the same job may succeed if it is started again, on the same nodes or on others."""
    counts_as_restart: bool = True
    """Whether a start after it takes one of `recover.max_restarts`; nobody fails by being preempted."""


CAUSES: dict[Cause, CauseFacts] = {
    Cause.USER_ERROR: CauseFacts("the program failed", False),
    Cause.OOM: CauseFacts("out of memory", False),
    Cause.DIVERGED: CauseFacts("the loss went beyond repair", False),
    Cause.HANG: CauseFacts("a rank stood still", True),
    Cause.NCCL_TIMEOUT: CauseFacts("a collective did not end", True),
    Cause.GPU_FAULT: CauseFacts("an accelerator failed", True),
    Cause.STORAGE_FAULT: CauseFacts("the storage failed", True),
    Cause.NODE_LOST: CauseFacts("a node was lost", True),
    Cause.AGENT_LOST: CauseFacts("a node's agent was lost", True),
    Cause.PEER_LOST: CauseFacts("another rank was lost", True),
    Cause.KILLED: CauseFacts("somebody killed it", True),
    Cause.PREEMPTED: CauseFacts("another job took its place", True, counts_as_restart=False),
    Cause.TIME_LIMIT: CauseFacts("its time was over", True),
    Cause.LAUNCH_FAILED: CauseFacts("it could not be started", True),
    Cause.NO_CAPACITY: CauseFacts("there was no room for it", True, counts_as_restart=False),
    Cause.DEPENDENCY: CauseFacts("a job that it depends on did not succeed", False),
    Cause.IDLE: CauseFacts("it did not use what it held", False),
    Cause.DISK_FULL: CauseFacts("a disk was full", False),
    Cause.ENVIRONMENT: CauseFacts("the machine was in the way", False),
    Cause.CONTROLLER_ERROR: CauseFacts("Trainworks failed", True),
    Cause.UNKNOWN: CauseFacts("nobody knows why", False),
}


def parse_cause(text: str | None) -> Cause | None:
    """The cause of that name; UNKNOWN for any other text, None for none."""
    if text is None:
        return None
    return Cause._value2member_map_.get(text, Cause.UNKNOWN)  # type: ignore[return-value]
