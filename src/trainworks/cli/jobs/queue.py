"""`trainworks hold`, `release`, `edit` and `retry`: change what waits in the queue."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import JobArgument
from trainworks.cli.options import RunsOption, read_settings, runs_folder, warn
from trainworks.report.rendering.printable import say


def hold_command(job: JobArgument, runs: RunsOption = None) -> None:
    """Keep a waiting job from starting; it keeps its place in the queue."""
    say(f"{trainworks.hold(job, runs_folder(runs), notify=warn).run_id} held")


def release_command(job: JobArgument, runs: RunsOption = None) -> None:
    """Let a held job start."""
    say(f"{trainworks.release(job, runs_folder(runs), notify=warn).run_id} released")


def edit_command(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Number, run id, name of a run (its last one), folder, or an array.")
    ],
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Another value, repeatable: `job.priority=90`."),
    ],
    runs: RunsOption = None,
) -> None:
    """Changes only what does not need a new plan.

    `--set` changes `name`, `job.team`, `job.priority`, `job.preemptible`, `job.time_limit`, `job.grace`, `job.exclude`,
    `job.depends_on`, `recover.max_restarts` and `recover.restart_window`. Of an array, by its id, all waiting jobs
    change.
    """
    values = read_settings(settings, example="job.priority=90")
    for edited in trainworks.edit(job, values, runs_folder(runs), notify=warn):
        changed = ", ".join(map(str, edited.changes)) or "nothing changed"
        say(f"{edited.job.run_id}: {changed}")


def retry_command(
    names: Annotated[
        list[str], typer.Argument(metavar="JOB...", help="Numbers, ids, names or folders of runs, or arrays.")
    ],
    runs: RunsOption = None,
) -> None:
    """A workload resumes from its newest checkpoint; a command starts from its beginning.

    Of an array, by its id, all jobs that failed, were lost or were stopped start again.
    """
    from trainworks.api.jobs import JobState, is_array_id, jobs_of_array

    again = (JobState.FAILED, JobState.LOST, JobState.STOPPED)
    for name in names:
        members = jobs_of_array(name, notify=warn) if is_array_id(name) else []
        for one in [str(job.id) for job in members if job.state in again] if members else [name]:
            say(f"{trainworks.retry(one, runs_folder(runs), notify=warn).run_id} queued again")
