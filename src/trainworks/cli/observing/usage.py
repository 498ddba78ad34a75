"""`trainworks usage`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, cast

import typer

import trainworks
from trainworks.cli.options import AsJson, warn
from trainworks.cli.output import show

if TYPE_CHECKING:
    from trainworks.api.observing.job_board import UsageKey


class UsageBy(StrEnum):
    """What rows are summed by."""

    MONTH = "month"
    USER = "user"
    TEAM = "team"


def command(
    by: Annotated[UsageBy | None, typer.Option("--by", help="A row for each of these; all three by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Accelerator and core hours, and USD where run files give a price.

    The team of a job is `job.team`, else its account of Slurm or its queue of Kueue.
    """
    show(trainworks.usage(cast("UsageKey | None", by and str(by)), notify=warn), as_json=as_json)
