"""A list of jobs asks all backends at once, and one that is silent delays neither the others nor the next command."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.fakes import FakeClock, resolved_command, spec
from trainworks.backends.asking import QUIET_S, Silence
from trainworks.backends.backend import Backend, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.remote import follow_all
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.config.run_file import RunFile
from trainworks.errors import UnreachableError
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.run_dir import RunDir

RUNNING = JobStatus(state=JobState.RUNNING, raw="RUNNING", nodes=("n1",))


class Scripted(Backend):
    """Says that every job runs, is silent, or hangs until the test is over."""

    name = "slurm"
    shares_files = False
    patience_s = 0.05

    def __init__(self, over: threading.Event) -> None:
        self.over = over
        self.mood = "answers"
        self.asked: list[str] = []
        self.is_hurried = False

    def hurried(self) -> Scripted:
        self.is_hurried = True
        return self

    def _heard(self, what: str) -> None:
        self.asked.append(f"{'hurried ' if self.is_hurried else ''}{what}")
        if self.mood == "hangs":
            self.over.wait()
        if self.mood != "answers":
            raise UnreachableError("no answer")

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        self._heard("poll")
        return dict.fromkeys(handles, RUNNING)

    def find(self, run_dir: RunDir) -> str | None:
        self._heard("find")
        return None

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        return RenderedJob(spec, "")

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        self._heard("submit")
        return "new"

    def stop(self, handle: str, *, at_once: bool = False) -> None: ...

    def nodes(self) -> list[NodeStatus]:
        return []


class Clusters:
    """Jobs on several clusters, one each."""

    def __init__(self, folder: Path, clock: FakeClock, over: threading.Event) -> None:
        self.store: JobStore = open_store(f"sqlite:///{folder / 'jobs.db'}")
        self.folder, self.clock = folder, clock
        self.backends = {name: Scripted(over) for name in ("a", "b")}
        self.jobs = {name: self._submit(name).id for name in self.backends}

    def _submit(self, name: str) -> JobRow:
        run_dir = RunDir(self.folder / f"{name}-1")
        run_dir.path.mkdir()
        cluster = {"engine": "slurm", "slurm": {"login": name}}
        run_file = RunFile.model_validate({"name": name, "run": "true", "cluster": cluster})
        run_dir.write_resolved(resolved_command(run_dir.run_id, run_file=run_file))
        wanted = spec(run_id=run_dir.run_id, name=name, min_nodes=1, max_nodes=1)
        row = self.store.add(wanted, run_dir=str(run_dir.path), owner="ada", engine="slurm", now=self.clock.now())
        self.store.change(row.id, now=self.clock.now(), handle=name)
        return row

    def look(self, *, awaited: int | None = None) -> list[str]:
        """What a command that lists jobs says of silent backends; each command has a `Silence` of its own."""
        for backend in self.backends.values():
            backend.is_hurried = False
        silence = Silence(self.folder / "silent", self.clock)
        problems = follow_all(
            self.store, self.clock, lambda row: self.backends[row.name], silence=silence, awaited=awaited
        )
        return [problem.message for problem in problems]

    def row(self, name: str) -> JobRow:
        row = self.store.get(self.jobs[name])
        assert row is not None
        return row


@pytest.fixture
def clusters(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    """Clusters `a` and `b`, with a job each."""
    monkeypatch.setattr("trainworks.backends.asking._UNINTERRUPTED_S", 2.0)  # for a thread of a busy machine
    over = threading.Event()
    yield Clusters(tmp_path, clock, over)
    over.set()


@pytest.mark.parametrize("mood", ["silent", "hangs"])
def test_the_jobs_of_others_are_shown_while_a_backend_says_nothing(clusters: Clusters, mood: str) -> None:
    clusters.backends["a"].mood = mood
    (problem,) = clusters.look()
    assert "answer" in problem
    assert (clusters.row("a").state, clusters.row("a").reachable) == (JobState.QUEUED, False)
    assert (clusters.row("b").state, clusters.row("b").reachable) == (JobState.RUNNING, True)


@pytest.mark.parametrize("mood", ["silent", "hangs"])
def test_a_silent_backend_is_left_alone_by_the_next_commands_for_a_while(clusters: Clusters, mood: str) -> None:
    backend = clusters.backends["a"]
    backend.mood = mood
    clusters.look()
    clusters.clock.sleep(4)
    assert clusters.look() == ["slurm did not answer 4 s ago: not asked again for 11 s"]
    assert backend.asked == ["hurried poll"]
    backend.mood = "answers"
    clusters.clock.sleep(QUIET_S)
    assert clusters.look() == []
    assert clusters.row("a").reachable


def test_a_backend_that_answers_again_is_asked_by_every_command(clusters: Clusters) -> None:
    backend = clusters.backends["a"]
    backend.mood = "silent"
    clusters.look()
    backend.mood = "answers"
    clusters.clock.sleep(QUIET_S)
    for _ in range(3):
        clusters.look()
    assert backend.asked == ["hurried poll"] * 4


def test_the_backend_of_an_awaited_job_is_asked_in_any_case_and_without_hurry(clusters: Clusters) -> None:
    backend = clusters.backends["a"]
    backend.mood = "silent"
    clusters.look()
    backend.mood = "answers"
    assert clusters.look(awaited=clusters.jobs["a"]) == []
    assert backend.asked == ["hurried poll", "poll"]
    assert clusters.backends["b"].asked == ["hurried poll"] * 2


def test_a_submission_is_finished_only_where_the_backend_answers(clusters: Clusters) -> None:
    backend = clusters.backends["a"]
    clusters.store.change(clusters.jobs["a"], now=clusters.clock.now(), handle=None)
    backend.mood = "silent"
    clusters.look()
    assert backend.asked == ["hurried find"]
    backend.mood = "answers"
    clusters.clock.sleep(QUIET_S)
    clusters.look()
    assert clusters.row("a").handle == "new"


@pytest.mark.parametrize("content", ["", "soon", "99999999999"])
def test_a_file_of_nonsense_keeps_no_backend_from_being_asked(clusters: Clusters, content: str) -> None:
    clusters.backends["a"].mood = "silent"
    clusters.look()
    for file in (clusters.folder / "silent").iterdir():
        file.write_text(content)
    clusters.backends["a"].mood = "answers"
    assert clusters.look() == []


def test_a_squeue_that_hangs_is_ended_within_the_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 4321\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setattr(SlurmBackend, "patience_s", 0.2)
    backend = SlurmBackend(Slurm(), client=SlurmClient(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})).hurried()
    with pytest.raises(UnreachableError, match="Slurm does not answer: `squeue"):
        backend.poll(["1"])
    commands = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]  # other children may end meanwhile
    assert ["sleep", "4321"] not in commands
