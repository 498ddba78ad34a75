"""The guide `write-a-backend`: its backend runs jobs as it stands there, and it names all that a backend may define."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainworks.backends.backend import Backend

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "write-a-backend.md").read_text(encoding="utf-8")
TSP = Path(__file__).with_name("tsp.py")
CLI = "import sys; from trainworks.cli.app import main; sys.exit(main())"


class User:
    """A user who has installed the two files of the guide, and whose queue is a double of Task Spooler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        site, program = folder / "site", folder / "bin" / "tsp"
        info = site / "trainworks_tsp-0.1.dist-info"
        info.mkdir(parents=True)
        program.parent.mkdir()
        project, module = (re.search(rf"# {name}\n(.*?)```", PAGE, re.DOTALL) for name in FILES)
        assert project is not None and module is not None
        (site / FILES[1]).write_text(module[1], encoding="utf-8")
        ((group, names),) = tomllib.loads(project[1])["project"]["entry-points"].items()
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *(f"{key} = {names[key]}" for key in names)]))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trainworks-tsp\nVersion: 0.1\n")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{TSP}" "{folder / "queue"}" "$@"\n')
        program.chmod(0o755)
        self.env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(site)}
        self.env |= {"TRAINWORKS_DATA": str(folder / "data")}

    def trainworks(self, *words: str) -> str:
        """Run a command that has to succeed."""
        command = [sys.executable, "-P", "-c", CLI, *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def submit(self, run: str, *, nodes: int = 1) -> str:
        """Submit a command."""
        keys = {"name": "t", "run": run, "cluster": {"engine": "tsp", "nodes": nodes, "processes_per_node": 2}}
        (self.folder / "job.yaml").write_text(json.dumps(keys))
        return self.trainworks("submit", "job.yaml").strip()

    def wait_for(self, run: str, *states: str) -> dict[str, object]:
        """Until a job is in one of these states."""
        deadline = time.monotonic() + 240
        while True:
            (job,) = [one for one in json.loads(self.trainworks("ps", "--all", "--json")) if one["run_id"] == run]
            if job["state"] in states:
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.2)


FILES = ("pyproject.toml", "trainworks_tsp.py")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """With an empty queue."""
    made = User(tmp_path)
    yield made
    subprocess.run(["tsp", "-K"], env=made.env, check=True)


@pytest.mark.lane("test-all")
def test_the_backend_of_the_guide_runs_jobs_one_after_another_and_says_how_they_end(user: User) -> None:
    first = user.submit('echo up; until test -e "$TRAINWORKS_RUN_DIR/heard"; do sleep 0.1; done')
    second = user.submit("exit 3")
    third = user.submit("true")
    user.wait_for(first, "RUNNING")
    user.wait_for(third, "QUEUED")
    user.trainworks("stop", third)
    (user.folder / "runs" / first / "heard").touch()
    assert user.wait_for(first, "SUCCEEDED", "FAILED")["state"] == "SUCCEEDED"
    failed = user.wait_for(second, "SUCCEEDED", "FAILED")
    assert (failed["state"], failed["cause"], failed["exit_code"]) == ("FAILED", "user_error", 3)
    user.wait_for(third, "STOPPED")
    assert user.trainworks("logs", first).splitlines() == ["[rank-0] up", "[rank-1] up"]


@pytest.mark.lane("test-all")
def test_the_backend_of_the_guide_lets_a_job_save_before_it_ends(user: User) -> None:
    run = user.submit("trap 'echo saved; exit 0' TERM; echo up; sleep 600 & wait")
    user.wait_for(run, "RUNNING")
    user.trainworks("stop", run)
    user.wait_for(run, "STOPPED")
    assert user.trainworks("logs", run).count("saved") == 2


def test_the_guide_names_all_that_a_backend_may_define() -> None:
    own = {name for name in vars(Backend) if not name.startswith("_")} | {*Backend.__annotations__}
    section = PAGE.partition("## All that a backend may define")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == own
