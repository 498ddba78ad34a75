"""Jobs of a machine whose files the cluster does not see: a real sshd, a real Slurm, and a folder that neither has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.slurm.login_node import NEEDS_SSHD, LoginNode, short_folder
from tests.backends.slurm_cluster import Cluster, wait_until
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir

__all__ = ["short_folder"]
pytestmark = [pytest.mark.slurm, pytest.mark.slow, NEEDS_SSHD]

RUN = """\
name: t
run: |
  {command}
resources: {{cpus: 1}}
job: {{grace: 8 s, keep_code: {keep_code}}}
cluster:
  engine: slurm
  slurm:
    login: login1
    folder: {folder}
    python: {python}
"""


class Laptop:
    """A machine with a folder of its own, mounted where the processes of the cluster have an empty one."""

    def __init__(self, cluster: Cluster, login: LoginNode) -> None:
        self.login = login
        self.folder = login.folder / "laptop"
        self.scratch = login.folder / "it's scratch"
        self.python = login.folder / "my python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        self.folder.mkdir()
        mount = 'mount -t tmpfs none "$1" && mkdir "$1/work" && echo mounted && exec sleep infinity'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", str(self.folder)]
        self.holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout is not None and self.holder.stdout.readline() == "mounted\n"
        own = {"TRAINWORKS_CACHE": str(self.folder / "cache"), "XDG_STATE_HOME": str(self.folder / "state")}
        self.env = {name: text for name, text in cluster.env.items() if not name.startswith("SLURM")} | login.env | own
        self.work = Path(f"/proc/{self.holder.pid}/root{self.folder}/work")

    def write(self, command: str, *, keep_code: bool = False) -> None:
        """Write the run file."""
        text = RUN.format(
            command=command, keep_code=str(keep_code).lower(), folder=self.scratch, python=f'"{self.python}"'
        )
        (self.work / "run.yaml").write_text(text)

    def trainworks(self, *words: str, code: int = 0) -> str:
        """What a command says."""
        enter = ["nsenter", f"--target={self.holder.pid}", "--mount", f"--wdns={self.folder / 'work'}"]
        command = [*enter, sys.executable, "-m", "trainworks", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def wait_for(self, state: str) -> None:
        """Until the list of jobs has a job in this state."""
        wait_until(lambda: state in self.trainworks("ps", "--all"), look_s=1.0)

    def run_dir(self, run: str) -> RunDir:
        """A run directory, as seen from here."""
        return RunDir(self.work / "runs" / run)

    def end(self) -> None:
        with self.holder:
            self.holder.kill()


@pytest.fixture
def laptop(cluster: Cluster, short_folder: Path) -> Iterator[Laptop]:
    """It logs in to the cluster's login node, and sees none of its files."""
    own = {name: cluster.env[name] for name in ("SLURM_CONF",) if name in cluster.env}
    login = LoginNode(short_folder, {"PATH": cluster.env["PATH"], **own})
    for name in ("sbatch", "squeue"):
        (short_folder / "bin" / name).unlink()
    one = Laptop(cluster, login)
    yield one
    one.end()
    login.end()


def test_a_job_whose_nodes_see_no_file_of_this_machine(laptop: Laptop) -> None:
    (laptop.work / "train.sh").write_text('echo "code of $1: $(pwd)"; exit 7\n')
    laptop.write("sh ./train.sh $RANK", keep_code=True)
    assert laptop.trainworks("submit", "run.yaml").split()[0] == "t-1"
    laptop.wait_for("FAILED")
    (there,) = laptop.scratch.iterdir()
    assert laptop.trainworks("logs", "t-1") == f"code of 0: {there / 'code'}\n"
    assert re.search(r"^held  .*[1-9] core hours$", laptop.trainworks("describe", "t-1"), re.MULTILINE)
    assert "FAILED" in laptop.trainworks("status", "t-1") and "exit code 7" in laptop.trainworks("report", "t-1")
    assert "user_error" in laptop.trainworks("ps", "--all")
    assert laptop.run_dir("t-1").events_file.read_bytes() == RunDir(there).events_file.read_bytes()
    found = subprocess.run(["grep", "-rlF", str(laptop.folder), there], capture_output=True, text=True, check=False)
    assert found.stdout == ""

    (laptop.work / "runs/t-1/code/train.sh").write_text("nothing")
    laptop.trainworks("retry", "t-1")
    laptop.wait_for("FAILED")
    starts = [event for event in read_events(laptop.run_dir("t-1").events_file) if event["kind"] == "submitted"]
    assert len(starts) == 2


def test_a_running_job_is_followed_entered_and_stopped(laptop: Laptop) -> None:
    laptop.write("echo up; sleep 600")
    laptop.trainworks("submit", "run.yaml")
    laptop.wait_for("RUNNING")
    wait_until(lambda: laptop.trainworks("logs", "t-1") == "up\n", look_s=1.0)
    assert laptop.trainworks("exec", "t-1", "--", "pwd") == f"{laptop.scratch}\n"
    laptop.trainworks("edit", "t-1", "--set", "name=other", code=2)
    laptop.trainworks("stop", "t-1")
    laptop.wait_for("STOPPED")
    assert "STOPPED" in laptop.trainworks("status", "t-1")
