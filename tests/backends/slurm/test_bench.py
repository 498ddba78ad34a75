"""`trainworks bench` on the four nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

import trainworks
from tests.backends.slurm_cluster import Cluster
from tests.fakes import SMALL_WORKLOAD
from trainworks.api.bench import accept_cluster
from trainworks.deploy.verification import ClusterVerification, NodeVerdict

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

NODES = ("node1", "node2", "node3", "node4")


def bench(cluster: Cluster, folder: Path, *arguments: str) -> dict[str, object]:
    """The JSON of a benchmark in the queue of the cluster."""
    env = cluster.env | {"TRAINWORKS_DATA": str(folder / "data")}
    command = [sys.executable, "-m", "trainworks", "bench", *arguments, "--runs", str(folder / "runs"), "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode in (0, 1), done.stderr + "".join(
        log.read_text() for log in folder.glob("runs/*/logs/*") if log.is_file()
    )
    return json.loads(done.stdout)


def test_four_nodes_measure_alone_in_pairs_and_together(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--cluster", "slurm", "--nodes", "4", "--path", str(tmp_path)]
    found = bench(cluster, tmp_path, "memory", "storage", "network", "collectives", *options)
    assert found["complete"]
    assert [node["name"] for node in found["nodes"]] == list(NODES)
    assert all(node["host"]["hostname"] == os.uname().nodename for node in found["nodes"])
    subjects = {each["subject"] for each in found["measurements"]}
    assert {f"{first} <-> {second}" for first, second in combinations(NODES, 2)} <= subjects
    # four nodes of one machine share its memory: arrays larger than a large cache do not fit four times
    too_large = [each for each in found["skipped"] if "not enough free memory" in each["reason"]]
    without = {node for each in too_large for node in each["nodes"]}
    assert {f"{node} numa0" for node in NODES if node not in without} <= subjects and without < set(NODES)
    assert {f"{node} {tmp_path}" for node in NODES} <= subjects
    assert {each["conditions"]["ranks"] for each in found["measurements"] if each["quantity"] == "busbw"} == {4}
    again = bench(cluster, tmp_path, "--resume", found["run"])
    assert again["measurements"] == found["measurements"]


STACK = """\
name: sandbox
os: Debian 12
network: 10.0.0.0/24
admin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1sG9bU0b1yk0yUu6cK0Ypt2k9fPxJmI3xW5c1e admin]
nodes:
  - {hosts: login1, address: 10.0.0.10, roles: [login, controller, database]}
  - {hosts: "node[1-4]", address: 10.0.0.101, roles: [compute],
     hardware: {sockets: 1, cores_per_socket: 2, memory: 4 GiB}}
slurm: {release: "22.05", packages: distribution, partitions: [{name: main, default: true}]}
"""
RUN = f"name: small\n{SMALL_WORKLOAD}cluster: {{engine: slurm, nodes: 2, processes_per_node: 1}}\n"


def test_an_acceptance_measures_every_compute_node_and_trains_on_those_of_the_run_file(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_says = ClusterVerification("sandbox", (NodeVerdict("node1", "clock", "pass", "0 s off", "synchronised"),))
    monkeypatch.setattr("trainworks.api.bench.bench", partial(trainworks.bench, "storage"))  # the quick part alone
    monkeypatch.setattr("os.environ", cluster.env | {"TRAINWORKS_DATA": str(tmp_path / "data")})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A sentence that a model may learn by heart. " * 400)
    (tmp_path / "stack.yaml").write_text(STACK)
    (tmp_path / "run.yaml").write_text(RUN)
    found = accept_cluster("stack.yaml", "run.yaml", lambda: as_it_says)
    assert found.bench is not None and found.bench.training is not None
    assert [record.name for record in found.bench.records] == list(NODES) and found.missing == ()
    trained = trainworks.find_run(found.bench.training.run)
    assert (trained.state, trained.resolved.processes.nodes) == ("SUCCEEDED", 2)
    assert found.bench.training.step_s and found.bench.training.planned
