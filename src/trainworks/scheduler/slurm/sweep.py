"""`python -m trainworks.scheduler.slurm.sweep PID`: when a node's agent ends, nothing that it started stays.

Where Slurm knows a task's processes by their parents alone, one that detached itself survives the end of its job. It
still carries the variables of its step; this process, which detached itself as well, waits for the agent's end and
kills whatever has the same ones.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

import psutil

from trainworks.host import process

__all__ = ["main", "marks_of", "sweep"]

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


def main(pid: str) -> int:
    """Wait and sweep, unless this is no step of a job."""
    marks = marks_of(os.environ)
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= marks.keys():
        return 0
    process.leave_the_tree()
    process.wait_for_end(int(pid))
    sweep(marks)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
