"""`trainworks bench` against the tools whose place it takes: fio, iperf3, likwid-bench, mpi4py.

    python benchmarks/bench_against_tools.py --rounds 7 --json benchmarks/results/bench_tools.json

Needs these programs. The two contenders of a row alternate; the ratio is the median of those of the rounds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainworks.host.network import LOOPBACK, listen
from trainworks.measure.bench import storage
from trainworks.measure.bench.host_programs import CACHE_MULTIPLE, cache_bytes, measure_mpi, measure_triad, numa_nodes
from trainworks.measure.bench.measurement import Quantity
from trainworks.worker.bench import pairs

SECONDS = 2.0
MPI_BYTES = 2 << 20


def compared() -> dict[str, tuple[str, Callable[[], float], Callable[[], float]]]:
    """Name -> unit, our measurement, the tool's."""
    write, read, random = storage.JOBS
    return {
        "storage write (fio)": ("GB/s", lambda: _own(write) / 1e9, lambda: _fio(write) / 1e9),
        "storage read (fio)": ("GB/s", lambda: _own(read) / 1e9, lambda: _fio(read) / 1e9),
        "random reads (fio)": ("1000/s", lambda: _own(random) / 1e3, lambda: _fio(random) / 1e3),
        "TCP on loopback (iperf3)": ("GB/s", lambda: _sockets() / 1e9, lambda: _iperf3() / 1e9),
        "STREAM triad (likwid)": ("GB/s", _triad, _likwid),
        "MPI all-reduce (mpi4py)": ("GB/s", _mpi_own, _mpi4py),
    }


def _own(job: storage.StorageJob) -> float:
    return _stored(job, storage._with_own)


def _fio(job: storage.StorageJob) -> float:
    return _stored(job, storage._with_fio)


def _stored(job: storage.StorageJob, measure: Callable[..., object]) -> float:
    """The job on a file that is there already, as the benchmark finds it."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        file, size = Path(folder) / "file", 1 << 30
        if job.access != "write":
            with mmap.mmap(-1, 1 << 20) as block:
                block.write(os.urandom(1 << 20))
                storage._write(file, size, block)
        return measure(job, file, size, SECONDS, folder).value  # type: ignore[attr-defined]


def _sockets() -> float:
    """The exchange of a pair, one direction."""
    with listen() as server:
        found: list[float] = []
        receiver = threading.Thread(target=lambda: found.append(_received(server)))
        receiver.start()
        sender = subprocess.run(
            [sys.executable, "-c", _SENDER, str(server.getsockname()[1]), str(SECONDS)], check=True
        )  # a process of its own, as ranks are
        assert sender.returncode == 0
        receiver.join()
    return found[0]


_SENDER = """
import socket, sys
from trainworks.worker.bench.pairs import _send
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    _send(connection, float(sys.argv[2]))
    connection.recv(1)
"""


def _received(server: object) -> float:
    connection, _ = server.accept()  # type: ignore[attr-defined]
    with connection:
        return pairs._receive(connection)


def _iperf3() -> float:
    with listen() as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL)
    time.sleep(0.5)  # until it listens
    command = ["iperf3", "-c", "127.0.0.1", "-p", port, "-J", "-t", f"{SECONDS:.0f}"]
    client = subprocess.run(command, capture_output=True, text=True, check=True)
    server.wait()
    return float(json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"]) / 8


def _triad() -> float:
    return measure_triad(full=False)[0].value / 1e9


def _likwid() -> float:
    """`likwid-bench -t stream` is the triad, 24 bytes per update, with the same three arrays."""
    cpus = next(iter(numa_nodes().values()))
    size = 3 * CACHE_MULTIPLE * cache_bytes(cpus) // 10**6
    command = ["likwid-bench", "-t", "stream", "-w", f"N:{size}MB:{len(cpus)}"]
    found = re.search(
        r"MByte/s:\s+([\d.]+)", subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert found
    return float(found[1]) / 1e3


def _mpi_own() -> float:
    found = measure_mpi([LOOPBACK], full=False)
    sizes = {each.conditions["bytes"]: each.value for each in found if each.quantity is Quantity.BUS_BANDWIDTH}
    return sizes[MPI_BYTES] / 1e9


def _mpi4py() -> float:
    command = ["mpirun", "--oversubscribe", "-np", "2", sys.executable, "-c", _ALL_REDUCE, str(MPI_BYTES)]
    env = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout) / 1e9


_ALL_REDUCE = """
import sys, numpy
from mpi4py import MPI
world, size = MPI.COMM_WORLD, int(sys.argv[1])
one, other = numpy.ones(size // 4, "f"), numpy.ones(size // 4, "f")  # written: pages of zeros are one page
for times in (3, 30):
    world.Barrier()
    started = MPI.Wtime()
    for _ in range(times):
        world.Allreduce(one, other)
    seconds = world.allreduce((MPI.Wtime() - started) / times, op=MPI.MAX)
if world.rank == 0:
    print(size / seconds)
"""


def main() -> int:
    """Print the table; exit code 1 if a median ratio is off by more than a tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    for name, (unit, own, tool) in compared().items():
        if options.only in name:
            pairs_of = [_in_turns(own, tool, turn) for turn in range(options.rounds)]
            ratios = sorted(one / other for one, other in pairs_of)
            middle = statistics.median(ratios)
            medians = [statistics.median(column) for column in zip(*pairs_of, strict=True)]
            rows[name] = {"unit": unit, "own": medians[0], "tool": medians[1], "ratio": middle, "ratios": ratios}
            row = f"{name:26} {medians[0]:8.2f} {medians[1]:8.2f} {unit:7} {middle:6.3f}"
            print(f"{row}  ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(abs(row["ratio"] - 1) > 0.1 for row in rows.values()))


def _in_turns(own: Callable[[], float], tool: Callable[[], float], turn: int) -> tuple[float, float]:
    """Both, the first one first in every other round."""
    if turn % 2:
        other = tool()
        return own(), other
    return own(), tool()


if __name__ == "__main__":
    sys.exit(main())
