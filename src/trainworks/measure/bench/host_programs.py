"""What a node measures by programs: memory by STREAM's triad, host links by nvbandwidth, MPI by OSU's or our own.

Kernels in C are compiled on the node that runs them, for its processor.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import psutil

from trainworks import __version__
from trainworks.catalog.bounds import bus_factor
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.folders import cache_folder
from trainworks.host.mpirun import has_mpirun, mpirun
from trainworks.host.probe import processor_name
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output

_COMPILER_TIMEOUT_S = 120.0


def compiled(name: str, *, compilers: tuple[str, ...] = ("cc", "gcc", "clang"), flags: tuple[str, ...] = ()) -> str:
    """Path of a compiled kernel; compiled once per source, flags and processor.

    Raises:
        EnvironmentProblem: no compiler is installed, or it fails.
    """
    compiler = next((found for each in compilers if (found := shutil.which(each))), None)
    if compiler is None:
        raise EnvironmentProblem(f"no C compiler: none of {', '.join(compilers)} is installed")
    source = files("trainworks.measure.bench").joinpath("kernels", f"{name}.c").read_text(encoding="utf-8")
    options = ("-O3", "-march=native", *flags)
    key = hashlib.sha256("\0".join((source, compiler, processor_name(), *options)).encode()).hexdigest()[:16]
    program = cache_folder("bench") / f"{name}-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f".{program.name}.{os.getpid()}")
        command = [compiler, *options, "-x", "c", "-", "-o", str(made)]
        done = process.run(command, stdin=source, timeout_s=_COMPILER_TIMEOUT_S)
        if done.exit_code:
            raise EnvironmentProblem(f"`{compiler}` cannot compile {name}.c: {done.stderr.strip().splitlines()[-1]}")
        made.replace(program)
    return str(program)


CACHE_MULTIPLE = 4
"""An array has at least four times the size of the caches: "each array must be at least 4 times the size of the
available cache memory", https://github.com/jeffhammond/STREAM/blob/master/stream.c#L58."""
_LEAST_ELEMENTS = 1_000_000
_TIMES, _FULL_TIMES = 10, 50
_TIMEOUT_S = 600.0
_MEMORY_SHARE = 0.5
"""Share of the free memory for the three arrays."""
_HOST_LINK_CASES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


def measure_triad(*, full: bool) -> list[Measurement]:
    """The triad on every NUMA node that this process may run on: 24 bytes per element over the least time of a pass.

    Raises:
        EnvironmentProblem: no compiler, or not enough memory for arrays that are larger than the caches.
    """
    program = compiled("stream_triad", flags=("-fopenmp",))
    times, found = _FULL_TIMES if full else _TIMES, []
    for node, cpus in numa_nodes().items():
        elements = max(CACHE_MULTIPLE * cache_bytes(cpus) // 8, _LEAST_ELEMENTS)
        too_large = EnvironmentProblem(f"not enough free memory for three arrays of {8 * elements} bytes")
        if 3 * 8 * elements > _MEMORY_SHARE * psutil.virtual_memory().available:
            raise too_large
        done = process.run([program, str(elements), str(times), ",".join(map(str, cpus))], timeout_s=_TIMEOUT_S)
        if done.exit_code == -signal.SIGKILL:  # other programs took memory meanwhile
            raise too_large
        if done.exit_code:
            raise EnvironmentProblem(f"the triad failed: {done.stderr.strip() or f'exit code {done.exit_code}'}")
        threads, seconds = done.stdout.split()
        about: dict[str, str | float] = {"operation": "triad", "bytes": 8 * elements, "threads": int(threads)}
        rate = 24 * elements / float(seconds)
        found.append(Measurement(Quantity.MEMORY_BANDWIDTH, rate, node, f"trainworks {__version__}", about))
    return found


def measure_host_link() -> list[Measurement]:
    """Copies between host and each accelerator, one direction and one accelerator at a time.

    Raises:
        EnvironmentProblem: nvbandwidth fails.
        UsageError: its output cannot be read.
    """
    done = process.run(["nvbandwidth", "--testcase", *_HOST_LINK_CASES], timeout_s=_TIMEOUT_S)
    if done.exit_code:
        raise EnvironmentProblem(f"nvbandwidth failed: {done.stderr.strip() or f'exit code {done.exit_code}'}")
    return read_output(ToolOutput("output of nvbandwidth", done.stdout))


def numa_nodes() -> dict[str, list[int]]:
    """NUMA nodes with the processors that this process may use; one without a name where the kernel shows none."""
    allowed = os.sched_getaffinity(0)
    nodes = {
        folder.name.replace("node", "numa"): sorted(cpu_list((folder / "cpulist").read_text()) & allowed)
        for folder in sorted(_NODES.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    }
    return {name: cpus for name, cpus in nodes.items() if cpus} or {"memory": sorted(allowed)}


def cpu_list(text: str) -> set[int]:
    """Processors of a list as the kernel writes it: `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def cache_bytes(cpus: list[int], folder: Path = _CPUS) -> int:
    """Size of the last-level caches of some processors together; 0 if the kernel does not show them."""
    caches: dict[str, int] = {}
    for cpu in cpus:
        levels = {}
        for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            kind, size = (index / "type").read_text().strip(), (index / "size").read_text().strip()
            if kind != "Instruction" and size.endswith("K"):
                shared = (index / "shared_cpu_list").read_text().strip()
                levels[int((index / "level").read_text())] = (shared, int(size[:-1]) * 1024)
        if levels:
            shared, size_bytes = levels[max(levels)]
            caches[shared] = size_bytes
    return sum(caches.values())


_LARGEST_BYTES, _FULL_LARGEST_BYTES = 4 << 20, 1 << 30
_MPI_TIMEOUT_S = 600.0
_PING_BYTES = 8
_OSU_PAIR, _OSU_ALL = ("osu_latency", "osu_bw"), "osu_allreduce"


def measure_mpi(addresses: Sequence[str], *, full: bool, built_in: bool = False) -> list[Measurement]:
    """Measure two ranks of one node, or one rank on each of several.

    `mpirun` has to reach the nodes at these addresses by itself, by ssh or Slurm. Sizes go up to 4 MiB, or 1 GiB with
    `full`. The program here measures where OSU's are not installed, or with `built_in`.

    Raises:
        EnvironmentProblem: MPI or its compiler is not installed, or the program fails.
    """
    if not has_mpirun():
        raise EnvironmentProblem("MPI is not installed: no `mpirun`")
    ranks, largest = max(2, len(addresses)), _FULL_LARGEST_BYTES if full else _LARGEST_BYTES
    about: dict[str, str | float] = {"ranks": ranks, "nodes": len(addresses), "transport": "mpi"}
    ends = f"{addresses[0]} <-> {addresses[-1]}" if len(addresses) > 1 else "2 ranks of a node"
    if not built_in and all(map(shutil.which, (*_OSU_PAIR, _OSU_ALL))):
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
    output = mpirun([compiled("mpi_transfers", compilers=("mpicc",)), str(largest)], addresses, _each(addresses))
    version = process.run(["mpirun", "--version"], timeout_s=_MPI_TIMEOUT_S).stdout
    tool = version.strip().splitlines()[0]  # `mpirun (Open MPI) 4.1.4`, `HYDRA build details:`
    return [figure for line in output.splitlines() for figure in _figures(line, ends, about, tool)]


def _each(addresses: Sequence[str]) -> int:
    return 2 if len(addresses) == 1 else 1


def _with_conditions(measured: Measurement, ends: str, about: dict[str, str | float]) -> Measurement:
    """A figure of OSU as those of the program here: the all-reduce as busbw, with its time."""
    operation, size = measured.conditions.get("operation", "ping_pong"), float(measured.conditions["bytes"])
    if measured.quantity is not Quantity.ALGORITHM_BANDWIDTH:
        return replace(measured, subject=ends, conditions={**measured.conditions, "operation": operation, **about})
    return _all_reduce(size, size / measured.value, ends, {**measured.conditions, **about}, measured.tool)


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
