"""From the benchmark to the bill by the commands alone: a node dies during the run, and the report has all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="NOT TESTED: training in pods; trainworks[train]")

from tests.backends.kubernetes.conftest import Hold, Kube
from tests.kubernetes.cluster import CLAIM, IMAGE, wait_until
from trainworks.jobs.state import parse_state
from trainworks.record.run_dir import RunDir

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, HELD, LIMIT_S = 60, 30, 400.0
FIRST = ["node1", "node2"]
RUN = f"""\
name: guides
workload:
  task: causal-lm
  model: {{architecture: llama, layers: 2, hidden: 32, heads: 2}}
  data: {{source: {{source}}, sequence_length: 32, vocabulary: 400}}
  global_batch: 4
  train_for: {STEPS} steps
checkpoint: {{every: 20 steps}}
recover: {{max_restarts: 2}}
resources: {{cpus: 1}}
cluster:
  engine: kubernetes
  nodes: 2
  processes_per_node: 1
  kubernetes:
    image: "{IMAGE}"
    volume: {CLAIM}
    patch: {{patch}}
"""
POLICY = "max_share: 25%\nreset: ''\nreboot: ''\ncheck: 'false'\n"
ALERTS = """[{"labels": {"alertname": "NodeDown", "node": "%s"}, "status": {"state": "active"},
  "annotations": {"summary": "Node %s does not answer."}, "startsAt": "2026-11-28T00:00:00Z"}]"""


class Commands:
    """`trainworks` in a folder, by a user of the cluster."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.folder = folder
        own = {"KUBECONFIG": str(kube.cluster.kubeconfig), "TRAINWORKS_DATA": str(folder / "data"), "COLUMNS": "150"}
        self._env = os.environ | own

    def __call__(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "trainworks", *words]
        done = subprocess.run(command, env=self._env, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def nodes_of_attempts(self) -> list[list[str]]:
        attempts = json.loads(self("describe", "guides-1", "--json"))["attempts"]
        return [[each["node"] for each in attempt["placement"]] for attempt in attempts]


@pytest.fixture
def one_core_each(kube: Kube) -> Iterator[None]:
    """Nodes with room for one pod, so that the two of a run are on two."""
    for number in range(1, 5):
        amounts = {"status": {"allocatable": {"cpu": "1"}}}
        kube.cluster.client.patch(f"/api/v1/nodes/node{number}/status", amounts)
    yield
    for number in range(1, 5):
        amounts = {"status": {"allocatable": {"cpu": "64"}}}
        kube.cluster.client.patch(f"/api/v1/nodes/node{number}/status", amounts)


@pytest.mark.usefixtures("one_core_each")
def test_a_run_that_loses_a_node_is_measured_repaired_and_billed(kube: Kube, tmp_path: Path) -> None:
    trainworks = Commands(kube, tmp_path)
    (tmp_path / "words.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    hold = Hold(kube.cluster.volume, HELD)
    text = RUN.replace("{source}", str(tmp_path / "words.txt")).replace("{patch}", json.dumps(hold.patch))
    (tmp_path / "run.yaml").write_text(text)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "alerts.json").write_text(ALERTS % ("node2", "node2"))
    measured = json.loads(trainworks("bench", "network", "--cluster", "run.yaml", "--nodes", "2", "--json"))
    assert [node["name"] for node in measured["nodes"]] == FIRST

    trainworks("submit", "run.yaml", "--yes")

    def is_held() -> bool:
        (state,) = {RunDir(folder).read_status().state for folder in kube.cluster.volume.glob("guides-*")} or {"QUEUED"}
        assert not parse_state(state).is_final, trainworks("report")
        return hold.is_reached()

    wait_until(is_held, LIMIT_S)
    live = json.loads(trainworks("report", "--json"))
    assert live["state"] == "RUNNING" and 0 < live["training"]["steps_done"] <= HELD
    kube.cluster.lose("node2")
    hold.release()
    repair = trainworks("repair", "kubernetes", "--policy", "policy.yaml", "--from", "alerts.json", "--yes", code=1)
    assert "out" in repair
    trainworks("wait")

    report = json.loads(trainworks("report", "--json"))
    assert (report["state"], report["training"]["steps_done"]) == ("SUCCEEDED", STEPS)
    assert len(report["attempts"]) >= 2 and report["failures"]  # an agent may start ranks again before its pod ends
    assert report["comparison"]["step_time"]["measured"] > 0
    nodes = trainworks.nodes_of_attempts()
    assert (nodes[0], nodes[-1]) == (FIRST, ["node1", "node3"])
    assert json.loads(trainworks("usage", "--json"))["held"][0]["core_hours"] > 0
    assert "ticket" in trainworks("repair", "kubernetes", "--history")
