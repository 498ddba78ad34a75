"""Hold and release waiting jobs, on every backend."""

from __future__ import annotations

from trainworks.backends.backend import Backend
from trainworks.errors import UsageError
from trainworks.jobs.job_row import JobRow


def hold(backend: Backend, row: JobRow, handle: str) -> None:
    """Keep a waiting job from starting.

    Raises:
        UsageError: the job does not wait.
    """
    _check_waits(row, "hold")
    backend.hold(handle)


def release(backend: Backend, row: JobRow, handle: str) -> None:
    """Let a held job start.

    Raises:
        UsageError: the job does not wait.
    """
    _check_waits(row, "release")
    backend.release(handle)


def _check_waits(row: JobRow, verb: str) -> None:
    if not row.state.waits:
        hint = f"trainworks retry {row.run_id}" if row.state.is_final else f"trainworks stop {row.run_id}"
        raise UsageError(f"cannot {verb} job {row.id} ({row.run_id}): it is {row.state}", hint=hint)
