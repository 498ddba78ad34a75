"""How fast the store answers with 100,000 jobs in it: what `ps`, `describe` and the dispatcher ask.

    python benchmarks/job_store.py
    python benchmarks/job_store.py --url postgresql+psycopg://user@host/database

Each figure is a median over rounds, in a process that is connected already. 99 % of the jobs have ended, as in a store
that is some years old. Jobs are written straight into the table; `benchmarks/scheduling.py` measures submissions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, insertion, open_store

JOBS = 100_000
NAMES = 200
OWNERS = 20
LIVE = [state for state in JobState if not state.is_final]


def main() -> int:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--url", help="of an empty database; a SQLite file when left out")
    parser.add_argument("--json", type=Path, metavar="FILE")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        url = wanted.url or f"sqlite:///{folder}/jobs.db"
        store = open_store(url, keep_connection=True)
        fill(store, wanted.jobs)
        figures = {name: milliseconds(ask, wanted.rounds) for name, ask in questions(store, wanted.jobs).items()}
        store.close()
    print(f"{wanted.jobs:,} jobs in {url.partition(':')[0]}, median of {wanted.rounds}")
    for name, value in figures.items():
        print(f"  {name:44}{value:8.2f} ms")
    if wanted.json:
        wanted.json.write_text(json.dumps({"ms": figures, "jobs": wanted.jobs, "command": sys.argv}, indent=2) + "\n")
    return 0


def fill(store: JobStore, count: int) -> None:
    """So many jobs."""
    ended = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)
    spec = JobSpec(run_id="", name="", min_nodes=1, max_nodes=1, node=NodeResources(cores=1.0))
    rows = [
        {
            "run_id": f"run{number % NAMES}-{number}",
            "run_dir": f"/runs/run{number % NAMES}-{number}",
            "name": f"run{number % NAMES}",
            "owner": f"user{number % OWNERS}",
            "engine": "local",
            "ticket": json.dumps(asdict(spec)),
            "priority": 50,
            "held": False,
            "state": str(JobState.QUEUED if number % 100 == 0 else ended[number % 3]),
            "attempt": 1,
            "restarts": 0,
            "reachable": True,
            "submitted_at": float(number),
            "changed_at": float(number),
            "version": number + 1,
        }
        for number in range(count)
    ]
    statement = insertion("jobs", rows[0])
    with store._database.transaction(writes=True) as transaction:
        for row in rows:
            transaction.count(statement, row)
        transaction.count("UPDATE changes SET number = :count", {"count": count})


def questions(store: JobStore, count: int) -> dict[str, Callable[[], object]]:
    """What the commands ask."""
    return {
        "ps: 50 newest that wait or run": lambda: store.search(states=LIVE, limit=50),
        "ps --all: 50 newest": lambda: store.search(limit=50),
        "ps --all --name: 50 newest of one name": lambda: store.search(name="run7", limit=50),
        "ps --all --mine: 50 newest of one owner": lambda: store.search(owner="user7", limit=50),
        "ps --state failed: 50 newest": lambda: store.search(states=[JobState.FAILED], limit=50),
        "page on: 50 before the middle": lambda: store.search(limit=50, before=count // 2),
        "describe by run": lambda: store.find(f"run7-{count // 2 // NAMES * NAMES + 7}"),
        "describe by number": lambda: store.find(str(count // 2)),
        "counts by state": store.counts,
        "dispatcher: what has changed since, nothing": lambda: store.changed(count),
        "dispatcher, when it starts: all that wait or run": lambda: store.search(states=LIVE, engine="local"),
    }


def milliseconds(ask: Callable[[], object], rounds: int) -> float:
    """Median of so many; the first one, which plans the query, left out."""
    ask()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        ask()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
