"""Homes, stores and folders that cannot be used: one clear error, and nothing is called what it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import resolved_command
from tests.program import trainworks_program
from trainworks.config.run_file import RunFile
from trainworks.host import process
from trainworks.jobs.state import parse_state
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder for runs and, in `data`, for the queue; no process of it is left."""
    yield tmp_path
    for one in process.processes_with({"TRAINWORKS_DATA": str(tmp_path / "data")}):
        process.kill(one.pid)


def call(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The program, as a shell starts it."""
    own = {"TRAINWORKS_DATA": str(home / "data"), "COLUMNS": "200"} | env
    command = [sys.executable, "-m", "trainworks", *arguments]
    return subprocess.run(command, check=False, cwd=home, env=os.environ | own, capture_output=True, text=True)


def write_job(home: Path, **keys: object) -> str:
    """A run file of a command."""
    run_file = {"name": "job", "run": "true", "resources": {"cpus": 0.1}} | keys
    (home / "job.yaml").write_text(json.dumps(run_file), encoding="utf-8")
    return "job.yaml"


def ended(home: Path, run_id: str) -> dict[str, object]:
    """The job, once it has ended; its status file is looked at before a command is started for that."""
    deadline = time.monotonic() + 240
    while True:
        while not parse_state(RunDir(home / "runs" / run_id).read_status().state).is_final:
            assert time.monotonic() < deadline, run_id
            time.sleep(0.1)
        jobs = json.loads(call(home, "ps", "--all", "--json").stdout)
        found = next((job for job in jobs if job["run_id"] == run_id), {"state": "none"})
        if found["state"] in ("SUCCEEDED", "FAILED"):
            return found
        assert time.monotonic() < deadline, jobs


@pytest.mark.parametrize("command", ["ps", "submit"])
def test_a_home_that_cannot_be_written_is_one_error(home: Path, command: str) -> None:
    (home / "data").write_text("a file in the place of the folder")
    done = call(home, command, *([write_job(home)] if command == "submit" else []))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[0].startswith("error: cannot make the folder of the job store")
    assert "hint: set TRAINWORKS_DATA to a folder where you can write" in done.stderr
    assert not list(home.glob("runs/*"))


def test_a_folder_of_runs_that_cannot_be_made_is_one_error(home: Path) -> None:
    (home / "file").write_text("no folder")
    done = call(home, "submit", write_job(home), "--runs", "file/runs")
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "error: cannot use `file/runs`: Not a directory"


@pytest.mark.parametrize("length", [300, 100_000])
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_a_workdir_that_is_too_long_is_one_short_error(home: Path, length: int, cluster: str) -> None:
    job = write_job(home, workdir="x" * length, cluster=cluster)
    done = trainworks_program("submit", "--dry-run", job, folder=home, TRAINWORKS_DATA=str(home / "data"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert len(done.stderr) < 1000


def test_a_damaged_store_is_rebuilt_from_the_run_directories(home: Path) -> None:
    run_id = call(home, "submit", write_job(home)).stdout.strip()
    assert ended(home, run_id)["state"] == "SUCCEEDED"
    (home / "data" / "queue" / "jobs.db").write_bytes(b"no store at all " * 4096)
    for name in ("jobs.db-wal", "jobs.db-shm"):
        (home / "data" / "queue" / name).unlink(missing_ok=True)
    done = call(home, "submit", write_job(home))
    assert (done.returncode, done.stdout) == (3, "")
    assert "hint: make it anew from the run directories: trainworks jobs rebuild" in done.stderr
    assert json.loads(call(home, "ls", "--json").stdout)[-1]["run"] == run_id
    done = call(home, "jobs", "rebuild")
    assert done.returncode == 0
    assert (run_id in done.stdout, "jobs.db.damaged-1" in done.stderr) == (True, True)
    assert ended(home, run_id)["exit_code"] == 0
    assert ended(home, call(home, "submit", write_job(home)).stdout.strip())["state"] == "SUCCEEDED"


def test_a_deleted_store_is_missed_and_a_job_that_waits_is_not_lost(home: Path) -> None:
    kept = call(home, "submit", write_job(home, job={"hold": True})).stdout.strip()
    for file in (home / "data" / "queue").glob("jobs.db*"):
        file.unlink()
    done = call(home, "ps")
    assert f"does not have 1 submitted runs of `runs`: {kept}" in done.stderr
    assert "hint: add them: trainworks jobs rebuild" in done.stderr
    assert call(home, "jobs", "rebuild").returncode == 0
    assert call(home, "ps").stderr == ""
    assert call(home, "release", kept).returncode == 0
    assert ended(home, kept)["state"] == "SUCCEEDED"


def test_a_run_that_says_it_waits_and_is_in_no_store_is_not_submitted(home: Path) -> None:
    run_dir = create_run_dir(home / "runs", "t")
    run_file = RunFile.model_validate({"name": "t", "run": "true"})
    run_dir.write_resolved(resolved_command(run_dir.run_id, run_file=run_file, working_folder=str(home)))
    run_dir.write_status(RunStatus(state="QUEUED"))
    (listed,) = json.loads(call(home, "ls", "--json").stdout)
    assert (listed["state"], listed["cause"]) == ("CREATED", "not submitted: the job store does not have it")
    shown = json.loads(call(home, "status", "--json", "t-1").stdout)
    assert (shown["state"], shown["message"]) == ("CREATED", "not submitted: the job store does not have it")
    assert call(home, "resume", "-b", "t-1").stdout == "t-1\n"
    assert ended(home, "t-1")["state"] == "SUCCEEDED"


def test_a_dependency_that_does_not_exist_leaves_no_run(home: Path) -> None:
    done = call(home, "submit", write_job(home, job={"depends_on": ["nope-1"]}))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: `job.depends_on` names job `nope-1`, which does not exist" in done.stderr
    assert (json.loads(call(home, "ls", "--json").stdout), json.loads(call(home, "ps", "-a", "--json").stdout)) == (
        [],
        [],
    )


@pytest.mark.parametrize("cluster", ["kubernetes", "skypilot"])
def test_a_cluster_that_cannot_be_reached_leaves_no_job_and_no_run(home: Path, cluster: str) -> None:
    own = {"kubernetes": {"image": "trainworks:1"}, "skypilot": {}}[cluster]
    job = write_job(home, cluster={"engine": cluster, cluster: own})
    done = call(home, "submit", job, KUBECONFIG=str(home / "none"), PATH="/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert (json.loads(call(home, "ls", "--json").stdout), json.loads(call(home, "ps", "-a", "--json").stdout)) == (
        [],
        [],
    )
