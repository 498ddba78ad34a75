"""States of a job and causes of their changes, as tables.

CREATED -> QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | STOPPED
             ^  ^       ^           |
             |  |       +-- RECOVERING (a failure that a restart can help)
             |  +---------- PREEMPTED  (another job took its nodes; it waits again)
             +------------- retried, or requeued by its backend

Reachability is not a state: a job whose backend does not answer keeps its last state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class JobState(enum.StrEnum):
    """State of a job."""

    CREATED = "CREATED"
    QUEUED = "QUEUED"
    """The job waits; `reason` says why."""
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    PREEMPTED = "PREEMPTED"
    """The job lost its nodes to another job and waits again."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    """The supervisor died without writing a final state; its agent or the first reader of the run writes it."""
    UNKNOWN = "UNKNOWN"
    """The backend reports a state that this version does not know; `raw` has its text."""

    @property
    def is_final(self) -> bool:
        """True if the job stays in this state until it is resumed or retried."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST)

    @property
    def waits(self) -> bool:
        """True if the job holds no nodes and waits to start."""
        return self in (JobState.QUEUED, JobState.PREEMPTED)

    @property
    def holds_resources(self) -> bool:
        """True if nodes are allocated to the job."""
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
"""States that may follow each state; only `resume` and `retry` leave a final state."""


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
    """Why a job failed, restarted or lost its nodes."""

    USER_ERROR = "user_error"
    OOM = "oom"
    DIVERGED = "diverged"
    HANG = "hang"
    NCCL_TIMEOUT = "nccl_timeout"
    GPU_FAULT = "gpu_fault"
    STORAGE_FAULT = "storage_fault"
    NODE_LOST = "node_lost"
    NODE_UNHEALTHY = "node_unhealthy"
    NODE_RECLAIMED = "node_reclaimed"
    SCHEDULER_LOST = "scheduler_lost"
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
    """Text and consequences of a cause."""

    words: str
    another_start_helps: bool
    """True if the unchanged job may succeed when started again, on the same or on other nodes."""
    counts_as_restart: bool = True
    """True if a restart counts against `recover.max_restarts`; preemptions do not count."""


CAUSES: dict[Cause, CauseFacts] = {
    Cause.USER_ERROR: CauseFacts("the program failed", False),
    Cause.OOM: CauseFacts("out of memory", False),
    Cause.DIVERGED: CauseFacts("the loss diverged", False),
    Cause.HANG: CauseFacts("a rank hung", True),
    Cause.NCCL_TIMEOUT: CauseFacts("a collective timed out", True),
    Cause.GPU_FAULT: CauseFacts("an accelerator failed", True),
    Cause.STORAGE_FAULT: CauseFacts("the storage failed", True),
    Cause.NODE_LOST: CauseFacts("a node was lost", True),
    Cause.NODE_UNHEALTHY: CauseFacts("a node failed its health check", False, counts_as_restart=False),
    Cause.NODE_RECLAIMED: CauseFacts("the cloud takes a node back", True, counts_as_restart=False),
    Cause.SCHEDULER_LOST: CauseFacts("the scheduler crashed and lost the job", True, counts_as_restart=False),
    Cause.AGENT_LOST: CauseFacts("a node's agent was lost", True),
    Cause.PEER_LOST: CauseFacts("another rank was lost", True),
    Cause.KILLED: CauseFacts("killed by a signal", True),
    Cause.PREEMPTED: CauseFacts("preempted by another job", True, counts_as_restart=False),
    Cause.TIME_LIMIT: CauseFacts("time limit reached", True),
    Cause.LAUNCH_FAILED: CauseFacts("the job could not be started", True),
    Cause.NO_CAPACITY: CauseFacts("not enough free nodes", True, counts_as_restart=False),
    Cause.DEPENDENCY: CauseFacts("a job it depends on did not succeed", False),
    Cause.IDLE: CauseFacts("used no accelerator or CPU", False),
    Cause.DISK_FULL: CauseFacts("a disk was full", False),
    Cause.ENVIRONMENT: CauseFacts("environment error", False),
    Cause.CONTROLLER_ERROR: CauseFacts("internal error of Trainworks", True),
    Cause.UNKNOWN: CauseFacts("unknown cause", False),
}


def parse_cause(text: str | None) -> Cause | None:
    """The cause of that name; UNKNOWN for any other text, None for none."""
    if text is None:
        return None
    return Cause._value2member_map_.get(text, Cause.UNKNOWN)  # type: ignore[return-value]
