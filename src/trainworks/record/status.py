"""The status of a run; `jobs.state` defines the states."""

from __future__ import annotations

from trainworks.config.spec import Spec


class RunStatus(Spec):
    """The content of status.json: written as CREATED by the submitter, later by the supervisor."""

    state: str
    cause: str | None = None
    """Cause of the end or restart."""
    message: str | None = None
    hint: str | None = None
    exit_code: int | None = None
    supervisor_pid: int | None = None
    supervisor_started_at: float | None = None
    """Start of that process in seconds since boot, because process ids are reused."""
    supervisor_host: str | None = None
    """Host of the supervisor; only there its process can be found."""
    idle_since: float | None = None
    """Start of the idle time of a running job that counts as idle."""
    updated_at: float = 0.0
