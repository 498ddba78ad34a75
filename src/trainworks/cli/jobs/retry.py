"""`trainworks retry`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import warn
from trainworks.report.rendering.printable import say


def command(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="Numbers, run ids or arrays.")],
) -> None:
    """A workload resumes from its newest checkpoint; a command starts from its beginning.

    Of an array, by its id, all jobs that failed, were lost or were stopped start again.
    """
    from trainworks.api.jobs import JobState, is_array_id, jobs_of_array

    again = (JobState.FAILED, JobState.LOST, JobState.STOPPED)
    for name in names:
        members = jobs_of_array(name, notify=warn) if is_array_id(name) else []
        for one in [str(job.id) for job in members if job.state in again] if members else [name]:
            say(f"{trainworks.retry(one, notify=warn).run_id} queued again")
