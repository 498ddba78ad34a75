"""An idle job under Slurm: measured on its nodes, stopped by its own supervisor, and not put back."""

from __future__ import annotations

import sys

import pytest

from tests.backends.slurm_cluster import Cluster, Run, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
CORES = {"cpus": 1}
STOPS = {"report_after": "2s", "stop_after": "4s", "network": "1 TB"}
BUSY = """\
import os, pathlib, time
pathlib.Path(os.environ["TRAINWORKS_RUN_DIR"], "busy").touch()
end = time.monotonic() + 600
while time.monotonic() < end: sum(range(20000)); time.sleep(0.002)"""


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
    step = f"srun --overlap --nodes=1 --ntasks=1 --mem=0 {sys.executable} -c '{BUSY}'"
    until_busy = 'until test -e "$TRAINWORKS_RUN_DIR/busy"; do :; done'  # the rank itself, which then uses nothing
    idle = STOPS | {"report_after": "12s", "stop_after": "14s"}
    run = cluster.command(f"{step} & {until_busy}; wait", nodes=1, resources=CORES, idle=idle).start()
    wait_until((run.run_dir.path / "busy").exists)
    assert runs_on(run, 17) and not run.events("idle")


def test_accelerators_that_nobody_can_read_count_as_used(cluster: Cluster) -> None:
    """Those of the sandbox are device files that lead nowhere."""
    run = cluster.command("sleep 300", nodes=1, idle=STOPS).start()
    assert runs_on(run, 7) and not run.events("idle")
