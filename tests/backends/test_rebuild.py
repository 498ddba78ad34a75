"""A job store that is gone is made anew from run directories, and no job runs twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.small_backend import Site, SmallBackend
from tests.fakes import FakeClock, resolved_command
from trainworks.agent.launch import keep_environment
from trainworks.backends.local.machine import LocalNode
from trainworks.backends.rebuild import rebuild
from trainworks.backends.remote import follow_all, hand_over
from trainworks.backends.submission import submitted_runs
from trainworks.config.run_file import RunFile
from trainworks.errors import UnreachableError
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus

MACHINE = [LocalNode(name="here", cores=8.0, devices=(), accelerator=None, memory_bytes=1 << 33)]


class Home:
    """A folder of runs, a small backend in the place of Slurm's, and stores that come and go."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.runs = folder / "runs"
        self.site = Site()
        self.clock = clock
        self._folder = folder
        self._stores = 0

    def store(self) -> JobStore:
        """A new one, without jobs."""
        self._stores += 1
        return open_store(f"sqlite:///{self._folder / f'jobs{self._stores}.db'}")

    def run_dir(self, backend: str) -> RunDir:
        run_dir = create_run_dir(self.runs, "t")
        run_file = RunFile.model_validate({"name": "t", "run": "true", "cluster": backend})
        run_dir.write_resolved(resolved_command(run_dir.run_id, run_file=run_file))
        return run_dir

    def submit(self, store: JobStore) -> RunDir:
        """A job that Slurm's stand-in holds."""
        run_dir = self.run_dir("slurm")
        spec = replace(spec_of_run(run_dir.read_resolved()), hold=True)
        hand_over(store, SmallBackend(self.site), spec, run_dir, self.clock)
        return run_dir

    def local(self, state: JobState, **words: object) -> RunDir:
        """A job of this machine's queue in that state."""
        run_dir = self.run_dir("local")
        run_dir.submit_lock_file.touch()
        run_dir.write_status(RunStatus(state=state, updated_at=7.0, **words))  # type: ignore[arg-type]
        return run_dir


@pytest.fixture
def home(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Nothing was submitted yet."""
    made = Home(tmp_path, clock)
    monkeypatch.setattr("trainworks.backends.rebuild.backend_of_run", lambda run, store: SmallBackend(made.site))
    return made


def rebuilt(home: Home, store: JobStore) -> dict[str, tuple[str, str]]:
    """By run, its state and the note."""
    found = rebuild(store, submitted_runs(home.runs), MACHINE)
    return {one.run_dir.run_id: (str(one.state or ""), one.note) for one in found}


def test_a_job_that_waits_elsewhere_is_found_there_and_not_submitted_again(home: Home) -> None:
    home.submit(home.store())
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("QUEUED", "")}
    assert follow_all(store, home.clock, lambda row: SmallBackend(home.site)) == []
    row = store.find("t-1")
    assert row is not None
    assert (row.handle, row.reason, row.engine, list(home.site.jobs)) == ("1", "Held", "slurm", ["1"])


def test_a_job_that_has_ended_ends_as_its_run_directory_says(home: Home) -> None:
    home.local(JobState.FAILED, cause="oom", message="rank 3", exit_code=1)
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("FAILED", "")}
    row = store.find("t-1")
    assert row is not None
    assert (row.end.cause, row.end.message, row.end.exit_code, row.ended_at) == ("oom", "rank 3", 1, 7.0)


def test_a_job_of_this_machine_that_waited_goes_back_into_its_queue(home: Home) -> None:
    keep_environment(home.local(JobState.QUEUED), {"COLOUR": "blue"})
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("QUEUED", "")}
    assert [row.state for row in store.search(engine="local")] == [JobState.QUEUED]


def test_a_job_of_this_machine_that_runs_holds_its_node(home: Home) -> None:
    home.local(JobState.RUNNING)
    store = home.store()
    rebuilt(home, store)
    row = store.find("t-1")
    assert row is not None
    assert (row.state, row.attempt, [one.node for one in row.placement]) == (JobState.RUNNING, 1, ["here"])
    assert [one.state for one in store.attempts(row.id)] == [JobState.RUNNING]


def test_a_job_that_was_never_submitted_is_left_out(home: Home) -> None:
    home.local(JobState.QUEUED)
    far = home.run_dir("slurm")
    far.submit_lock_file.touch()
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("", "not submitted"), "t-2": ("", "not submitted")}
    assert (store.search(), home.site.jobs) == ([], {})


def test_a_job_that_its_backend_has_no_more_has_failed(home: Home) -> None:
    far = home.run_dir("slurm")
    far.submit_lock_file.touch()
    far.write_status(RunStatus(state="RUNNING", updated_at=7.0))
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("FAILED", "")}
    row = store.find("t-1")
    assert row is not None and row.end.message is not None
    assert (row.end.cause, "slurm does not have the job any more" in row.end.message) == ("unknown", True)


def test_a_job_whose_backend_is_silent_is_left_out_and_the_others_are_not(home: Home) -> None:
    home.submit(home.store())
    home.local(JobState.SUCCEEDED, exit_code=0)
    home.site.answers = False
    store = home.store()
    assert rebuilt(home, store) == {"t-1": ("", "the small backend does not answer"), "t-2": ("SUCCEEDED", "")}
    home.site.answers = True
    assert rebuilt(home, store) == {"t-1": ("QUEUED", "")}


def test_a_store_that_has_all_jobs_stays_as_it_is(home: Home) -> None:
    store = home.store()
    home.submit(store)
    version = store.version()
    assert (rebuilt(home, store), store.version()) == ({}, version)


def test_a_run_directory_that_cannot_be_read_is_named(home: Home) -> None:
    home.local(JobState.SUCCEEDED).resolved_file.write_text("{", encoding="utf-8")
    state, note = rebuilt(home, home.store())["t-1"]
    assert (state, "cannot read" in note) == ("", True)


def test_a_backend_that_cannot_be_asked_is_no_error_of_the_whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(run: object, store: object) -> SmallBackend:
        raise UnreachableError("no way there")

    monkeypatch.setattr("trainworks.backends.rebuild.backend_of_run", away)
    home.run_dir("slurm").submit_lock_file.touch()
    assert rebuilt(home, home.store()) == {"t-1": ("", "no way there")}
