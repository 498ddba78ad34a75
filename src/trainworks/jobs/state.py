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
from typing import Self


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
    """State of the latest attempt of a job: one whose job waits again was preempted or stopped, or has failed."""
    if not state.waits:
        return state
    if state is JobState.PREEMPTED or cause in (Cause.PREEMPTED, Cause.NODE_RECLAIMED):
        return JobState.PREEMPTED
    return JobState.STOPPED if cause is Cause.REQUEUED else JobState.FAILED


class Cause(enum.StrEnum):
    """Why a job failed, restarted or lost its nodes: its name in the record, its text, and its consequences."""

    words: str
    another_start_helps: bool
    """True if the unchanged job may succeed when started again, on the same or on other nodes."""
    counts_as_restart: bool
    """True if a restart counts against `recover.max_restarts`; preemptions do not count."""

    def __new__(cls, name: str, words: str, another_start_helps: bool, counts_as_restart: bool = True) -> Self:
        """The member of that name in the record."""
        cause = str.__new__(cls, name)
        cause._value_, cause.words = name, words
        cause.another_start_helps, cause.counts_as_restart = another_start_helps, counts_as_restart
        return cause

    USER_ERROR = "user_error", "the program failed", False
    OOM = "oom", "out of memory", False
    DIVERGED = "diverged", "the loss diverged", False
    HANG = "hang", "a rank hung", True
    NCCL_TIMEOUT = "nccl_timeout", "a collective timed out", True
    GPU_FAULT = "gpu_fault", "an accelerator failed", True
    STORAGE_FAULT = "storage_fault", "the storage failed", True
    NODE_LOST = "node_lost", "a node was lost", True
    NODE_UNHEALTHY = "node_unhealthy", "a node failed its health check", False, False
    NODE_RECLAIMED = "node_reclaimed", "the cloud takes a node back", True, False
    SCHEDULER_LOST = "scheduler_lost", "the scheduler crashed and lost the job", True, False
    AGENT_LOST = "agent_lost", "a node's agent was lost", True
    STEP_LOST = "step_lost", "a step of the job was lost", True
    PEER_LOST = "peer_lost", "another rank was lost", True
    KILLED = "killed", "killed by a signal", True
    PREEMPTED = "preempted", "preempted by another job", True, False
    REQUEUED = "requeued", "put back into the queue by a user or an operator", True, False
    TIME_LIMIT = "time_limit", "time limit reached", True
    LAUNCH_FAILED = "launch_failed", "the job could not be started", True
    NO_CAPACITY = "no_capacity", "not enough free nodes", True, False
    DEPENDENCY = "dependency", "a job it depends on did not succeed", False
    IDLE = "idle", "used no accelerator or CPU", False
    DISK_FULL = "disk_full", "a disk was full", False
    ENVIRONMENT = "environment", "environment error", False
    CONTROLLER_ERROR = "controller_error", "internal error of Trainworks", True
    UNKNOWN = "unknown", "unknown cause", False


def parse_cause(text: str | None) -> Cause | None:
    """The cause of that name; UNKNOWN for any other text, None for none."""
    if text is None:
        return None
    return Cause._value2member_map_.get(text, Cause.UNKNOWN)  # type: ignore[return-value]
