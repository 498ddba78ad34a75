"""kill -9 of `trainworks submit` at any moment, under a real Slurm: no job is lost, and none runs twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster, wait_until
from tests.lanes import amount
from trainworks.backends.remote import follow_all
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SUBMITS = amount(test=4, test_all=4, nightly=67)
"""For each of the moments: it has made a run directory, has said that it waits, calls sbatch."""
RUN_FILE = """name: job
run: echo $TRAINWORKS_RUN_DIR >> {book}
num_nodes: 1
resources: {{cpus: 1}}
cluster: slurm
"""


def submit(folder: Path, env: dict[str, str], moment: str, after_s: float) -> str:
    """What `submit` has printed until it was killed, so long after a file appeared in the run directory."""
    command = [sys.executable, "-m", "trainworks", "submit", "job.yaml"]
    before = set(folder.glob(f"runs/*/{moment}"))
    started = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while started.poll() is None and set(folder.glob(f"runs/*/{moment}")) == before:
        time.sleep(0.001)
    try:
        printed, _ = started.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        os.kill(started.pid, signal.SIGKILL)
        printed, _ = started.communicate()
    return printed.decode().strip()


def looked(store: JobStore, backend: SlurmBackend) -> bool:
    """Look; whether all jobs have ended."""
    follow_all(store, SystemClock(), lambda run_dir: backend)
    return all(row.state.is_final for row in store.search())


@pytest.mark.timeout(amount(test=600, test_all=600, nightly=3600))
def test_whoever_is_killed_while_submitting_loses_no_job_and_doubles_none(cluster: Cluster) -> None:
    folder = cluster.folder / "killed"
    folder.mkdir()
    book = folder / "book"
    (folder / "job.yaml").write_text(RUN_FILE.format(book=book), encoding="utf-8")
    env = cluster.env | {"TRAINWORKS_DATA": str(folder / "data")}
    chance = random.Random(7)
    printed = [
        submit(folder, env, moment, chance.uniform(0.0, latest_s))
        for moment, latest_s in (("resolved.json", 0.2), ("status.json", 0.1), (".submit.lock", 0.05))
        for _ in range(SUBMITS)
    ]
    store = open_store(f"sqlite:///{folder / 'data' / 'queue' / 'jobs.db'}")
    backend = SlurmBackend(Slurm(), client=SlurmClient(env=cluster.env))
    wait_until(lambda: looked(store, backend))
    rows = store.search()
    began = Counter(Path(line).name for line in book.read_text(encoding="utf-8").split())
    assert {row.state for row in rows} == {JobState.SUCCEEDED}
    assert began == {row.run_id: 1 for row in rows}
    assert {run_id for run_id in printed if run_id} <= began.keys()
