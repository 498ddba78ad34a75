"""Start the real program as a user does, find its processes, and hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.fakes import effective_rows, read_rows
from tests.program import trainworks_program
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import list_runs

TIMEOUT_S = 540.0  # below the time limit of a test


class Program:
    """`trainworks` in a folder of its own; every process that it starts carries a mark in its environment."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.join: Path | None = None
        """The `cgroup.procs` of a cgroup to start in."""
        self._started: list[subprocess.Popen[str]] = []
        own = {
            "TRAINWORKS_CACHE": str(cache),
            "TRAINWORKS_DATA": str(folder / ".data"),
            "TRAINWORKS_TEST": self.mark,
            "COLUMNS": "200",
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._injected = os.pathsep.join(
            [str(Path(__file__).parent / "inject"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.env = {key: value for key, value in os.environ.items() if key != "TRAINWORKS_RUNS"} | own | {"PATH": path}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and leave it running, in a process group of its own, as a shell would."""
        command = [sys.executable, "-P", "-m", "trainworks", *arguments]
        if self.join is not None:
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.join), *command]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._started.append(process)
        return process

    def hurt(self, fault: str) -> None:
        """Let `inject/sitecustomize.py` hurt the runs that are started from now on."""
        self.env |= {"TRAINWORKS_TEST_FAULT": fault, "PYTHONPATH": self._injected}

    def hold(self, *steps: int) -> None:
        """Let every attempt of the runs that are started from now on wait after these steps, until `held` ends."""
        self.hurt("held")
        for step in steps:
            (self.folder / f"hold-{step}").touch()

    @contextlib.contextmanager
    def held(self, step: int) -> Iterator[None]:
        """Wait until a run is held after a step, and let it go at the end. What happens within never comes too late."""
        wait_until((self.folder / f"held-{step}").exists)
        yield
        (self.folder / f"hold-{step}").unlink()

    def interrupt_after(self, step: int, command: subprocess.Popen[str]) -> None:
        """Ctrl-C to a run that is held, until its ranks can see that they have to stop."""
        with self.held(step):
            interrupt(command)
            wait_until(self.run_dir.stop_file.exists)

    def kill_all(self) -> None:
        """Clean up after a test."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self._started:
            process.communicate()

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command to its end: exit code, stdout, stderr."""
        return finished(self.start(*arguments))

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        """The same of a command that starts nothing, within this process."""
        own = {name: text for name, text in self.env.items() if name.startswith(("TRAINWORKS_", "COLUMNS"))}
        done = trainworks_program(*arguments, folder=self.folder, **own)
        return done.returncode, done.stdout, done.stderr

    @property
    def run_dir(self) -> RunDir:
        """The newest run."""
        wait_until(lambda: bool(list_runs(self.folder / "runs")))
        return list_runs(self.folder / "runs")[-1]

    def curve(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of every step of the newest run."""
        return [(row["loss"], row["grad_norm"]) for row in effective_rows(self.run_dir.metrics_file)]

    def wait_for_step(self, step: int) -> None:
        """Wait until the newest run has recorded a step."""
        wait_until(lambda: any(row["step"] >= step for row in read_rows(self.run_dir.metrics_file)))

    def supervisor(self) -> psutil.Process:
        """Of the newest run."""
        status = json.loads(self.run_dir.status_file.read_text(encoding="utf-8"))
        return psutil.Process(status["supervisor_pid"])

    def agent(self, node: int) -> psutil.Process:
        """The agent of one node."""
        return next(child for child in self.supervisor().children() if _is_agent(child, node))

    def fork_server(self, node: int) -> psutil.Process:
        """The process that the ranks of one node are forked from; a fork of the agent, or a new interpreter later."""
        agent = self.agent(node)
        known = agent.cmdline()
        return next(
            child
            for child in agent.children()
            if child.cmdline() == known or "multiprocessing.forkserver" in child.cmdline()[-1]
        )

    def rank(self, rank: int) -> psutil.Process:
        """The process of one rank of a workload."""
        return self.find(lambda process: _has_log(process, self.run_dir, rank))

    def find(self, is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
        """The first process of this program that is as told; others may end while they are looked at."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if is_it(process):
                    return process
        raise LookupError(f"none of {self.processes()}")

    def processes(self) -> list[psutil.Process]:
        """Everything alive that this program started."""
        marked = [pid for pid in psutil.pids() if _is_marked(pid, self.mark)]
        return [process for process in map(_process, marked) if process is not None]

    def assert_nothing_left(self) -> None:
        """No process outlives its run, give or take the time to end on a busy machine; none ends by itself so soon.

        A dispatcher of the queue may: it lingers for ten seconds in case of another job.
        """
        wait_until(lambda: all(_is_dispatcher(each) for each in self.processes()), timeout_s=50)


def output(program: Program, rank: int = 0) -> str:
    """What a process has printed so far."""
    log = program.run_dir.rank_log(rank)
    return log.read_text(encoding="utf-8") if log.exists() else ""


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, once it has ended."""
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, stdout, stderr


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: the terminal signals the whole foreground process group."""
    os.killpg(process.pid, signal.SIGINT)


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
    """Poll a condition about another process; there is nothing to fake there."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.03)


def _is_marked(pid: int, mark: str) -> bool:
    """Whether a process that lives has the mark; a zombie has no environment, and another user's is not readable."""
    try:
        return f"TRAINWORKS_TEST={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _is_dispatcher(process: psutil.Process) -> bool:
    try:
        return "trainworks.backends.local.dispatcher_process" in process.cmdline()
    except psutil.NoSuchProcess:
        return True


def _is_agent(process: psutil.Process, node: int) -> bool:
    """The supervisor also has orphans of agents that were killed for children."""
    try:
        arguments = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return "-m" in arguments and arguments[arguments.index("-m") + 3 :][:1] == [str(node)]


def _has_log(process: psutil.Process, run_dir: RunDir, rank: int) -> bool:
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink() == run_dir.rank_log(rank).resolve()
    except OSError:
        return False
