"""The status of a run; `jobs.state` defines the states."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from trainworks.config.spec import Spec
from trainworks.record.events.job import FailureReason, StateEvent

END_STATES = frozenset({"SUCCEEDED", "FAILED", "STOPPED", "LOST"})
"""The final states of `jobs.state`, which nothing but a new launch leaves."""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class End:
    """A state and how a run came to it: of its status, its `state` events, its job in the store and every attempt."""

    state: str
    cause: str | None = None
    """Cause of the end or restart."""
    message: str | None = None
    _: KW_ONLY
    hint: str | None = None
    exit_code: int | None = None
    at: float | None = None
    """Seconds since the epoch at which the run ended, or gave up its nodes; None if it has them, or if unknown."""

    @classmethod
    def of_event(cls, event: StateEvent) -> End:
        """The end that a `state` event has; one of an older version has no hint and no exit code."""
        code = event.get("exit_code")
        return cls(
            str(event.get("state")),
            _text(event.get("cause")),
            _text(event.get("message")),
            hint=_text(event.get("hint")),
            exit_code=code if isinstance(code, int) else None,
            at=event.get("ended_at") or event.get("t"),
        )

    @classmethod
    def of_failure(cls, state: str, failure: FailureReason, *, exit_code: int | None = None) -> End:
        """A state that follows a failure of the run."""
        return cls(state, failure["cause"], failure["message"], hint=failure.get("hint"), exit_code=exit_code)

    def because(self, why: str | None) -> End:
        """This end, with what it came from before its message, unless that says it already."""
        is_said = why is None or (self.message or "").startswith(why)
        return self if is_said else replace(self, message="; ".join(filter(None, (why, self.message))))

    def after(self, last: End) -> End:
        """This end; with the hint and the exit code of the last one if both have the same cause."""
        if self.cause != last.cause:
            return self
        return replace(
            self, hint=self.hint or last.hint, exit_code=last.exit_code if self.exit_code is None else self.exit_code
        )


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
