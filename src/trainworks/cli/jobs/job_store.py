"""`trainworks jobs`."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import AsJson, RunsOption, runs_folder
from trainworks.cli.output import show_document
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.retention.job_store import Rebuilt


class StoreAction(enum.StrEnum):
    """What to do with the job store."""

    REBUILD = "rebuild"


def command(
    action: Annotated[StoreAction, typer.Argument(help="What to do with the job store.")],
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`rebuild` adds the jobs of a folder of runs that are missing from the job store; a damaged store is moved away.

    Jobs that wait or run on another backend are found there, and not submitted twice. Jobs that waited on this machine
    return to its queue. Run it once for each folder of runs.
    """
    from trainworks.api.retention.job_store import rebuild_jobs

    assert action is StoreAction.REBUILD
    _show(rebuild_jobs(runs_folder(runs), notify=lambda message: say(message, err=True)), as_json=as_json)


def _show(added: list[Rebuilt], *, as_json: bool) -> None:
    rows = [(one.run_dir.run_id, str(one.state or "") or None, one.note or None) for one in added]
    if as_json:
        typer.echo(json.dumps([dict(zip(("run", "state", "note"), row, strict=True)) for row in rows], indent=2))
        return
    from trainworks.report import jobs as view

    if not rows:
        say("the job store has every run that was submitted", err=True)
        return
    show_document(view.rebuilt_document(rows))
