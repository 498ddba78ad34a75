"""Where a run stands; the states themselves are `job.state`'s."""

from __future__ import annotations

from trainworks.spec.quantities import Spec

__all__ = ["RunStatus"]


class RunStatus(Spec):
    """The content of status.json, written by the supervisor alone."""

    state: str
    cause: str | None = None
    """Why it ended, or why it is being restarted."""
    message: str | None = None
    hint: str | None = None
    exit_code: int | None = None
    supervisor_pid: int | None = None
    supervisor_started_at: float | None = None
    """Creation time of that process: a process id alone may have been reused."""
    updated_at: float = 0.0
