"""`trainworks hold`."""

from __future__ import annotations

from trainworks.backends.holding import hold
from trainworks.cli.jobs import JobArgument, backend_to_change, find_job, handle_of, jobs
from trainworks.report.printable import say

__all__ = ["command"]


def command(job: JobArgument) -> None:
    """It keeps its place in the order, and does not start until it is released."""
    store = jobs()
    row = find_job(store, job)
    hold(backend_to_change(row, store), row, handle_of(row))
    say(f"{row.run_id} held")
