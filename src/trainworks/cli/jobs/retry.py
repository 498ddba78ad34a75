"""`trainworks retry`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import warn
from trainworks.report.rendering.printable import say


def command(
    names: Annotated[list[str], typer.Argument(metavar="JOB...", help="Numbers of jobs, or their run ids.")],
) -> None:
    """A workload resumes from its newest checkpoint; a command starts from its beginning."""
    for name in names:
        say(f"{trainworks.retry(name, notify=warn).run_id} queued again")
