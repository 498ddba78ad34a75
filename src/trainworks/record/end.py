"""How a run came to its state. Its status file is in a module of its own, which imports pydantic."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from trainworks.record.events.job import FailureReason, StateEvent


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

    def after(self, last: End) -> End:
        """This end; with the hint and the exit code of the last one if both have the same cause."""
        if self.cause != last.cause:
            return self
        return replace(
            self, hint=self.hint or last.hint, exit_code=last.exit_code if self.exit_code is None else self.exit_code
        )
