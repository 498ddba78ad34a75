"""100 viewers on 10,000 jobs: time to answer of every page of `trainworks serve`, which runs beside them.

    python -m benchmarks.serve_load [--jobs 10000] [--points 1000000] [--viewers 100] [--seconds 30] [--json FILE]

Each viewer keeps an open stream of events and opens the next page 2 seconds after the last one was complete. Some job
changes every second, so no answer stays valid for long. The load runs on the same cores as the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import sqlalchemy as sa

from tests.report.conftest import RunWriter, make_plan
from trainworks.jobs.job_row import new_job_columns
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import JobStore, open_store
from trainworks.jobs.tables import attempts, jobs

_PAUSE_S = 2.0
_STATES = ("SUCCEEDED",) * 8 + ("FAILED", "STOPPED")
_OWNERS = ("ada", "grace", "edsger", "barbara", "alan")


def main() -> None:
    """Fill a store, start the server, load it, print a line per page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("jobs", 10_000), ("points", 1_000_000), ("viewers", 100), ("seconds", 30)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINWORKS_DATA"] = str(Path(folder) / "data")
        (Path(folder) / "data" / "queue").mkdir(parents=True, mode=0o700)
        store = open_store(f"sqlite:///{folder}/data/queue/jobs.db")
        small, large = fill(store, Path(folder), options.jobs, options.points)
        with server(Path(folder)) as (port, cookie):
            first_s = asyncio.run(first_visits(port, cookie, large))
            pages = [
                *("/", "/?state=failed", "/?text=train-77", f"/?before={options.jobs // 2}", "/nodes", "/costs"),
                *(f"/runs/{small}", f"/runs/{large}", f"/api/v1/runs/{large}/metrics?names=loss&points=1000"),
            ]
            times = asyncio.run(load(port, cookie, pages, store, options.viewers, options.seconds))
    result = {page: figures(took) for page, took in times.items()}
    print(f"first visit of {options.points:,} points: page {first_s[0]:.2f} s, complete {first_s[1]:.1f} s")
    for page, row in result.items():
        print(f"{page:62} {row['requests']:6} requests  median {row['median_ms']:6.0f} ms  p95 {row['p95_ms']:6.0f} ms")
    if options.json:
        options.json.write_text(json.dumps({"first_visit_s": first_s, "pages": result}, indent=2))


def fill(store: JobStore, folder: Path, num_jobs: int, num_points: int) -> tuple[str, str]:
    """Write jobs that have ended, and two runs; returns the names of the runs."""
    now, rows, held = time.time(), [], []
    for number in range(1, num_jobs + 1):
        owner, at = _OWNERS[number % len(_OWNERS)], now - (num_jobs - number) * 600.0
        spec = JobSpec(
            run_id=f"train-{number}-1",
            name=f"train-{number}",
            min_nodes=2,
            max_nodes=2,
            node=NodeResources(accelerators=8),
        )
        row = new_job_columns(
            spec, run_dir=f"{folder}/runs/{spec.run_id}", owner=owner, engine="slurm", submitted_at=at
        )
        state = _STATES[number % len(_STATES)]
        row |= {"state": state, "version": number, "uid": 1000, "handle": str(number), "attempt": 1}
        row |= {
            "id": number,
            "started_at": at + 60,
            "ended_at": at + 5000,
            "cluster": '{"usd_per_accelerator_hour": 2.5}',
        }
        rows.append(row)
        placement = json.dumps(
            [[f"node-{number % 64}", 64, list(range(8))], [f"node-{number % 64 + 1}", 64, list(range(8))]]
        )
        held.append({"job_id": number, "number": 1, "state": state, "placement": placement})
        held[-1] |= {"started_at": at + 60, "ended_at": at + 5000}
    with store._writing() as connection:
        connection.execute(sa.insert(jobs), rows)
        connection.execute(sa.insert(attempts), held)
    return write_run(folder / "runs", 5_000), write_run(folder / "runs", num_points)


def write_run(runs: Path, num_points: int) -> str:
    """A finished run with a checkpoint every tenth of its steps."""
    writer = RunWriter(runs, make_plan(num_steps=num_points), None).launch()
    random.seed(7)
    for _ in range(10):
        writer.steps(num_points // 10, data_s=0.002 + random.random() * 0.001).checkpoint()
    writer.finish()
    return writer.run_dir.run_id


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[int, str]]:
    """The port and cookie of a server in a process of its own."""
    command = [sys.executable, "-m", "trainworks", "serve", "--listen", "127.0.0.1:0", "--runs", str(folder / "runs")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        address = process.stderr.readline()
        found = re.search(r":(\d+)/\?token=(\S+)", address)
        assert found is not None, address
        yield int(found[1]), f"trainworks-{found[1]}={found[2]}"
    finally:
        process.terminate()
        process.wait()


async def get(port: int, cookie: str, path: str) -> tuple[float, bytes]:
    """Seconds until the answer was complete, and the answer."""
    start_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    return time.perf_counter() - start_s, answer


async def first_visits(port: int, cookie: str, run: str) -> tuple[float, float]:
    """Seconds to the first page of a large record, and until it has all of its figures."""
    await get(port, cookie, "/")
    start_s = time.perf_counter()
    first_s, answer = await get(port, cookie, f"/runs/{run}")
    while b"still being read" in answer:
        await asyncio.sleep(0.5)
        _, answer = await get(port, cookie, f"/runs/{run}")
    return first_s, time.perf_counter() - start_s


async def load(
    port: int, cookie: str, pages: list[str], store: JobStore, viewers: int, seconds: float
) -> dict[str, list[float]]:
    """Times of every page."""
    times: dict[str, list[float]] = {page: [] for page in pages}
    end_s = time.perf_counter() + seconds

    async def view(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /live HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
        await reader.readline()
        await asyncio.sleep(_PAUSE_S * number / viewers)
        index = number
        while time.perf_counter() < end_s:
            page = pages[index % len(pages)]
            times[page].append((await get(port, cookie, page))[0])
            index += 1
            await asyncio.sleep(_PAUSE_S)
        writer.close()

    async def change() -> None:
        while time.perf_counter() < end_s:
            with store._writing() as connection:
                connection.exec_driver_sql("UPDATE changes SET number = number + 1")
            await asyncio.sleep(1.0)

    await asyncio.gather(change(), *(view(number) for number in range(viewers)))
    return times


def figures(seconds: list[float]) -> dict[str, float]:
    """Number, median and 95th percentile."""
    p95 = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
    return {"requests": len(seconds), "median_ms": median(seconds) * 1e3, "p95_ms": p95 * 1e3}


if __name__ == "__main__":
    main()
