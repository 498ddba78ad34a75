"""A real Slurm whose node2 is bad: as its prolog, as its HealthCheckProgram, and by `job.health`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.backends.slurm_cluster import Cluster, wait_until
from tests.gpus.machine import GpuMachine
from trainworks.api.launching.prepared_run import NODE_CHECK

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

FOUND = "0 GPUs answer, 8 expected"


@contextmanager
def configured(cluster: Cluster, reader: str, *lines: str) -> Iterator[None]:
    """A Slurm whose node2 is checked by a script; `{script}` in a line of slurm.conf is its path."""
    script, conf = cluster.folder / f"{reader}.sh", cluster.sandbox.paths.conf
    script.write_text(
        '#!/bin/sh\n[ "$SLURMD_NODENAME" = node2 ] || exit 0\n'
        f"export SLURM_CONF={conf}\n"
        f'exec {sys.executable} -m trainworks health --as {reader} --expect "8x H100-SXM-80GB"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    before = conf.read_text(encoding="utf-8")
    conf.write_text(before + "".join(f"{line.format(script=script)}\n" for line in lines), encoding="utf-8")
    cluster.call("scontrol", "reconfigure")
    try:
        yield
    finally:  # a check that still runs would drain the node once more
        nothing = script.with_suffix(".new")
        nothing.write_text("#!/bin/sh\n", encoding="utf-8")
        nothing.chmod(0o755)
        nothing.replace(script)
        conf.write_text(before, encoding="utf-8")
        cluster.call("scontrol", "reconfigure")
        wait_until(lambda: not any(_is_check(each, script) for each in psutil.process_iter()))
        cluster.command("true").backend.undrain("node2")


def _is_check(process: psutil.Process, script: Path) -> bool:
    """Whether it is the shell that has opened the script, or what that becomes."""
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return str(script) in words or words[2:6] == ["trainworks", "health", "--as", script.stem]


def test_a_node_that_fails_the_prolog_is_drained_and_its_job_runs_elsewhere(cluster: Cluster) -> None:
    with configured(cluster, "prolog", "Prolog={script}", "PrologFlags=Alloc"):
        run = cluster.command("true", nodes=3).submit()
        assert (run.end().nodes, run.state) == (("node1", "node3", "node4"), "SUCCEEDED")
        assert run.backend.nodes()[1].state == "drained"


def test_a_periodic_check_drains_a_bad_node_with_its_reason_before_a_job_lands_there(cluster: Cluster) -> None:
    lines = ("HealthCheckProgram={script}", "HealthCheckInterval=2", "HealthCheckNodeState=ANY")
    run = cluster.command("true", nodes=3)
    with configured(cluster, "healthcheck", *lines):
        wait_until(lambda: run.backend.nodes()[1].state == "drained")
        node = run.backend.nodes()[1]
        assert node.reason is not None
        assert node.reason.startswith("trainworks: gpu-count: ")
        assert FOUND in node.reason
        assert run.submit().end().nodes == ("node1", "node3", "node4")


def report(node: str, problem: str = "") -> str:
    """What `trainworks health --json` writes on a node."""
    check = {"check": "gpu-count", "verdict": "failed", "problems": [problem]}
    return json.dumps({"node": node, "checks": [check] if problem else [], "facts": {"driver": "580.95.05"}})


def test_a_fleet_drains_the_nodes_that_fail_when_asked(cluster: Cluster, tmp_path: Path) -> None:
    for node in ("node1", "node2", "node3", "node4"):
        (tmp_path / f"{node}.json").write_text(report(node, FOUND if node == "node2" else ""))
    run = cluster.command("true", nodes=3)
    command = [sys.executable, "-m", "trainworks", "health", "--nodes", *map(str, sorted(tmp_path.glob("*.json")))]
    try:
        assert subprocess.run(command, env=cluster.env, capture_output=True, check=False).returncode == 1
        assert run.backend.nodes()[1].state == "free"
        drains = [*command, "--drain", "slurm"]
        said = [subprocess.run(drains, env=cluster.env, capture_output=True, text=True, check=False) for _ in "12"]
        assert [each.stderr for each in said] == ["node2 takes no more jobs\n", ""]
        node = run.backend.nodes()[1]
        assert (node.state, node.reason) == ("drained", f"trainworks: gpu-count: {FOUND}")
        assert run.submit().end().nodes == ("node1", "node3", "node4")
    finally:
        run.backend.undrain("node2")


def test_a_node_that_the_job_refuses_is_excluded_and_the_job_gets_others(cluster: Cluster) -> None:
    check = '[ "$SLURMD_NODENAME" != node2 ] || { echo "fan 3 is broken"; exit 1; }'
    run = cluster.command("echo on $SLURMD_NODENAME", nodes=3, health=check).submit()
    assert (run.end().nodes, run.state) == (("node1", "node3", "node4"), "SUCCEEDED")
    (failed,) = run.events("nodes_unhealthy")
    assert failed["message"] == "1 node failed the health check: node2: fan 3 is broken (exit code 1)"
    waits = [event["message"] for event in run.events("state") if event["state"] == "QUEUED"]
    assert waits == [f"{failed['message']}; the job waits for other nodes"]
    assert all("node2" not in run.rank_log(rank) for rank in range(3))
    assert len(run.events("node_check")) == 6


def test_a_node_that_has_become_unfit_before_a_restart_is_left_out(cluster: Cluster) -> None:
    failed = cluster.folder / "failed-once"
    check = f'[ "$SLURMD_NODENAME" != node2 ] || [ ! -e {failed} ] || {{ echo "fan 3 is broken"; exit 1; }}'
    program = f"[ -e {failed} ] || {{ touch {failed}; exit 9; }}; echo on $SLURMD_NODENAME"
    run = cluster.command(program, nodes=3, restarts=1, health=check).submit()
    assert (run.end().nodes, run.state) == (("node1", "node3", "node4"), "SUCCEEDED")
    (unfit,) = run.events("nodes_unhealthy")
    assert unfit["message"] == "1 node failed the health check: node2: fan 3 is broken (exit code 1)"
    assert run.events("restart") == []


def test_a_node_whose_gpu_breaks_under_a_job_is_left_out(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = GpuMachine(tmp_path / "gpus", 8, monkeypatch)
    for node in range(1, 5):
        machine.describe(*({} for _ in range(8)), host=f"node{node}")
    for name in ("TRAINWORKS_TEST_GPUS", "PYTHONPATH", "PATH"):
        monkeypatch.setitem(cluster.env, name, os.environ[name])
    breaks = f"[ $SLURMD_NODENAME != node2 ] || {{ {machine.breaking(5, 8, 'node2')}; exit 1; }}"
    run = cluster.command(f"{breaks}; echo on $SLURMD_NODENAME", nodes=3, restarts=1)
    looks = run.run_dir.read_resolved().model_copy(update={"accelerator_check": (NODE_CHECK,)})
    run.run_dir.write_resolved(looks)
    assert (run.submit().end().nodes, run.state) == (("node1", "node3", "node4"), "SUCCEEDED")
    (left,) = run.events("nodes_unhealthy")
    problem = "gpu-ecc-errors: GPU 5 has 3 uncorrected errors"
    assert left["message"] == f"1 node failed the health check: node2: {problem}"
    assert [event["action"] for event in run.events("decision")] == ["restart without the bad accelerator"]


def test_a_job_whose_nodes_all_fail_waits_for_others_with_the_reason(cluster: Cluster) -> None:
    run = cluster.command("true", nodes=4, health="echo too hot; exit 3").submit()
    wait_until(lambda: run.state == "QUEUED")
    assert "4 nodes failed the health check: node1: too hot (exit code 3)" in (run.run_dir.read_status().message or "")


def test_a_job_that_must_not_be_requeued_fails_with_the_reason(cluster: Cluster) -> None:
    run = cluster.command("true", nodes=1, slurm={"options": ["--no-requeue"]}, health="false").submit()
    run.end()
    assert (run.state, run.run_dir.read_status().cause) == ("FAILED", "node_unhealthy")
