"""States of a job, as a table.

CREATED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | STOPPED
              ^           |
              +-- RECOVERING (a failure that a restart can help)
"""

from __future__ import annotations

import enum

__all__ = ["TRANSITIONS", "JobState", "parse_state"]


class JobState(enum.StrEnum):
    """Where a job stands."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"
    """Its supervisor is gone without a last word; seen from outside, never written."""
    UNKNOWN = "UNKNOWN"
    """A state that this version does not know; its text is kept."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens unless somebody resumes the job."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST)


TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.STARTING}),
    JobState.STARTING: frozenset(
        {JobState.RUNNING, JobState.RECOVERING, JobState.FAILED, JobState.STOPPED, JobState.SUCCEEDED}
    ),
    JobState.RUNNING: frozenset({JobState.RECOVERING, JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}),
    JobState.RECOVERING: frozenset({JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}),
    JobState.SUCCEEDED: frozenset({JobState.STARTING}),
    JobState.FAILED: frozenset({JobState.STARTING}),
    JobState.STOPPED: frozenset({JobState.STARTING}),
    JobState.LOST: frozenset({JobState.STARTING}),
    JobState.UNKNOWN: frozenset(),
}
"""Which state may follow which; a final state is left by `resume` alone."""


def parse_state(text: str) -> JobState:
    """The state of that name; UNKNOWN for any other text."""
    return JobState.__members__.get(text, JobState.UNKNOWN)
