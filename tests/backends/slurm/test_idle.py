"""An idle job under Slurm: measured on its nodes, stopped by its own supervisor, and not put back."""

from __future__ import annotations

import sys

import pytest

from tests.backends.slurm_cluster import Cluster, Run, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
CORES = {"cpus": 1}
STOPS = {"report_after": "2s", "stop_after": "4s", "network": "1 TB"}
BUSY = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: sum(range(20000)); time.sleep(0.002)"


def runs_on(run: Run, seconds: float) -> bool:
    """Whether it still runs after so much time that was measured on its first node."""
    wait_until(lambda: run.run_dir.read_usage(0) is not None)
    began = run.run_dir.read_usage(0)
    assert began is not None
    wait_until(lambda: (now := run.run_dir.read_usage(0)) and now.monotonic_s > began.monotonic_s + seconds)
    return run.state == "RUNNING"


def test_an_idle_job_is_stopped_and_does_not_come_back(cluster: Cluster) -> None:
    run = cluster.command("sleep 300", nodes=2, restarts=3, resources=CORES, idle=STOPS).start()
    status = run.end()
    assert (status.raw, status.restarts) == ("CANCELLED", 0)
    status = run.run_dir.read_status()
    assert (status.state, status.cause) == ("STOPPED", "idle")
    assert len(run.events("idle")) == len(run.events("attempt")) == 1


def test_ranks_that_an_srun_of_their_own_has_started_count(cluster: Cluster) -> None:
    busy = f"srun --overlap --nodes=1 --ntasks=1 --mem=0 {sys.executable} -c '{BUSY}'"
    idle = STOPS | {"report_after": "5s", "stop_after": "6s"}  # a step takes seconds to start on a busy machine
    run = cluster.command(busy, nodes=1, resources=CORES, idle=idle).start()
    assert runs_on(run, 9) and not run.events("idle")


def test_accelerators_that_nobody_can_read_count_as_used(cluster: Cluster) -> None:
    """Those of the sandbox are device files that lead nowhere."""
    run = cluster.command("sleep 300", nodes=1, idle=STOPS).start()
    assert runs_on(run, 7) and not run.events("idle")
