"""Use case of a job store that was deleted or damaged: rebuild it from run directories."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.notices import Notify, warn
from trainworks.backends.local.machine import local_nodes
from trainworks.backends.local.wake import wake
from trainworks.backends.rebuild import Rebuilt, rebuild
from trainworks.backends.store_place import store_folder, store_url
from trainworks.backends.submission import submitted_runs
from trainworks.errors import DamagedStoreError, UsageError
from trainworks.host.probe import probe_host
from trainworks.jobs.database import set_aside
from trainworks.jobs.store import open_store

__all__ = ["Rebuilt", "rebuild_jobs"]


def rebuild_jobs(folder: Path, *, notify: Notify = warn) -> list[Rebuilt]:
    """Add the submitted runs of a folder to the job store; a damaged store is set aside first.

    Raises:
        UsageError: no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder `{folder}`", hint="name the folder of your runs: trainworks jobs rebuild --runs")
    url = store_url()
    try:
        store = open_store(url)
    except DamagedStoreError as damaged:
        notify(f"{damaged.message}; kept as `{set_aside(url)}`")
        store = open_store(url)
    added = rebuild(store, submitted_runs(folder), local_nodes(probe_host(store_folder())))
    if any(run.state is not None and not run.state.is_final for run in added):
        wake()
    return added
