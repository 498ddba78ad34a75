"""Delete the files of runs that have ended, and rebuild a lost job store from the run directories that are left."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from trainworks.agent.launch import supervised, take_run
from trainworks.api.notices import Notify, warn
from trainworks.api.run_handle import Run, as_run
from trainworks.backends.local.machine import local_nodes
from trainworks.backends.local.wake import wake
from trainworks.backends.rebuild import Rebuilt, rebuild
from trainworks.backends.store_place import store_folder, store_url
from trainworks.backends.submission import submitted_runs
from trainworks.errors import DamagedStoreError, EnvironmentProblem, NotOwnerError, UsageError
from trainworks.files import bytes_in, closing_handle
from trainworks.host.probe import probe_host
from trainworks.jobs.database import set_aside
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.record.runs_folder import list_runs
from trainworks.system import owner_id, user_id

_ASIDE = ".{}.removed"
"""Name of a folder whose deletion has begun; no run has such a name."""


def remove(run: Run | str, folder: Path | str = "runs", *, checkpoints_only: bool = False) -> int:
    """Delete the files of a run that has ended; its job stays in the list of all jobs and in the costs.

    The run is gone at once: its folder is renamed, then deleted. The next call deletes what a killed one left.

    Args:
        run: the run, its id or its folder.
        folder: folder of all runs.
        checkpoints_only: keep the record of the run and its logs.

    Returns:
        Bytes that were freed.

    Raises:
        UnknownRunError: no such run.
        UsageError: the run has not ended.
        NotOwnerError: it belongs to another user.
        EnvironmentProblem: a file cannot be deleted.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> ended = trainworks.run(["true"], folder=folder)
        >>> remove(ended.id, folder) > 0, len(trainworks.runs(folder))
        (True, 0)
    """
    found = as_run(run, folder)
    check_removable(found)
    with closing_handle(take_run(found.run_dir)):  # against a `resume` meanwhile
        return _delete(found.run_dir.checkpoints if checkpoints_only else found.path, is_kept=checkpoints_only)


def ended_before(folder: Path | str = "runs", *, age_s: float) -> list[Run]:
    """This user's runs of a folder that ended at least so long ago, oldest first."""
    before, mine = time.time() - age_s, user_id()
    return [
        run
        for run in map(Run, list_runs(Path(folder)))
        if run.standing()[0].is_final and run.status.updated_at < before and owner_id(run.path.stat()) == mine
    ]


def check_removable(run: Run) -> None:
    """Refuse a run that must stay.

    Raises:
        UsageError: it has not ended.
        NotOwnerError: it belongs to another user.
    """
    state, _ = run.standing()
    if not state.is_final and state is not JobState.CREATED:
        raise supervised(run.run_dir, run.status)
    if owner_id(run.path.stat()) != user_id():
        raise NotOwnerError(f"run {run.id} belongs to another user", hint="ask its owner to remove it")


def _delete(folder: Path, *, is_kept: bool) -> int:
    freed, aside = bytes_in(folder), folder.with_name(_ASIDE.format(folder.name))
    try:
        for rest in folder.parent.glob(_ASIDE.format("*")):
            shutil.rmtree(rest)
        folder.rename(aside)
        if is_kept:
            folder.mkdir(mode=0o755)
        shutil.rmtree(aside)
    except OSError as error:
        raise EnvironmentProblem(f"cannot delete `{error.filename or folder}`: {error.strerror}") from None
    return freed


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
