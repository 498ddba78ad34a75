"""`python -m trainworks.backends.slurm.node MODULE ARGUMENT...`: what srun starts on every node of a job.

It leaves a sweeper behind and becomes the node's agent, under the same process id.
"""

from __future__ import annotations

import os
import sys

from trainworks.backends.slurm.cleanup import sweep_after
from trainworks.host import process

_OF_THE_STEP = frozenset(
    {
        "SLURM_GTIDS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NNODES",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_NODES",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
        "SLURM_TASK_PID",
    }
)
"""True of the agent, the only task of its step, and false of its ranks: frameworks that know Slurm read them."""


def of_the_job(env: dict[str, str]) -> dict[str, str]:
    """An environment without what holds for the agent alone."""
    return {name: value for name, value in env.items() if name not in _OF_THE_STEP}


def main(module: str, *arguments: str) -> int:
    """Become the agent; never returns."""
    sweep_after(os.getpid(), os.environ)
    process.replace(process.python_module(module, *arguments), of_the_job(dict(os.environ)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
