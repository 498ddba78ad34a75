"""Programs under `mpirun`, on this machine or on the nodes that it reaches by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from trainworks.errors import EnvironmentProblem
from trainworks.host import process

_TIMEOUT_S = 3600.0
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def has_mpirun() -> bool:
    """Whether an MPI is installed."""
    return shutil.which("mpirun") is not None


def mpirun(
    command: Sequence[str], addresses: Sequence[str], ranks_per_node: int, env: Mapping[str, str] | None = None
) -> str:
    """What the ranks of a program print.

    `mpirun` has to reach the nodes by itself, by ssh or Slurm; one address is this machine. `env` has variables of the
    ranks, beside those that MPI hands on.

    Raises:
        EnvironmentProblem: MPI is not installed, or the program fails; the message is its own.
    """
    if not has_mpirun():
        raise EnvironmentProblem("MPI is not installed: no `mpirun`")
    ranks = ranks_per_node * len(addresses)
    slots = [f"{address}:{ranks_per_node}" for address in addresses]
    hosts = ["--host", ",".join(slots)] if len(addresses) > 1 else ["--oversubscribe"]
    own = [f"{name}={value}" for name, value in (env or {}).items()]  # any MPI starts `env`, each has its own option
    done = process.run(
        ["mpirun", "-np", str(ranks), *hosts, *(["env", *own] if own else []), *command],
        env={**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", **(_AS_ROOT if os.geteuid() == 0 else {})},
        timeout_s=_TIMEOUT_S,
    )
    if done.exit_code:
        lines = [line for line in done.stderr.splitlines() if line.strip(" -")]
        raise EnvironmentProblem(f"mpirun failed: {lines[0].strip() if lines else f'exit code {done.exit_code}'}")
    return done.stdout
