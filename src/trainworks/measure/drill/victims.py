"""Processes of a run on this machine that a drill hits: its supervisor, its node agents and its ranks.

`python -m trainworks.measure.drill.victims RUN_DIR KIND INDEX SIGNAL SLOW_S` hits one of them, and prints when. A drill
starts it beside the ranks of a node, where the processes of a run on a cluster are.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import sys
from pathlib import Path

import psutil

from trainworks.agent.enter import newest_pids
from trainworks.agent.launch import run_mark
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.record.run_dir import RunDir

_AGENT = ["-m", "trainworks.worker.agent"]
_SLOW_PERIOD_S = 0.02


class Victim(enum.StrEnum):
    """Kind of a process that a drill hits."""

    RANK = "rank"
    AGENT = "agent"
    SUPERVISOR = "supervisor"


def supervisor_of(run_dir: RunDir) -> int:
    """Process id of the supervisor.

    Raises:
        EnvironmentProblem: the run has none.
    """
    pid = run_dir.read_status().supervisor_pid
    if pid is None:
        raise EnvironmentProblem(f"run {run_dir.run_id} has no supervisor")
    return pid


def agents_of(run_dir: RunDir) -> dict[int, int]:
    """Process id by node of the agents on this machine, without their fork servers, which have the same arguments."""
    found: dict[int, int] = {}
    ours = process.processes_with(run_mark(run_dir))
    for one in sorted(ours, key=lambda each: (each.create_time(), each.pid)):
        words = _arguments(one)
        if words[: len(_AGENT)] == _AGENT and RunDir(Path(words[2])).run_id == run_dir.run_id:
            found.setdefault(int(words[3]), one.pid)
    return found


def victim_of(run_dir: RunDir, kind: Victim, index: int) -> int:
    """Process id of a rank, of the agent of a node, or of the supervisor.

    Raises:
        EnvironmentProblem: the run has no such process here.
    """
    if kind is Victim.SUPERVISOR:
        return supervisor_of(run_dir)
    found = agents_of(run_dir) if kind is Victim.AGENT else dict(enumerate(newest_pids(run_dir)))
    if index not in found:
        raise EnvironmentProblem(f"run {run_dir.run_id} has no {kind} {index} here")
    return found[index]


def hit(pid: int, number: int, clock: Clock) -> float:
    """Send a signal, unless the process has ended; returns the time."""
    now = clock.now()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return now


def slow_down(pid: int, seconds: float, clock: Clock) -> None:
    """Stop and continue a process in turn, so that it has half of its time."""
    ends = clock.now() + seconds
    while clock.now() < ends:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            hit(pid, number, clock)
            clock.sleep(_SLOW_PERIOD_S)


def _arguments(one: psutil.Process) -> list[str]:
    """Arguments of a Python program from `-m` on; empty for any other."""
    try:
        words = one.cmdline()
    except psutil.Error:
        return []
    is_python = bool(words) and Path(words[0]).name.startswith("python")
    return words[words.index("-m") :] if is_python and "-m" in words else []


def main(run_folder: str, kind: str, index: str, number: str, slow_s: str) -> int:
    """Hit one process, and print when; if `slow_s` is not 0, slow it down for so many seconds instead."""
    clock = SystemClock()
    try:
        pid = victim_of(RunDir(Path(run_folder)), Victim(kind), int(index))
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    if seconds := float(slow_s):
        slow_down(pid, seconds, clock)
    else:
        sys.stdout.write(f"{hit(pid, int(number), clock)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
