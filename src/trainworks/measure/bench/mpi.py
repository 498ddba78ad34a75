"""MPI between the ranks of `mpirun`: ping-pong and all-reduce, by a small program that the MPI's compiler builds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from trainworks.catalog.bounds import bus_factor
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.measure.bench.compiled import compiled
from trainworks.measure.bench.measurement import Measurement, Quantity

_LARGEST, _FULL_LARGEST = 4 << 20, 1 << 30
_TIMEOUT_S = 600.0
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def measure_mpi(addresses: Sequence[str], *, full: bool) -> list[Measurement]:
    """Measure two ranks of one node, or one rank on each of several.

    Args:
        addresses: nodes on which `mpirun` starts the ranks; it has to reach them by itself, by ssh or Slurm.
        full: up to 1 GiB instead of 4 MiB.

    Raises:
        EnvironmentProblem: MPI or its compiler is not installed, or the program fails.
    """
    if shutil.which("mpirun") is None:
        raise EnvironmentProblem("MPI is not installed: no `mpirun`")
    program = compiled("mpi_transfers", compilers=("mpicc",))
    largest, ranks = _FULL_LARGEST if full else _LARGEST, max(2, len(addresses))
    hosts = ["--host", ",".join(addresses)] if len(addresses) > 1 else ["--oversubscribe"]
    env = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1", **(_AS_ROOT if os.geteuid() == 0 else {})}
    command = ["mpirun", "-np", str(ranks), *hosts, program, str(largest)]
    done = process.run(command, env=env, timeout_s=_TIMEOUT_S)
    if done.exit_code:
        lines = [line for line in done.stderr.splitlines() if line.strip(" -")]
        raise EnvironmentProblem(f"mpirun failed: {lines[0].strip() if lines else f'exit code {done.exit_code}'}")
    about: dict[str, str | float] = {"ranks": ranks, "nodes": len(addresses), "transport": "mpi"}
    ends = f"{addresses[0]} <-> {addresses[-1]}" if len(addresses) > 1 else "2 ranks of a node"
    return [figure for line in done.stdout.splitlines() for figure in _figures(line, ends, about, _version())]


def _version() -> str:
    """Name and version of the MPI: `mpirun (Open MPI) 4.1.4`, `HYDRA build details:`."""
    return process.run(["mpirun", "--version"], timeout_s=_TIMEOUT_S).stdout.strip().splitlines()[0]


def _figures(line: str, ends: str, about: dict[str, str | float], tool: str) -> list[Measurement]:
    """Latency of the smallest message and bandwidth of every other; busbw of an all-reduce as nccl-tests counts."""
    operation, size_text, seconds_text = line.split()
    size, seconds, ranks = int(size_text), float(seconds_text), int(about["ranks"])
    conditions = {"operation": operation, "bytes": size, "seconds": seconds, **about}
    if operation == "all_reduce":
        algbw = size / seconds
        subject = ends if about["nodes"] == 1 else f"{about['nodes']} nodes"
        busbw = algbw * bus_factor("all_reduce", ranks)
        return [Measurement(Quantity.BUS_BANDWIDTH, busbw, subject, tool, {**conditions, "algbw": algbw})]
    if size == 8:
        return [Measurement(Quantity.LINK_LATENCY, seconds, ends, tool, conditions)]
    return [Measurement(Quantity.LINK_BANDWIDTH, size / seconds, ends, tool, conditions)]
