"""Exit codes of ranks and node agents, which tell the parent process what to do; and how a run came to its end."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass, replace

from trainworks.record.events.job import FailureReason, StateEvent
from trainworks.system import LinuxSignal


class ExitCode(enum.IntEnum):
    """Exit codes of a rank, read by the node agent, and of an agent, read by the supervisor."""

    OK = 0
    USER_ERROR = 1
    """The model, the data or the code failed."""
    ENVIRONMENT = 3
    """The machine cannot run the job; a person has to act."""
    HARDWARE_FAULT = 74
    """An accelerator or the storage failed; starting again can help."""
    HANG = 76
    """A hung rank was ended, with the ranks that waited for it; starting again can help."""
    PEER_LOST = 75
    """Another rank was lost; starting again can help."""
    NODE_UNHEALTHY = 77
    """The node failed its check before its ranks started again; another node can help."""
    SUPERSEDED = 78
    """A later start has taken the run over; nothing was written about this end."""


LINK_LOST = -int(LinuxSignal.SIGHUP)
"""Exit code of a process that stands for an agent, after it has lost the connection to the agent's node."""

NODE_RETURNS = -int(LinuxSignal.SIGPWR)
"""The same where the cluster replaces that node, under its address, while the other nodes run on."""


def as_exit_code(code: int) -> int:
    """Exit code as a shell reports it: 128 + signal for a process that a signal ended (a negative code)."""
    return 128 - code if code < 0 else code


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
