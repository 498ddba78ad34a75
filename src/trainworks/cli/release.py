"""`trainworks release`."""

from __future__ import annotations

from trainworks.cli.jobs import JobArgument, engine_to_change, find_job, handle_of, jobs
from trainworks.cli.terminal import say
from trainworks.scheduler.holding import release

__all__ = ["command"]


def command(job: JobArgument) -> None:
    """A held job may start."""
    store = jobs()
    row = find_job(store, job)
    release(engine_to_change(row, store), row, handle_of(row))
    say(f"{row.run_id} released")
