"""`python -m trainworks.backends.slurm.node MODULE ARGUMENT...`: what srun starts on every node of a job.

It leaves a sweeper behind and becomes the node's agent, under the same process id. Where Slurm knows a task's processes
by their parents alone, one that detached itself survives the end of its job. It still carries the variables of its
step; the sweeper, which detached itself as well, waits for the agent's end, and kills every process with the same ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from trainworks.host import forking, process

_MARKS = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")


def marks_of(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that identify the processes of one step on one node.

    The step's number keeps a second start of the same node, and the restart count a second start of the job, apart.
    """
    return {name: env[name] for name in _MARKS if name in env}


_OF_THE_STEP = (
    *("SLURM_GTIDS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_NNODES", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    *("SLURM_TASKS_PER_NODE", "SLURM_TASK_PID"),
)
"""Variables that describe the agent, the only task of its step; frameworks would read them as facts of their rank."""


def job_environment(env: dict[str, str]) -> dict[str, str]:
    """An environment without the variables of the agent's step."""
    return {name: value for name, value in env.items() if name not in _OF_THE_STEP}


def main(module: str, *arguments: str) -> int:
    """Become the agent, after whose end a process sweeps that is left behind in a step of a job; never returns."""
    marks = marks_of(os.environ)
    if {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= marks.keys():
        forking.leave_sweeper(marks)
    process.replace(process.python_module(module, *arguments), job_environment(dict(os.environ)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
