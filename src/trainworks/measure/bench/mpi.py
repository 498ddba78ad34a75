"""MPI between the ranks of `mpirun`: ping-pong and all-reduce, by OSU's programs or a small one of our own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from trainworks.catalog.bounds import bus_factor
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.mpirun import has_mpirun, mpirun
from trainworks.measure.bench.compiled import compiled
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output

_LARGEST, _FULL_LARGEST = 4 << 20, 1 << 30
_TIMEOUT_S = 600.0
_PING_BYTES = 8
_OSU_PAIR, _OSU_ALL = ("osu_latency", "osu_bw"), "osu_allreduce"


def measure_mpi(addresses: Sequence[str], *, full: bool, built_in: bool = False) -> list[Measurement]:
    """Measure two ranks of one node, or one rank on each of several.

    Args:
        addresses: nodes on which `mpirun` starts the ranks; it has to reach them by itself, by ssh or Slurm.
        full: up to 1 GiB instead of 4 MiB.
        built_in: the program here, even where OSU's are installed.

    Raises:
        EnvironmentProblem: MPI or its compiler is not installed, or the program fails.
    """
    if not has_mpirun():
        raise EnvironmentProblem("MPI is not installed: no `mpirun`")
    ranks, largest = max(2, len(addresses)), _FULL_LARGEST if full else _LARGEST
    about: dict[str, str | float] = {"ranks": ranks, "nodes": len(addresses), "transport": "mpi"}
    ends = f"{addresses[0]} <-> {addresses[-1]}" if len(addresses) > 1 else "2 ranks of a node"
    if not built_in and all(map(shutil.which, (*_OSU_PAIR, _OSU_ALL))):
        return _with_osu(addresses, largest, ends, about)
    output = mpirun([compiled("mpi_transfers", compilers=("mpicc",)), str(largest)], addresses, _each(addresses))
    tool = _version()
    return [figure for line in output.splitlines() for figure in _figures(line, ends, about, tool)]


def _each(addresses: Sequence[str]) -> int:
    return 2 if len(addresses) == 1 else 1


def _with_osu(addresses: Sequence[str], largest: int, ends: str, about: dict[str, str | float]) -> list[Measurement]:
    """Latency of 8 B and bandwidth of every other size between the ends, and the all-reduce of all ranks."""
    pair = list(dict.fromkeys((addresses[0], addresses[-1])))
    sizes = f"{_PING_BYTES}:{largest}"
    outputs = [mpirun([name, "-m", sizes], pair, _each(pair)) for name in _OSU_PAIR]
    outputs.append(mpirun([_OSU_ALL, "-m", sizes], addresses, _each(addresses)))
    found = [each for text in outputs for each in read_output(ToolOutput("output of OSU", text))]
    return [
        _with_conditions(each, ends, about)
        for each in found
        if each.quantity is not Quantity.LINK_LATENCY or each.conditions["bytes"] == _PING_BYTES
    ]


def _with_conditions(measured: Measurement, ends: str, about: dict[str, str | float]) -> Measurement:
    """A figure of OSU as those of the program here: the all-reduce as busbw, with its time."""
    operation, size = measured.conditions.get("operation", "ping_pong"), float(measured.conditions["bytes"])
    if measured.quantity is not Quantity.ALGORITHM_BANDWIDTH:
        return replace(measured, subject=ends, conditions={**measured.conditions, "operation": operation, **about})
    return _all_reduce(size, size / measured.value, ends, {**measured.conditions, **about}, measured.tool)


def _version() -> str:
    """Name and version of the MPI: `mpirun (Open MPI) 4.1.4`, `HYDRA build details:`."""
    return process.run(["mpirun", "--version"], timeout_s=_TIMEOUT_S).stdout.strip().splitlines()[0]


def _figures(line: str, ends: str, about: dict[str, str | float], tool: str) -> list[Measurement]:
    """Latency of the smallest message and bandwidth of every other; busbw of an all-reduce as nccl-tests counts."""
    operation, size_text, seconds_text = line.split()
    size, seconds = int(size_text), float(seconds_text)
    conditions = {"operation": operation, "bytes": size, "seconds": seconds, **about}
    if operation == "all_reduce":
        return [_all_reduce(size, seconds, ends, conditions, tool)]
    if size == _PING_BYTES:
        return [Measurement(Quantity.LINK_LATENCY, seconds, ends, tool, conditions)]
    return [Measurement(Quantity.LINK_BANDWIDTH, size / seconds, ends, tool, conditions)]


def _all_reduce(size: float, seconds: float, ends: str, conditions: dict[str, str | float], tool: str) -> Measurement:
    algbw = size / seconds
    subject = ends if conditions["nodes"] == 1 else f"{conditions['nodes']} nodes"
    busbw = algbw * bus_factor("all_reduce", int(conditions["ranks"]))
    return Measurement(Quantity.BUS_BANDWIDTH, busbw, subject, tool, {**conditions, "seconds": seconds, "algbw": algbw})
