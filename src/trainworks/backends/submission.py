"""What every submission has in common: one at a time per run, no trace of one that failed, and no job that waits for
a job that cannot succeed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import take_lock, write_atomic
from trainworks.jobs.dependency import Dependency, parse_dependency
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

_held: dict[Path, int] = {}
"""Locks of this process, by file: a backend that needs the lock gets the one that its caller holds."""


def submitted_runs(root: Path) -> list[RunDir]:
    """Submitted runs below a folder, by name."""
    return [RunDir(lock.parent) for lock in sorted(root.glob("*/.submit.lock"))]


@contextmanager
def submit_lock(run_dir: RunDir) -> Iterator[int]:
    """The lock of a run that is being submitted, as an open file; a process may take it twice.

    A program that inherits the file holds the lock until it ends, even if this process is killed before.

    Raises:
        EnvironmentProblem: another process submits the same run now.
    """
    path = run_dir.submit_lock_file.absolute()
    if path in _held:
        yield _held[path]
        return
    lock = take_lock(path)
    if lock is None:
        raise EnvironmentProblem(f"run {run_dir.run_id} is being submitted now", hint="wait a moment: trainworks ps")
    _held[path] = lock
    try:
        yield lock
    finally:
        del _held[path]
        os.close(lock)


@contextmanager
def status_restored(run_dir: RunDir) -> Iterator[None]:
    """Put status.json back as it was if the submission inside the block fails."""
    before = run_dir.status_file.read_bytes() if run_dir.status_file.exists() else None
    try:
        yield
    except (TrainworksError, OSError):
        run_dir.status_file.unlink(missing_ok=True)
        if before is not None:
            with suppress(TrainworksError, OSError):
                write_atomic(run_dir.status_file, before)
        raise


def check_dependencies(store: JobStore, spec: JobSpec, backend: str, *, uid: int | None = None) -> list[JobRow]:
    """The jobs that a job waits for; of several of one name that of the user comes first, this one when None.

    Raises:
        UsageError: one of them does not exist, is a job of another backend, or has ended without success.
    """
    uid = os.getuid() if uid is None else uid
    return [_dependency(store, parse_dependency(text), backend, uid) for text in spec.depends_on]


def _dependency(store: JobStore, dependency: Dependency, backend: str, uid: int) -> JobRow:
    wanted = dependency.job
    job = store.find(wanted, uid=uid)
    if job is None:
        raise UsageError(
            f"`job.depends_on` names job `{wanted}`, which does not exist", hint="list the jobs: trainworks ps --all"
        )
    if job.engine != backend:
        raise UsageError(
            f"`job.depends_on` names job `{wanted}`, which is in the queue of {job.engine}, not of {backend}",
            hint="name a job of the same queue",
        )
    if dependency.needs_success and job.state.is_final and job.state is not JobState.SUCCEEDED:
        raise UsageError(
            f"`job.depends_on` names job `{wanted}`, which is {job.state}",
            hint=f"retry that one first: trainworks retry {wanted}",
        )
    return job


def check_waits(row: JobRow, verb: str) -> None:
    """Refuse to hold or release a job that does not wait.

    Raises:
        UsageError: naming the command that changes it.
    """
    if not row.state.waits:
        hint = f"trainworks retry {row.run_id}" if row.state.is_final else f"trainworks stop {row.run_id}"
        raise UsageError(f"cannot {verb} job {row.id} ({row.run_id}): it is {row.state}", hint=hint)
