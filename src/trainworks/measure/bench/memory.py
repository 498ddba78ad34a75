"""Bandwidth of host memory by STREAM's triad, one NUMA node at a time, and of host links by nvbandwidth."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from trainworks import __version__
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.measure.bench.compiled import compiled
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output

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
    return [_measure(program, node, cpus, full) for node, cpus in numa_nodes().items()]


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


def _measure(program: str, node: str, cpus: list[int], full: bool) -> Measurement:
    elements = max(CACHE_MULTIPLE * cache_bytes(cpus) // 8, _LEAST_ELEMENTS)
    too_large = EnvironmentProblem(f"not enough free memory for three arrays of {8 * elements} bytes")
    if 3 * 8 * elements > _MEMORY_SHARE * psutil.virtual_memory().available:
        raise too_large
    times = _FULL_TIMES if full else _TIMES
    command = [program, str(elements), str(times), ",".join(map(str, cpus))]
    done = process.run(command, timeout_s=_TIMEOUT_S)
    if done.exit_code == -signal.SIGKILL:  # other programs took memory meanwhile
        raise too_large
    if done.exit_code:
        raise EnvironmentProblem(f"the triad failed: {done.stderr.strip() or f'exit code {done.exit_code}'}")
    threads, seconds = done.stdout.split()
    conditions: dict[str, str | float] = {"operation": "triad", "bytes": 8 * elements, "threads": int(threads)}
    return Measurement(
        Quantity.MEMORY_BANDWIDTH, 24 * elements / float(seconds), node, f"trainworks {__version__}", conditions
    )


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
