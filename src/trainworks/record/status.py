"""The status of a run; `jobs.state` defines the states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.config.spec import Spec

END_STATES = frozenset({"SUCCEEDED", "FAILED", "STOPPED", "LOST"})
"""The final states of `jobs.state`, which nothing but a new launch leaves."""


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
    """The content of status.json: written as CREATED by the submitter, later by the supervisor.

    On this machine the node agent writes LOST if the supervisor is killed; the queue of a submitted run then decides
    what follows. If the agent is killed, too, or the machine goes down, the last state stays until a command reads the
    run. A program that reads the file itself can ask the kernel: `flock --nonblock runs/NAME/.lock true` succeeds once
    nothing runs.
    """

    supervisor_pid: int | None = None
    supervisor_started_at: float | None = None
    """Start of that process in seconds since boot, because process ids are reused."""
    supervisor_host: str | None = None
    """Host of the supervisor; only there its process can be found."""
    idle_since: float | None = None
    """Start of the idle time of a running job that counts as idle."""
    updated_at: float = 0.0

    def without_supervisor(self) -> RunStatus:
        """The status of this run once its supervisor is gone. The time of its last sign of life stays."""
        message = "its supervisor did not start" if self.supervisor_pid is None else "its supervisor was killed"
        return self.model_copy(update={"state": "LOST", "cause": "agent_lost", "message": message})
