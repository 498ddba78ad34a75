"""Hold and release: for a job that waits, on every backend."""

from __future__ import annotations

from trainworks.backends.backend import Engine
from trainworks.errors import UsageError
from trainworks.jobs.store import JobRow

__all__ = ["hold", "release"]


def hold(engine: Engine, row: JobRow, handle: str) -> None:
    """Keep a job that waits from starting.

    Raises:
        UsageError: it does not wait.
    """
    _check_waits(row, "hold")
    engine.hold(handle)


def release(engine: Engine, row: JobRow, handle: str) -> None:
    """Let a held job start.

    Raises:
        UsageError: it does not wait.
    """
    _check_waits(row, "release")
    engine.release(handle)


def _check_waits(row: JobRow, verb: str) -> None:
    if not row.state.waits:
        hint = f"trainworks retry {row.run_id}" if row.state.is_final else f"trainworks stop {row.run_id}"
        raise UsageError(f"cannot {verb} job {row.id} ({row.run_id}): it is {row.state}", hint=hint)
