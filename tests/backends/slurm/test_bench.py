"""`trainworks bench` on the four nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster

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
