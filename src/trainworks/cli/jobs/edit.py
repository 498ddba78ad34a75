"""`trainworks edit`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import warn
from trainworks.report.rendering.printable import say


def command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Number of a job, its run id, or an array.")],
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Another value, repeatable: `job.priority=90`."),
    ],
) -> None:
    """Changes only what does not need a new plan.

    `--set` changes `name`, `job.team`, `job.priority`, `job.preemptible`, `job.time_limit`, `job.grace`, `job.exclude`,
    `job.depends_on`, `recover.max_restarts` and `recover.restart_window`. Of an array, by its id, all waiting jobs
    change.
    """
    from trainworks.api.resuming.changes import key_and_value

    values = dict(key_and_value(text, example="job.priority=90") for text in settings)
    for edited in trainworks.edit(job, values, notify=warn):
        changed = ", ".join(map(str, edited.changes)) or "nothing changed"
        say(f"{edited.job.run_id}: {changed}")
