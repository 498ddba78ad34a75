"""Who may change a job, and what a dispatcher executes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes import spec
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.ownership import check_may_change, check_run_dir, check_undrain, is_private, may_end
from trainworks.errors import NotOwnerError
from trainworks.host import users
from trainworks.host.users import is_administrator, this_host, user_name
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import open_store
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

NOBODY = 2**31 + 5
"""A user without an account."""


@pytest.fixture
def job(tmp_path: Path) -> JobRow:
    """A job of this user."""
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    return store.add(spec(), run_dir="/runs/a", owner="ann", engine="local", host=this_host(), now=1.0)


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> int:
    """This process says it is an ordinary user."""
    monkeypatch.setattr(os, "getuid", lambda: 61_001)
    return 61_001


def test_an_owner_changes_a_job(job: JobRow, ordinary: int) -> None:
    check_may_change(replace(job, uid=ordinary))


def test_another_user_is_told_the_owner(job: JobRow, ordinary: int) -> None:
    with pytest.raises(NotOwnerError, match=r"cannot change job 1 \(demo-1\): it belongs to uid 2147483653"):
        check_may_change(replace(job, uid=NOBODY))


def test_a_job_of_another_machine_is_changed_there(job: JobRow) -> None:
    with pytest.raises(NotOwnerError, match="it belongs to the queue of gpu02"):
        check_may_change(replace(job, host="gpu02"))


def test_members_of_a_group_of_the_system_are_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    people = {61_001: ("ann", 100), 61_002: ("bob", 100), 61_003: ("cas", 777)}
    group = SimpleNamespace(gr_gid=777, gr_mem=["ann"])
    monkeypatch.setattr(users.grp, "getgrnam", lambda name: {"trainworks-admins": group}[name])
    monkeypatch.setattr(
        users.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=people[uid][0], pw_gid=people[uid][1])
    )
    assert [is_administrator(uid) for uid in (0, 61_001, 61_002, 61_003, NOBODY)] == [True, True, False, True, False]


def test_a_user_without_an_account_has_a_number_for_a_name() -> None:
    assert (user_name(NOBODY), user_name(-1), user_name(0)) == (f"uid {NOBODY}", "uid -1", "root")


def test_a_request_to_end_counts_if_its_user_may_ask() -> None:
    assert [may_end(uid) for uid in (None, os.getuid(), 0, NOBODY)] == [False, True, True, False]


def test_the_drain_of_another_user_is_not_lifted(tmp_path: Path, ordinary: int) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.drain("vm", "fan", now=1.0, uid=NOBODY)
    store.drain("mine", "fan", now=1.0, uid=ordinary)
    check_undrain(store, "mine")
    with pytest.raises(NotOwnerError, match="drain of `vm`: it belongs to uid"):
        check_undrain(store, "vm")


def open_to_others(run_dir: RunDir) -> None:
    run_dir.path.chmod(0o777)


def open_to_the_group(run_dir: RunDir) -> None:
    run_dir.path.chmod(0o775)


def with_open_resolved(run_dir: RunDir) -> None:
    run_dir.resolved_file.chmod(0o666)


@pytest.mark.parametrize("spoil", [open_to_others, open_to_the_group, with_open_resolved])
def test_what_others_can_write_is_not_executed(run_dir: RunDir, spoil: Callable[[RunDir], None]) -> None:
    run_dir.resolved_file.touch()
    check_run_dir(run_dir.path, shared=False)
    spoil(run_dir)
    with pytest.raises(NotOwnerError, match="other users can write"):
        check_run_dir(run_dir.path, shared=False)


def test_a_run_directory_of_another_user_is_not_executed(run_dir: RunDir, ordinary: int) -> None:
    with pytest.raises(NotOwnerError, match="this dispatcher starts jobs of uid 61001 only"):
        check_run_dir(run_dir.path, shared=False)


def test_a_link_to_a_run_directory_is_not_executed(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run_dir.path)
    with pytest.raises(OSError, match="link"):
        check_run_dir(tmp_path / "link", shared=False)


def test_under_a_shared_store_the_folders_above_are_checked_too(run_dir: RunDir, tmp_path: Path) -> None:
    check_run_dir(run_dir.path, shared=True)
    (tmp_path / "link").symlink_to(run_dir.path.parent)
    with pytest.raises(NotOwnerError, match="is a link"):
        check_run_dir(tmp_path / "link" / run_dir.path.name, shared=True)
    run_dir.path.parent.chmod(0o777)
    with pytest.raises(NotOwnerError, match="every user can write"):
        check_run_dir(run_dir.path, shared=True)
    run_dir.path.parent.chmod(0o1777)
    check_run_dir(run_dir.path, shared=True)


def test_a_run_directory_is_its_user_s_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run_dir = create_run_dir(tmp_path / "runs", "demo")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (run_dir.path, run_dir.logs, run_dir.checkpoints)]
    assert modes == [0o755] * 3


def test_a_store_is_private_where_no_other_user_can_write_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    open_store(url)
    assert is_private(url)
    assert not is_private("postgresql+psycopg://host/jobs")
    (tmp_path / "jobs.db").chmod(0o666)
    assert not is_private(url)


def test_a_folder_that_every_user_can_write_is_named_for_a_shell(tmp_path: Path) -> None:
    runs = tmp_path / "my runs"
    runs.mkdir()
    run_dir = create_run_dir(runs, "demo")
    runs.chmod(0o777)
    with pytest.raises(NotOwnerError) as refused:
        check_run_dir(run_dir.path, shared=True)
    assert f"chmod o-w '{runs}'" in str(refused.value.hint)


def test_a_run_that_the_dispatcher_would_not_execute_is_refused_at_its_submission(
    run_dir: RunDir, tmp_path: Path
) -> None:
    """As with umask 000: every user can write the store and the folder of the runs."""
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "jobs.db").chmod(0o666)
    run_dir.path.parent.chmod(0o777)
    spec = JobSpec(run_id=run_dir.run_id, name="demo", min_nodes=1, max_nodes=1, node=NodeResources(cores=1.0))
    backend = LocalBackend(store)
    with pytest.raises(NotOwnerError, match="every user can write") as refused:
        backend.submit(backend.render(spec, run_dir), run_dir)
    assert str(refused.value.hint).startswith(f"chmod o-w {run_dir.path.parent}")
    assert store.search() == [] and not run_dir.environment_file.exists()
