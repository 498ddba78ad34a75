"""When a node's agent ends, nothing that it started stays.

Where Slurm knows a task's processes by their parents alone, one that detached itself survives the end of its job. It
still carries the variables of its step; a process that detached itself as well waits for the agent's end, and
kills every process with the same ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import psutil

from trainworks.host import process

_MARKS = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
_ROUNDS = 5


def marks_of(env: Mapping[str, str]) -> dict[str, str]:
    """The variables by which the processes of one step on one node are known.

    The step's number keeps a second start of the same node, and the restart count a second start of the job, apart.
    """
    return {name: env[name] for name in _MARKS if name in env}


def sweep(marks: Mapping[str, str]) -> int:
    """Kill all processes with these variables, and those that they start meanwhile; returns how many."""
    killed = 0
    for _ in range(_ROUNDS):
        found = process.processes_with(marks)
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        if not found:
            break
        psutil.wait_procs(found, timeout=1)
        killed += len(found)
    return killed


def sweep_after(pid: int, env: Mapping[str, str]) -> None:
    """Leave a process behind that waits for the end of another one and sweeps; only in a step of a job."""
    marks = marks_of(env)
    if {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= marks.keys():
        process.leave_behind(lambda: _wait_and_sweep(pid, marks))


def _wait_and_sweep(pid: int, marks: Mapping[str, str]) -> None:
    process.wait_for_end(pid)
    sweep(marks)
