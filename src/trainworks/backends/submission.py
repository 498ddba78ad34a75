"""What every submission has in common: one at a time per run, no trace of one that failed, and jobs to wait for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from trainworks.errors import EnvironmentProblem, TrainworksError, UnreachableError, UsageError
from trainworks.files import take_lock, write_atomic
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import Dependency, JobSpec, parse_dependency
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.run_dir import RunDir
from trainworks.system import user_id

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


def find_dependencies(
    store: JobStore, spec: JobSpec, backend: str, *, uid: int | None = None
) -> list[tuple[Dependency, JobRow]]:
    """Dependencies of a job, each with its job; of several of one name that of the user comes first.

    `uid` is the user of this process when None.

    Raises:
        UsageError: a job to wait for does not exist, or is in the queue of another backend.
    """
    uid = user_id() if uid is None else uid
    return [(one, _existing(store, one.job, backend, uid)) for one in map(parse_dependency, spec.depends_on)]


def check_dependencies(store: JobStore, spec: JobSpec, backend: str, *, uid: int | None = None) -> list[JobRow]:
    """The jobs that a job waits for, none of which has failed; see `find_dependencies`.

    Raises:
        UsageError: also if one of them has ended without the success that the job needs.
    """
    found = find_dependencies(store, spec, backend, uid=uid)
    for one, job in found:
        if unmet_dependencies([(one, job)]):
            message = f"`job.depends_on` names job `{one.job}`, which is {job.state}"
            raise UsageError(message, hint=f"retry that one first: trainworks retry {one.job}")
    return [job for _, job in found]


def unmet_dependencies(dependencies: Iterable[tuple[Dependency, JobRow | None]]) -> list[str]:
    """Dependencies that can no longer be met, like `first-1 is FAILED`; a job that is None was deleted."""
    return [
        f"{one.job} is {job.state if job is not None else 'gone'}"
        for one, job in dependencies
        if one.needs_success and (job is None or (job.state.is_final and job.state is not JobState.SUCCEEDED))
    ]


def end_of_dependent(unmet: Iterable[str]) -> End:
    """The end of a job that failed because of its `unmet_dependencies`."""
    message = f"{Cause.DEPENDENCY.words}: {', '.join(unmet)}"
    return End(JobState.FAILED, Cause.DEPENDENCY, message, exit_code=ExitCode.USER_ERROR)


def resolve_dependencies(dependencies: Iterable[tuple[Dependency, JobRow]]) -> tuple[str, ...]:
    """Dependencies on jobs that have not ended, by their names on the backend.

    Raises:
        UnreachableError: the backend has not confirmed one of these jobs yet.
    """
    waits = [(one, job) for one, job in dependencies if not job.state.is_final]
    if nameless := [job for _, job in waits if job.handle is None]:
        raise UnreachableError(
            f"{nameless[0].engine} has not confirmed job `{nameless[0].run_id}` yet, which this job depends on",
            hint="try again when `trainworks ps` shows that it has",
        )
    return tuple(str(replace(one, job=job.handle)) for one, job in waits if job.handle)


def _existing(store: JobStore, wanted: str, backend: str, uid: int) -> JobRow:
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
    return job


def check_waits(row: JobRow, verb: str) -> None:
    """Refuse to hold or release a job that does not wait.

    Raises:
        UsageError: naming the command that changes it.
    """
    if not row.state.waits:
        hint = f"trainworks retry {row.run_id}" if row.state.is_final else f"trainworks stop {row.run_id}"
        raise UsageError(f"cannot {verb} job {row.id} ({row.run_id}): it is {row.state}", hint=hint)
