"""The status of a run; `jobs.state` defines the states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.config.spec import Spec


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class End(Spec):
    """A state of a run and how it came to it: in status.json, in `state` events, and of every attempt in the store."""

    state: str
    cause: str | None = None
    """Cause of the end or restart."""
    message: str | None = None
    hint: str | None = None
    exit_code: int | None = None

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> End:
        """The end that a `state` event has; one of an older version has no hint and no exit code."""
        code = event.get("exit_code")
        return cls(
            state=str(event.get("state")),
            cause=_text(event.get("cause")),
            message=_text(event.get("message")),
            hint=_text(event.get("hint")),
            exit_code=code if isinstance(code, int) else None,
        )

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of a job or an attempt in the store, beside its state."""
        return {"cause": self.cause, "message": self.message, "exit_code": self.exit_code}


class RunStatus(End):
    """The content of status.json: written as CREATED by the submitter, later by the supervisor."""

    supervisor_pid: int | None = None
    supervisor_started_at: float | None = None
    """Start of that process in seconds since boot, because process ids are reused."""
    supervisor_host: str | None = None
    """Host of the supervisor; only there its process can be found."""
    idle_since: float | None = None
    """Start of the idle time of a running job that counts as idle."""
    updated_at: float = 0.0
