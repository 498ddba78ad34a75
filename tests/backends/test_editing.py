"""Editing a waiting job: its row and its resolved run change together, whoever is killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock, resolved_command
from trainworks.backends.backend import Backend
from trainworks.backends.editing import edit_job, finish_interrupted_edit
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.local.launcher import Launcher
from trainworks.config.load import with_settings
from trainworks.config.run_file import RunFile
from trainworks.errors import NotOwnerError, TrainworksError, UsageError
from trainworks.host.users import this_host
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.run_dir import RunDir

SETTINGS = {"job.priority": 90, "job.time_limit": "2h", "recover.max_restarts": 4, "name": "renamed"}
NODE = (Placement("node1", 1.0),)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str) -> JobStore:
    return open_store(url)


def add(store: JobStore, folder: Path, *, number: int = 1, uid: int | None = None, **keys: Any) -> JobRow:
    """A waiting job with a run directory."""
    run_dir = RunDir(folder / f"demo-{number}")
    run_dir.path.mkdir()
    run_file = RunFile.model_validate({"name": "demo", "run": "true", "job": keys})
    resolved = resolved_command(run_dir.path.name, run_file=run_file)
    run_dir.write_resolved(resolved)
    where: dict[str, Any] = {"owner": "ada", "engine": "local", "host": this_host(), "uid": uid}
    return store.add(spec_of_run(resolved), run_dir=str(run_dir.path), now=0.0, **where)


def edit(store: JobStore, row: JobRow, settings: Mapping[str, Any], backend: Backend | None = None) -> None:
    change = lambda run_file: with_settings(run_file, settings)  # noqa: E731
    edit_job(store, backend or LocalBackend(store), row, str(row.id), change, FakeClock())


def values(store: JobStore, row: JobRow) -> tuple[JobSpec, JobSpec]:
    """The job spec in the store, and that of the resolved run; the row's own columns agree with the first."""
    now = store.get(row.id)
    assert now is not None and (now.name, now.priority) == (now.spec.name, now.spec.priority)
    return now.spec, spec_of_run(RunDir(Path(row.run_dir)).read_resolved())


def test_an_edit_changes_the_row_and_the_resolved_run_and_nothing_else(store: JobStore, tmp_path: Path) -> None:
    row = add(store, tmp_path)
    edit(store, row, SETTINGS)
    edit(store, row, {"job.exclude": ["node7"]})
    kept, written = values(store, row)
    assert kept == written
    assert (kept.priority, kept.time_limit_s, kept.max_restarts, kept.name) == (90, 7200.0, 4, "renamed")
    changed = {"priority", "time_limit_s", "max_restarts", "name", "exclude"}
    assert {one for one in JobSpec.__slots__ if getattr(kept, one) != getattr(row.spec, one)} == changed
    assert sorted(path.name for path in Path(row.run_dir).iterdir()) == [".submit.lock", "resolved.json"]


def killed_while_editing(url: str, job_id: int, moment: str) -> None:
    """In a process of its own: die before the row changes, or between the row and the file."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    store = open_store(url)
    place, name = (LocalBackend, "edit") if moment == "before the row" else (RunDir, "adopt_edited")
    setattr(place, name, die)
    row = store.get(job_id)
    assert row is not None
    edit(store, row, SETTINGS)


def by_the_next_look(store: JobStore, row: JobRow) -> None:
    finish_interrupted_edit(store, row)


def by_the_launch(store: JobStore, row: JobRow) -> None:
    waiting = store.get(row.id)
    assert waiting is not None
    started = store.start(waiting, NODE, now=1.0)
    assert started is not None
    Launcher(FakeClock(), [])._resolved(started, RunDir(Path(row.run_dir)))


@pytest.mark.parametrize("finished", [by_the_next_look, by_the_launch])
@pytest.mark.parametrize(("moment", "priority"), [("before the row", 50), ("before the file", 90)])
def test_a_killed_edit_happened_or_did_not(
    store: JobStore,
    url: str,
    tmp_path: Path,
    moment: str,
    priority: int,
    finished: Callable[[JobStore, JobRow], None],
) -> None:
    row = add(store, tmp_path)
    child = multiprocessing.get_context("fork").Process(target=killed_while_editing, args=(url, row.id, moment))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    run_dir = RunDir(Path(row.run_dir))
    assert run_dir.edited_file.exists()
    assert spec_of_run(run_dir.read_resolved()) == row.spec
    finished(store, row)
    kept, written = values(store, row)
    assert kept == written and kept.priority == priority
    assert not run_dir.edited_file.exists()


def test_an_edit_after_a_killed_one_keeps_both(store: JobStore, url: str, tmp_path: Path) -> None:
    row = add(store, tmp_path)
    child = multiprocessing.get_context("fork").Process(target=killed_while_editing, args=(url, row.id, "before file"))
    child.start()
    child.join(60)
    edit(store, row, {"job.grace": "10s"})
    kept, written = values(store, row)
    assert kept == written and (kept.priority, kept.grace_s) == (90, 10.0)


def test_a_job_that_starts_meanwhile_stays_as_it_started(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add(store, tmp_path)
    monkeypatch.setattr(LocalBackend, "edit", lambda *_: store.start(row, NODE, now=1.0))
    with pytest.raises(UsageError, match=r"cannot edit job 1 .* it is STARTING"):
        edit(store, row, SETTINGS)
    assert values(store, row) == (row.spec, row.spec)
    assert not RunDir(Path(row.run_dir)).edited_file.exists()


def test_a_job_does_not_start_by_what_it_was_before_the_edit(store: JobStore, tmp_path: Path) -> None:
    row = add(store, tmp_path)
    edit(store, row, {"job.exclude": ["node1"]})
    assert store.start(row, NODE, now=1.0) is None


def starts(store: JobStore, row: JobRow) -> None:
    store.start(row, NODE, now=1.0)


def ends(store: JobStore, row: JobRow) -> None:
    store.move(row.id, JobState.STOPPED, now=1.0)


def waits_for_it(store: JobStore, row: JobRow) -> None:
    add(store, Path(row.run_dir).parent, number=2, depends_on=[str(row.id)])


def as_it_is(store: JobStore, row: JobRow) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("before", "settings", "message"),
    [
        (starts, SETTINGS, "cannot edit job 1 .* it is STARTING"),
        (ends, SETTINGS, "cannot edit job 1 .* it is STOPPED"),
        (waits_for_it, {"job.depends_on": ["demo-2"]}, "makes job 1 .* wait for itself"),
        (as_it_is, {"job.depends_on": ["1"]}, "makes job 1 .* wait for itself"),
        (as_it_is, {"job.depends_on": ["demo-9"]}, "`demo-9`, which does not exist"),
        (as_it_is, {"job.priority": 101}, "100"),
        (as_it_is, {"job.priority": 90, "job.time_limit": "soon"}, "soon"),
    ],
)
def test_a_refused_edit_changes_nothing(
    store: JobStore,
    tmp_path: Path,
    before: Callable[[JobStore, JobRow], None],
    settings: dict[str, Any],
    message: str,
) -> None:
    row = add(store, tmp_path)
    before(store, row)
    with pytest.raises(TrainworksError, match=message):
        edit(store, row, settings)
    assert values(store, row) == (row.spec, row.spec)


def test_a_job_of_another_user_is_not_edited_by_an_administrator_either(store: JobStore, tmp_path: Path) -> None:
    row = add(store, tmp_path, uid=os.getuid() + 1)
    with pytest.raises(NotOwnerError, match=r"cannot edit job 1 .* it belongs to"):
        edit(store, row, SETTINGS)
    assert values(store, row) == (row.spec, row.spec)
