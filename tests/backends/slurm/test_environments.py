"""Packages of a run under a real Slurm: built on its nodes, the same for all of them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster
from tests.environments.wheels import make_wheel, write_lock
from trainworks.record.run_environment import ResolvedEnvironment

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_every_node_of_a_job_runs_with_the_packages_of_its_lock_file(cluster: Cluster, tmp_path: Path) -> None:
    _, digest = make_wheel(tmp_path / "wheels", "ours", "2.0")
    text = write_lock(tmp_path, ("ours", "2.0", digest)).read_text()
    command = "python -c \"import ours, os; print(ours.__version__, os.environ['VIRTUAL_ENV'])\""
    run = cluster.command(command, nodes=2, resources={"cpus": 1})
    wanted = ResolvedEnvironment(
        kind="requirements",
        name="requirements.lock",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    run.run_dir.write_resolved(run.run_dir.read_resolved().model_copy(update={"environment": wanted}))
    run.submit().end()
    assert run.state == "SUCCEEDED"
    built = run.run_dir.read_node_environments()
    assert [run.rank_log(rank) for rank in range(2)] == [f"2.0 {built[node].folder}\n" for node in range(2)]
    assert len({facts.key for facts in built.values()}) == 1
