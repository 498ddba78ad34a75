"""What the commands about jobs share: the store, a job by its name, and the engine that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.errors import UnknownRunError
from trainworks.job.store import JobRow, JobStore, open_store
from trainworks.record.run_dir import RunDir
from trainworks.scheduler.dispatch import wake
from trainworks.scheduler.engine import Engine
from trainworks.scheduler.local_engine import LocalEngine
from trainworks.scheduler.store_place import is_there_a_store, store_url

__all__ = ["JobArgument", "engine_of", "find_job", "job_of_run", "jobs", "retry_job", "run_of_job", "stop_job"]

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or its run.")]


def jobs() -> JobStore:
    """The store of this user. A dispatcher that was killed is missed by whoever looks."""
    store = open_store(store_url())
    if any(not state.is_final for state in store.counts()):
        wake()
    return store


def find_job(store: JobStore, wanted: str) -> JobRow:
    """The job that an argument names.

    Raises:
        UnknownRunError: naming some that there are.
    """
    row = store.find(wanted)
    if row is None:
        known = ", ".join(f"{job.id} ({job.run_id})" for job in store.search(limit=5)) or "none"
        raise UnknownRunError(f"no job `{wanted}`", hint=f"the newest: {known}")
    return row


def job_of_run(run_dir: RunDir) -> JobRow | None:
    """The job of a run that was submitted; None for one that somebody ran himself."""
    return _row(str(run_dir.path.resolve()))


def run_of_job(wanted: str) -> RunDir | None:
    """The run of the job of that number or run, wherever it is."""
    row = _row(wanted)
    return RunDir(Path(row.run_dir)) if row else None


def _row(wanted: str) -> JobRow | None:
    return open_store(store_url()).find(wanted) if is_there_a_store() else None


def engine_of(row: JobRow, store: JobStore) -> Engine:
    """The engine that has a job."""
    return LocalEngine(store)


def stop_job(row: JobRow, *, at_once: bool) -> None:
    """Ask its engine for a clean end, or for any."""
    engine_of(row, jobs()).stop(row.handle or str(row.id), at_once=at_once)


def retry_job(row: JobRow) -> None:
    """Put it back into its engine's queue."""
    engine, run_dir = engine_of(row, jobs()), RunDir(Path(row.run_dir))
    engine.retry(engine.render(row.ticket, run_dir), run_dir, row.handle or str(row.id))
