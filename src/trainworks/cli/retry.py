"""`trainworks retry`."""

from __future__ import annotations

from trainworks.cli.jobs import JobArgument, find_job, jobs, retry_job
from trainworks.report.printable import say

__all__ = ["command"]


def command(job: JobArgument) -> None:
    """A workload continues from its newest checkpoint; a command starts from its beginning."""
    row = find_job(jobs(), job)
    retry_job(row)
    say(f"{row.run_id} in the queue again")
