"""The status of a run; `jobs.state` defines the states."""

from __future__ import annotations

from trainworks.config.spec import Spec
from trainworks.record.exit_code import End

END_STATES = frozenset({"SUCCEEDED", "FAILED", "STOPPED", "LOST"})
"""The final states of `jobs.state`, which nothing but a new launch leaves."""


class RunStatus(Spec):
    """The content of status.json: written as CREATED by the submitter, later by the supervisor.

    On this machine the node agent writes LOST if the supervisor is killed; the queue of a submitted run then decides
    what follows. If the agent is killed, too, or the machine goes down, the last state stays until a command reads the
    run. A program that reads the file itself can ask the kernel: `flock --nonblock runs/NAME/.lock true` succeeds once
    nothing runs.
    """

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

    @classmethod
    def of(cls, end: End, *, updated_at: float) -> RunStatus:
        """The status that says this end."""
        return cls(
            state=end.state,
            cause=end.cause,
            message=end.message,
            hint=end.hint,
            exit_code=end.exit_code,
            updated_at=updated_at,
        )

    @property
    def end(self) -> End:
        """The state and how the run came to it."""
        return End(
            self.state, self.cause, self.message, hint=self.hint, exit_code=self.exit_code, at=self.updated_at or None
        )

    def without_supervisor(self) -> RunStatus:
        """The status of this run once its supervisor is gone. The time of its last sign of life stays."""
        message = "its supervisor did not start" if self.supervisor_pid is None else "its supervisor was killed"
        return self.model_copy(update={"state": "LOST", "cause": "agent_lost", "message": message})
