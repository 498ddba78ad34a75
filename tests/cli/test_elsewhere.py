"""The commands about jobs, where a backend that is not this machine's has them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.backends.small_backend import Job, Site, SmallBackend, end_all
from trainworks.backends.backend import JobStatus
from trainworks.cli.app import app
from trainworks.errors import RunFailedError, TrainworksError, UnreachableError, UsageError
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events
from trainworks.record.status import RunStatus


class FarBackend(SmallBackend):
    """The same, whose nodes keep their files to themselves."""

    shares_files = False

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        run_dir = self._site.jobs[handle].run_dir
        while follow and not self.poll([handle])[handle].state.is_final:
            time.sleep(0.05)
        for rank in (0, 1) if node is None else (node,):
            for line in run_dir.rank_log(rank).read_text().splitlines():
                yield line if node is not None else f"[{rank}] {line}"

    def _last_word(self, job: Job) -> RunStatus:
        """From the events: the status here is a copy of what this backend has said, and may replace a later one."""
        states = [event for event in read_events(job.run_dir.events_file) if event["kind"] == "state"]
        words = {name: states[-1][name] for name in ("state", "cause", "message")} if states else {"state": "UNKNOWN"}
        return RunStatus(exit_code=job.supervisor.exit_code(), **words)

    def last_output(self, handle: str) -> Iterator[str]:
        yield from self.output(handle)


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A small backend in the place of Slurm's and Kubernetes'."""
    site = Site()

    def backend_for(cluster, *, store=None, program=None):
        return FarBackend(site) if cluster.engine == "kubernetes" else SmallBackend(site)

    for place in ("api.nodes", "backends.registry"):  # last where the other gets it from
        monkeypatch.setattr(f"trainworks.{place}.backend_for", backend_for)
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    yield site
    end_all(site)


def call(*arguments: str) -> str:
    """What a command prints on stdout."""
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, TrainworksError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def written(command: str, backend: str = "slurm", **keys: object) -> str:
    """A run file of two nodes of one rank."""
    cluster = {"engine": backend, "nodes": 2, "processes_per_node": 1}
    Path("job.yaml").write_text(json.dumps({"name": "job", "run": command, "cluster": cluster} | keys))
    return "job.yaml"


def wait_for(state: str, run_id: str = "job-1") -> dict[str, object]:
    """As `ps` sees it."""
    deadline = time.monotonic() + 240
    while True:
        found = next(job for job in json.loads(call("ps", "--all", "--json")) if job["run_id"] == run_id)
        if found["state"] == state:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_job_is_submitted_seen_and_read() -> None:
    assert call("submit", written("echo rank $RANK of $WORLD_SIZE")) == "job-1\n"
    found = wait_for("SUCCEEDED")
    assert (found["engine"], found["handle"], found["attempt"]) == ("small", "1", 1)
    assert call("logs", "job-1") == "[rank-0] rank 0 of 2\n[rank-1] rank 1 of 2\n"
    assert "small1,small2" in call("describe", "1")


def test_what_the_nodes_printed_is_shown_when_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    call("run", written("echo bye", backend="kubernetes"))
    monkeypatch.setattr(FarBackend, "output", lambda *_, **__: iter(()))
    assert call("logs", "job-1") == "[0] bye\n[1] bye\n"


def test_a_job_is_watched_to_its_end_from_here() -> None:
    assert "done 1" in call("run", written("sleep 0.5; echo done $RANK"))
    assert wait_for("SUCCEEDED")["exit_code"] == 0


def test_a_failed_job_says_so_and_is_retried() -> None:
    command = 'test -e "$TRAINWORKS_RUN_DIR/again" && exit 0; touch "$TRAINWORKS_RUN_DIR/again"; exit 3'
    with pytest.raises(RunFailedError, match="exited with code 3"):
        call("run", written(command))
    assert call("retry", "job-1") == "job-1 queued again\n"
    assert wait_for("SUCCEEDED")["attempt"] == 2


def test_a_job_that_says_it_has_failed_is_retried_once_its_backend_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, still = SmallBackend._job_status, iter([True] * 5)

    def late(backend: SmallBackend, job: Job) -> JobStatus:
        status = truth(backend, job)
        is_late = status.state is JobState.FAILED and next(still, False)
        return replace(status, state=JobState.RUNNING) if is_late else status

    monkeypatch.setattr(SmallBackend, "_job_status", late)
    command = 'test -e "$TRAINWORKS_RUN_DIR/again" && exit 0; touch "$TRAINWORKS_RUN_DIR/again"; exit 3'
    with pytest.raises(RunFailedError):
        call("run", written(command))
    assert call("retry", "job-1") == "job-1 queued again\n"
    assert next(still, None) is None
    wait_for("SUCCEEDED")


def test_a_job_that_runs_is_not_retried() -> None:
    call("submit", written("echo up; sleep 600"))
    wait_for("RUNNING")
    with pytest.raises(UsageError, match="is RUNNING"):
        call("retry", "job-1")


def test_a_job_is_stopped_and_the_command_returns_when_it_has_ended() -> None:
    call("submit", written("echo up; sleep 600"))
    wait_for("RUNNING")
    assert call("stop", "job-1") == "job-1 STOPPED\n"


@pytest.mark.parametrize("command", ["submit", "run"])
@pytest.mark.parametrize("backend", ["slurm", "kubernetes"])
def test_a_submission_that_fails_leaves_nothing(site: Site, command: str, backend: str) -> None:
    site.answers = False
    with pytest.raises(UnreachableError, match="does not answer"):
        call(command, written("true", backend))
    site.answers = True
    assert json.loads(call("ps", "--all", "--json")) == json.loads(call("ls", "--json")) == []
    assert (site.jobs, list(Path("runs").iterdir())) == ({}, [])


def test_a_submission_whose_answer_is_lost_is_accepted_and_says_so(site: Site) -> None:
    site.loses_answers = True
    result = CliRunner().invoke(app, ["submit", written("true")])
    assert (result.exit_code, result.stdout) == (0, "job-1\n")
    assert "warning: the small backend did not answer; job 1 (job-1) is accepted" in result.stderr
    site.loses_answers = False
    wait_for("SUCCEEDED")
    assert list(site.jobs) == ["1"]


def test_a_job_that_its_backend_may_have_is_neither_held_nor_stopped_unseen(site: Site) -> None:
    site.loses_answers = True
    call("submit", written("true"))
    site.answers = False
    with pytest.raises(UsageError, match="has not confirmed job 1"):
        call("hold", "1")
    with pytest.raises(UnreachableError, match="may have it"):
        call("stop", "job-1")


def test_a_backend_that_does_not_answer_is_said_beside_its_jobs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    call("submit", written("echo up; sleep 600"))
    wait_for("RUNNING")
    site.answers = False
    result = CliRunner().invoke(app, ["ps"])
    assert ("RUNNING (not reached)" in result.output, "the small backend does not answer" in result.output) == (
        True,
        True,
    )
    site.answers = True
    monkeypatch.setattr("trainworks.backends.asking.QUIET_S", 600.0)
    assert ": not asked again for " in CliRunner().invoke(app, ["ps"]).output
    monkeypatch.setattr("trainworks.backends.asking.QUIET_S", 0.0)
    assert "not reached" not in call("ps")


def test_a_held_job_is_released() -> None:
    call("submit", written("true", job={"hold": True}))
    assert wait_for("QUEUED")["reason"] == "Held"
    call("release", "job-1")
    wait_for("SUCCEEDED")


def test_nodes_are_those_of_the_cluster_that_is_named() -> None:
    call("drain", "small2", "--reason", "fan broken", "--cluster", written("true"))
    nodes = {node["name"]: node for node in json.loads(call("nodes", "--cluster", "slurm", "--json"))}
    assert (nodes["small2"]["state"], nodes["small2"]["reason"], nodes["small1"]["state"]) == (
        "drained",
        "fan broken",
        "free",
    )


def test_what_far_nodes_print_comes_from_their_backend() -> None:
    assert call("run", written("echo far $RANK", "kubernetes")) == "[0] far 0\n[1] far 1\n"
    assert call("logs", "job-1", "--node", "1") == "far 1\n"
    with pytest.raises(UsageError, match="write no files here"):
        call("logs", "job-1", "--rank", "0")
    assert wait_for("SUCCEEDED")["exit_code"] == 0
    assert json.loads(call("status", "job-1", "--json"))["state"] == "SUCCEEDED"
