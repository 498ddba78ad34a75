"""`trainworks jobs`."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer
from rich.table import Table

from trainworks.backends.local.dispatcher_process import wake
from trainworks.backends.local.machine import local_nodes
from trainworks.backends.rebuild import Rebuilt, rebuild, submitted_runs
from trainworks.backends.store_place import store_folder, store_url
from trainworks.cli.options import AsJson, RunsOption, runs_folder
from trainworks.errors import DamagedStoreError, UsageError
from trainworks.host.probe import probe_host
from trainworks.jobs.database import set_aside
from trainworks.jobs.store import JobStore, open_store
from trainworks.report.console import SafeConsole
from trainworks.report.printable import say

__all__ = ["command"]


class Action(enum.StrEnum):
    """Action."""

    REBUILD = "rebuild"


def command(
    action: Annotated[Action, typer.Argument(help="Action.")],
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`rebuild` adds the jobs of a folder of runs that are missing from the job store; a damaged store is moved away.

    Jobs that wait or run on another backend are found there, and not submitted twice. Jobs that waited on this machine
    return to its queue. Run it once for each folder of runs.
    """
    assert action is Action.REBUILD
    folder = runs_folder(runs)
    if not folder.is_dir():
        raise UsageError(f"no folder `{folder}`", hint="name the folder of your runs: trainworks jobs rebuild --runs")
    store = _opened()
    added = rebuild(store, submitted_runs(folder), local_nodes(probe_host(store_folder())))
    if any(one.state is not None and not one.state.is_final for one in added):
        wake()
    _show(added, as_json=as_json)


def _opened() -> JobStore:
    url = store_url()
    try:
        return open_store(url)
    except DamagedStoreError as damaged:
        say(f"{damaged.message}; kept as `{set_aside(url)}`", err=True)
        return open_store(url)


def _show(added: list[Rebuilt], *, as_json: bool) -> None:
    rows = [(one.run_dir.run_id, str(one.state or "") or None, one.note or None) for one in added]
    if as_json:
        typer.echo(json.dumps([dict(zip(("run", "state", "note"), row, strict=True)) for row in rows], indent=2))
        return
    if not rows:
        say("the job store has every run that was submitted", err=True)
        return
    table = Table("run", "state", "note", box=None, padding=(0, 2, 0, 0))
    for run, state, note in rows:
        table.add_row(run, state or "left out", note or "")
    SafeConsole().print(table)
