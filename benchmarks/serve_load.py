"""100 viewers on 10,000 jobs: time to answer of every page of `trainworks serve`, which runs beside them.

Beside the times there is the processor time of the server over the number of its answers, which other programs on the
machine change less than the times.

    python -m benchmarks.serve_load [--jobs 10000] [--points 1000000] [--viewers 100] [--seconds 30] [--json FILE]
                                    [--mlflow PYTHON]

Each viewer keeps an open stream of events and opens the next page 2 seconds after the last one was complete. Every
second some job changes and the large run trains a step, so no answer stays valid for long. The load runs on the same
cores as the server. Afterwards as many viewers ask TensorBoard for the loss of the same run and, with the Python of an
environment that has MLflow, ask MLflow for lists of as many runs and for one of them, and then for the loss of one with
as many points: the requests that their pages send. A ratio of these losses is to ours under the same load, which asks
for them alone, with streams open; a ratio of another page is to ours among all of our pages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import psutil

from tests.report.conftest import RunWriter, make_plan
from trainworks.jobs.job_row import new_job_columns
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import JobStore, insertion, open_store
from trainworks.observe.trackers import event_file
from trainworks.record.sweeps.sweep import SweepDefinition, SweepTrial, sweep_dir
from trainworks.report.pages.run_tabs import TABS

_PAUSE_S = 2.0
_STATES = ("SUCCEEDED",) * 8 + ("FAILED", "STOPPED")
_OWNERS = ("ada", "grace", "edsger", "barbara", "alan")
_NUM_TRIALS = 12
_LOG_LINES = 20_000
_FILL_MLFLOW = Path(__file__).parent / "peers" / "mlflow_data.py"


@dataclass(frozen=True, slots=True)
class Page:
    """What a viewer asks for."""

    path: str
    body: str = ""
    """JSON to POST; empty for a GET."""
    like: str = ""
    """The page of `trainworks serve` that answers the same question."""

    @property
    def name(self) -> str:
        """Tells it from the others: several requests of a peer have one path."""
        return self.path + self.body


def main() -> None:
    """Measure, print a line per page, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("jobs", 10_000), ("points", 1_000_000), ("viewers", 100), ("seconds", 30)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--mlflow", metavar="PYTHON", help="the Python of an environment that has MLflow")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = own_pages(Path(folder), options)
        loss_of_large = list(result["alone"])[-1]
        ours = result["pages"] | {loss_of_large: result["alone"][loss_of_large]}
        result["tensorboard"] = of_tensorboard(Path(folder), options, loss_of_large)
        print_peer("tensorboard", result["tensorboard"], ours)
        if options.mlflow:
            result["mlflow"] = of_mlflow(Path(folder), options, loss_of_large)
            print_peer("mlflow", result["mlflow"], ours)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


def own_pages(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Fill a store, start the server, load it."""
    os.environ["TRAINWORKS_DATA"] = str(folder / "data")
    (folder / "data" / "queue").mkdir(parents=True, mode=0o700)
    store = open_store(f"sqlite:///{folder}/data/queue/jobs.db")
    small, writer = fill(store, folder, options.jobs, options.points)
    large = writer.run_dir.run_id

    def change() -> None:
        """One job, and one step of the large run."""
        with store._database.transaction(writes=True) as transaction:
            transaction.count("UPDATE changes SET number = number + 1")
        writer.steps(1)

    with server(folder) as (port, cookie, process):
        first_s = asyncio.run(first_visit(port, cookie, large))
        pages = [Page(path) for path in every_page(options.jobs, small, large)]
        slowest_s = max(asyncio.run(get(port, cookie, page))[0] for page in pages)
        used_s = processor_s(process.pid)
        times = asyncio.run(load(port, cookie, pages, options.viewers, options.seconds, change=change))
        used_s = processor_s(process.pid) - used_s
        by_itself = (pages[0], next(page for page in pages if page.path.endswith("names=loss&points=1000")))
        alone = {
            page.path: asyncio.run(load(port, cookie, [page], options.viewers, options.seconds, change=change))
            for page in by_itself
        }
    print(f"first visit of {options.points:,} points: {first_s:.2f} s")
    print(f"slowest first visit of another page: {slowest_s:.2f} s")
    first = {"page_s": first_s, "slowest_other_s": slowest_s, "processor_ms": print_cost(times, used_s)}
    found = {path: figures(took) for path, took in times.items()}
    for path, row in found.items():
        print_row(path, row)
    print_row("all pages", figures([one for took in times.values() for one in took]))
    print_row("the slowest page", max(found.values(), key=lambda row: row["p95_ms"]))
    by_itself_found = {path: figures(took[path]) for path, took in alone.items()}
    for path, row in by_itself_found.items():
        print_row(f"{path}, alone", row)
    return {"first_visits": {"all": first}, "pages": found, "alone": by_itself_found}


def every_page(num_jobs: int, small: str, large: str) -> list[str]:
    """Addresses of every page, and of what the pages of curves ask for."""
    lists = ("/", "/?state=failed", "/?text=train-77", f"/?before={num_jobs // 2}", "/?order=-started")
    tabs = [f"/runs/{large}/{tab}".removesuffix("/overview") for tab in TABS]
    trials = "&".join(f"run=trial-{number}" for number in range(1, 6))
    losses = f"/api/v1/runs/{large}/metrics?names=loss"
    return [
        *lists,
        *("/nodes", "/costs", "/costs?by=team", "/sweeps", "/sweeps/rates", "/plan", "/submit"),
        *(f"/runs/{small}", f"/runs/{small}/logs/rank-0", *tabs, f"/runs/{large}/why"),
        *(f"/compare?run={small}&run={large}", f"/compare?{trials}"),
        *(f"{losses}&points=1000", f"{losses}&first=1000&mean=100", "/api/v1/jobs"),
    ]


def processor_s(process: int) -> float:
    """Processor time that a process and its children have used, in seconds."""
    whole = psutil.Process(process)
    used = [one.cpu_times() for one in (whole, *whole.children(recursive=True))]
    return float(sum(one.user + one.system for one in used))


def of_tensorboard(folder: Path, options: argparse.Namespace, like: str) -> dict[str, dict[str, float]]:
    """The loss of the large run, from TensorBoard's server."""
    boards = folder / "boards"
    boards.mkdir()
    random.seed(7)
    with (boards / "events.out.tfevents.1.bench").open("wb") as file:
        file.write(event_file.first_event(1.0))
        for step in range(1, options.points + 1):
            file.write(event_file.scalars(step, step, {"loss": 8 / (1 + 0.01 * step) + random.random() * 0.1}))
    page = Page("/data/plugin/scalars/scalars?tag=loss&run=.", like=like)
    port = free_port()
    command = ["tensorboard.main", "--logdir", str(boards), "--port", str(port), "--load_fast=true"]
    return of_peer([sys.executable, "-m", *command], folder, port, [[page]], options)


def of_mlflow(folder: Path, options: argparse.Namespace, like: str) -> dict[str, dict[str, float]]:
    """What MLflow's pages ask its server on SQLite for: first lists and a run, then the loss of the large run."""
    store, port = str(folder / "mlflow.db"), free_port()
    fill = [options.mlflow, str(_FILL_MLFLOW), store, str(options.jobs), str(options.points)]
    experiment, run = subprocess.run(fill, check=True, capture_output=True, text=True).stdout.split()[-2:]
    api, newest = "/ajax-api/2.0/mlflow", ["attributes.start_time DESC"]
    asked = {
        "/": {"order_by": newest},
        "/?state=failed": {"order_by": newest, "filter": "attributes.status = 'FAILED'"},
        "/?text=train-77": {"order_by": newest, "filter": "attributes.run_name LIKE '%train-77%'"},
        "/?order=-started": {"order_by": ["attributes.end_time DESC"]},
    }
    lists = [
        Page(f"{api}/runs/search", json.dumps({"experiment_ids": [experiment], "max_results": 50, **one}), path)
        for path, one in asked.items()
    ]
    large = like.removeprefix("/api/v1").partition("/metrics")[0]
    history = f"{api}/metrics/get-history-bulk-interval?run_ids={run}&metric_key=loss&max_results=1000"
    command = ["-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{store}", "--port", str(port)]
    loads = [[*lists, Page(f"{api}/runs/get?run_id={run}", like=large)], [Page(history, like=like)]]
    return of_peer([options.mlflow, *command], folder, port, loads, options)


def of_peer(
    command: Sequence[str], folder: Path, port: int, loads: Sequence[list[Page]], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Figures of a peer's requests, by the page of ours that answers the same; one load after the other."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    found = {}
    try:
        until = time.monotonic() + 600
        for pages in loads:
            for page in pages:
                while not asyncio.run(has_answer(port, page)):
                    if process.poll() is not None or time.monotonic() > until:
                        raise SystemExit(f"no answer of {' '.join(command[:3])} to {page.path}")
                    time.sleep(1)
            used_s = processor_s(process.pid)
            times = asyncio.run(load(port, "", pages, options.viewers, options.seconds))
            print_cost(times, processor_s(process.pid) - used_s)
            found |= {page.like: figures(times[page.name]) for page in pages}
    finally:
        os.killpg(process.pid, 15)
        process.wait()
    return found


async def has_answer(port: int, page: Page) -> bool:
    """Whether a peer has started, and read its data."""
    try:
        return is_complete(answer := (await get(port, "", page))[1]) and len(answer) > 300
    except OSError:
        return False


def free_port() -> int:
    """A port that nothing uses now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def print_row(name: str, row: dict[str, float], more: str = "") -> None:
    """One line of the result."""
    took = f"median {row['median_ms']:6.0f} ms  p95 {row['p95_ms']:6.0f} ms"
    print(f"{name:62} {row['requests']:6} requests  {took}{more}", flush=True)


def print_cost(times: Mapping[str, Sequence[float]], used_s: float) -> float:
    """Milliseconds of a core for each answer, what the streams of events took included."""
    num_answers = sum(map(len, times.values()))
    print(f"{num_answers} answers, {used_s / num_answers * 1e3:.1f} ms of a core each", flush=True)
    return used_s / num_answers * 1e3


def print_peer(name: str, found: dict[str, dict[str, float]], pages: dict[str, dict[str, float]]) -> None:
    """The figures of a peer, with the ratio of ours to its."""
    for path, row in found.items():
        ratio = f"  trainworks / {name} {pages[path]['p95_ms'] / row['p95_ms']:.2f} of p95"
        print_row(f"{name}, like {path}", row, ratio)


def fill(store: JobStore, folder: Path, num_jobs: int, num_points: int) -> tuple[str, RunWriter]:
    """Write jobs that have ended, a run that has, and a large one that goes on; returns the name of the former."""
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
    with store._database.transaction(writes=True) as transaction:
        for table, content in (("jobs", rows), ("attempts", held)):
            for row in content:
                transaction.count(insertion(table, row), row)
    write_sweep(folder / "runs")
    small, large = (write_run(folder / "runs", points) for points in (5_000, num_points))
    small.finish()
    large.status("RUNNING", supervisor_host="elsewhere")
    return small.run_dir.run_id, large


def write_sweep(runs: Path) -> None:
    """A sweep over a learning rate, with the record of each trial."""
    place = sweep_dir(runs, "rates")
    place.path.mkdir(parents=True)
    rates = [1e-4 * 1.5**number for number in range(_NUM_TRIALS)]
    place.write_definition(
        SweepDefinition(
            name="rates",
            run_file={},
            space={"workload.optimizer.lr": rates},
            search="grid",
            num_trials=_NUM_TRIALS,
            seed=0,
            objective="loss",
            pruning=None,
        )
    )
    for number, rate in enumerate(rates):
        writer = RunWriter(runs, make_plan(), None, name="trial").launch().steps(300).finish()
        trial = SweepTrial(
            number=number,
            settings={"workload.optimizer.lr": rate},
            run_name="trial",
            run=writer.run_dir.run_id,
            state="succeeded",
            value=2.0 + abs(number - 7) / 10,
        )
        place.append(trial)


def write_run(runs: Path, num_points: int) -> RunWriter:
    """A run with a checkpoint every tenth of its steps."""
    writer = RunWriter(runs, make_plan(num_steps=2 * num_points), None).launch()
    random.seed(7)
    for _ in range(10):
        writer.steps(num_points // 10, data_s=0.002 + random.random() * 0.001).checkpoint()
    lines = (f"step {step}: loss {8 / (1 + 0.01 * step):.4f}\n" for step in range(1, _LOG_LINES + 1))
    writer.run_dir.rank_log(0).write_text("".join(lines))
    return writer


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[int, str, subprocess.Popen[str]]]:
    """The port, cookie and process of a server."""
    command = [sys.executable, "-m", "trainworks", "serve", "--listen", "127.0.0.1:0", "--runs", str(folder / "runs")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        address = process.stderr.readline()
        found = re.search(r":(\d+)/\?token=(\S+)", address)
        assert found is not None, address
        yield int(found[1]), f"trainworks-{found[1]}={found[2]}", process
    finally:
        process.terminate()
        process.wait()


async def get(port: int, cookie: str, page: Page) -> tuple[float, bytes]:
    """Seconds until the answer was complete, and the answer."""
    start_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = f"POST {page.path}" if page.body else f"GET {page.path}"
    head = f"{method} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(page.body)}\r\n" if page.body else ""
    writer.write(f"{head}\r\n{page.body}".encode())
    answer = await reader.read()
    writer.close()
    return time.perf_counter() - start_s, answer


async def open_stream(port: int, cookie: str) -> asyncio.StreamWriter:
    """A stream of events, as an open page of `trainworks serve` has one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /live HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
    await reader.readline()
    return writer


def is_complete(answer: bytes) -> bool:
    """Whether it is the page, and not the message of an error."""
    return answer.startswith(b"HTTP/1.1 200")


async def first_visit(port: int, cookie: str, run: str) -> float:
    """Seconds to the first page of a large record, which has all of its figures."""
    await get(port, cookie, Page("/"))
    first_s, _ = await get(port, cookie, Page(f"/runs/{run}"))
    return first_s


async def load(
    port: int,
    cookie: str,
    pages: list[Page],
    viewers: int,
    duration_s: float,
    *,
    change: Callable[[], None] | None = None,
) -> dict[str, list[float]]:
    """Times of every page; the time until an error counts as well, and is told.

    Raises:
        AssertionError: our own server answered with an error.

    Args:
        port: of the server.
        cookie: of the viewers.
        pages: that they open in turns.
        viewers: how many.
        duration_s: how long.
        change: what happens every second, by which open streams of events of our own server get something to tell.
    """
    times: dict[str, list[float]] = {page.name: [] for page in pages}
    failed: Counter[str] = Counter()
    end_s = time.perf_counter() + duration_s

    async def view(number: int) -> None:
        stream = await open_stream(port, cookie) if change is not None else None
        await asyncio.sleep(_PAUSE_S * number / viewers)
        index = number
        while time.perf_counter() < end_s:
            page = pages[index % len(pages)]
            seconds, answer = await get(port, cookie, page)
            assert change is None or is_complete(answer), answer[:500]
            failed[page.name] += not is_complete(answer)
            times[page.name].append(seconds)
            index += 1
            await asyncio.sleep(_PAUSE_S)
        if stream is not None:
            stream.close()

    async def keep_changing() -> None:
        while change is not None and time.perf_counter() < end_s:
            change()
            await asyncio.sleep(1.0)

    await asyncio.gather(keep_changing(), *(view(number) for number in range(viewers)))
    for path, count in (+failed).items():
        print(f"{count} of {len(times[path])} answers to {path} are errors", flush=True)
    return times


def figures(seconds: list[float]) -> dict[str, float]:
    """Number, median and 95th percentile."""
    p95 = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
    return {"requests": len(seconds), "median_ms": median(seconds) * 1e3, "p95_ms": p95 * 1e3}


if __name__ == "__main__":
    main()
