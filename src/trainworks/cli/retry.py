"""`trainworks retry`."""

from __future__ import annotations

import typer

from trainworks.cli.jobs import JobArgument, find_job, jobs, retry_job

__all__ = ["command"]


def command(job: JobArgument) -> None:
    """A workload goes on from its newest checkpoint; a command starts anew."""
    row = find_job(jobs(), job)
    retry_job(row)
    typer.echo(f"{row.run_id} in the queue again")
