"""Where a run stands; the states themselves are `job.state`'s."""

from __future__ import annotations

from trainworks.config.quantities import Spec

__all__ = ["RunStatus"]


class RunStatus(Spec):
    """The content of status.json: CREATED by whoever submits, everything else by the supervisor."""

    state: str
    cause: str | None = None
    """Why it ended, or why it is being restarted."""
    message: str | None = None
    hint: str | None = None
    exit_code: int | None = None
    supervisor_pid: int | None = None
    supervisor_started_at: float | None = None
    """When that process started, seconds since boot: a process id alone may have been reused."""
    supervisor_host: str | None = None
    """Where it runs; elsewhere nobody can look for the process."""
    idle_since: float | None = None
    """Of a job that runs: since when it has used nothing of what it holds, once that is called idle."""
    updated_at: float = 0.0
