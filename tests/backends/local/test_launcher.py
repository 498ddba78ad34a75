"""The launcher of this machine: what it believes of a run directory, and what it takes of the machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeClock, spec
from trainworks.backends.local.launcher import Launcher
from trainworks.backends.local.outcome import launch_failed
from trainworks.errors import NotOwnerError
from trainworks.host import process
from trainworks.host.ledger import MachineLedger, Share, claim_key
from trainworks.host.users import this_host
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import open_store
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

PLACEMENT = (Placement("vm", 2.0, (0, 1)),)


@pytest.fixture
def ledger(tmp_path: Path, clock: FakeClock) -> MachineLedger:
    """An empty ledger."""
    (tmp_path / "ledger").mkdir()
    return MachineLedger(tmp_path / "ledger", clock)


@pytest.fixture
def launcher(ledger: MachineLedger, clock: FakeClock) -> Launcher:
    """With nothing to start."""
    return Launcher(clock, [], ledger)


@pytest.fixture
def job(run_dir: RunDir, tmp_path: Path) -> JobRow:
    """A job that says its supervisor is this process."""
    pid, started_at = process.identity()
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    return store.add(spec(), run_dir=str(run_dir.path), owner="ann", engine="local", host=this_host(), now=1.0)


def take(ledger: MachineLedger, run_dir: str) -> int:
    """A job outside the queue takes something."""
    handle = ledger.claim(lambda claims: Share(run="lm-1", key=claim_key(run_dir), cores=1.0, devices=(1,)))
    assert handle is not None
    return handle


def test_a_job_s_own_claim_is_not_that_of_another(launcher: Launcher, job: JobRow) -> None:
    assert launcher.claim(job, PLACEMENT, launcher.elsewhere([]))
    assert launcher.elsewhere([job]) == frozenset()
    assert [(one.share.cores, one.share.devices) for one in launcher.elsewhere([])] == [(2.0, (0, 1))]
    launcher.let_go(job)
    assert launcher.elsewhere([]) == frozenset()


def test_the_claim_of_another_user_is_theirs_even_under_the_same_key(
    launcher: Launcher, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher.claim(job, PLACEMENT, frozenset())
    monkeypatch.setattr(os, "getuid", lambda: 61_001)
    assert len(launcher.elsewhere([job])) == 1
    launcher.let_go(job)


def test_nothing_is_claimed_when_others_have_taken_more_than_was_known(
    launcher: Launcher, ledger: MachineLedger, job: JobRow
) -> None:
    known = launcher.elsewhere([])
    handle = take(ledger, "/runs/lm-1")
    assert not launcher.claim(job, PLACEMENT, known)
    os.close(handle)
    assert launcher.claim(job, PLACEMENT, known)
    launcher.let_go(job)


def test_a_supervisor_is_found_by_the_status_of_a_run_directory_of_one_s_own(launcher: Launcher, job: JobRow) -> None:
    found = launcher.adopt(job)
    assert found is not None and found.pid == os.getpid()


def test_what_the_run_directory_of_another_user_says_is_not_believed(
    launcher: Launcher, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 61_001)
    words = launcher.last_words(job)
    assert (launcher.adopt(job), launcher.status(job).state) == (None, "UNKNOWN")
    assert words is not None and (words.state, "belongs to" in (words.message or "")) == ("FAILED", True)
    with pytest.raises(NotOwnerError):
        launcher.launch(replace(job, placement=PLACEMENT))
    launcher.stopped(job)
    assert RunDir(Path(job.run_dir)).read_status().state == "RUNNING"


def test_a_run_that_cannot_be_started_says_so_to_those_who_wait_for_it(launcher: Launcher, job: JobRow) -> None:
    launcher.concluded(job, launch_failed("no space left on device"))
    status = RunDir(Path(job.run_dir)).read_status()
    assert (status.state, status.cause, status.message) == ("FAILED", "launch_failed", "no space left on device")
    assert status.exit_code == 3


def test_a_lost_supervisor_s_job_ends_as_its_queue_decides(launcher: Launcher, job: JobRow) -> None:
    run_dir = RunDir(Path(job.run_dir))
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=7).without_supervisor())
    launcher.concluded(job, End(JobState.FAILED, Cause.AGENT_LOST, exit_code=3))
    assert (run_dir.read_status().state, run_dir.read_status().exit_code) == ("FAILED", 3)


def test_the_end_that_a_supervisor_wrote_stays(launcher: Launcher, job: JobRow) -> None:
    run_dir = RunDir(Path(job.run_dir))
    run_dir.write_status(RunStatus(state="SUCCEEDED", exit_code=0))
    launcher.concluded(job, launch_failed("no space left on device"))
    assert run_dir.read_status().state == "SUCCEEDED"
