"""Training over two pods on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="NOT TESTED: training in pods; trainworks[train]")

from tests.backends.kubernetes.conftest import Kube, Run
from tests.fakes import effective_rows, on_engine
from tests.kubernetes.cluster import wait_until
from tests.worker.harness import make_run, write_corpus
from trainworks.api.launching.prepared_run import NODE_PLANNER
from trainworks.record.manifest import complete_checkpoints

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

START_S = 300.0
"""Four processes import torch, on whatever cores there are."""


def training(kube: Kube, tmp_path: Path, steps: int) -> Run:
    """One rank in each of two pods, not submitted yet."""
    changes = {"workload__train_for": f"{steps} steps", "checkpoint__every": "40 steps", "recover__max_restarts": 1}
    ranks = {"cluster__nodes": 2, "cluster__processes_per_node": 1, "job__grace": "30 s"}
    tiny = make_run(tmp_path / "runs", write_corpus(tmp_path / "text"), tmp_path / "cache", **changes, **ranks)
    return Run(kube.cluster, tiny.run_dir, tiny.run_dir.read_resolved())


def test_training_outlives_a_pod_and_saves_a_checkpoint_when_it_is_stopped(kube: Kube, tmp_path: Path) -> None:
    steps = 100_000  # the stop comes before the end, however late
    run = training(kube, tmp_path, steps).start(START_S)
    wait_until(lambda: complete_checkpoints(run.there), START_S)
    run.delete_pod(1)

    def goes_on() -> bool:
        attempts = run.events("attempt")
        newest = max((manifest.step for manifest, _ in complete_checkpoints(run.there)), default=0)
        return len(attempts) > 1 and newest > attempts[-1]["resumed_from_step"]

    wait_until(goes_on, START_S)
    run.backend.stop(run.handle)
    seen = run.reaches("STOPPED", START_S)
    assert seen.restarts == 1
    assert "node_lost" in [event["cause"] for event in run.events("state")]
    resumed = [event["resumed_from_step"] for event in run.events("attempt")]
    assert resumed[0] == 0 and resumed[-1] >= 40
    assert run.there.read_status().state == "STOPPED"
    stopped = run.events("stopped")[0]["step"]
    assert run.there.checkpoint(stopped).is_dir() and stopped < steps
    recorded = [row["step"] for row in effective_rows(run.there.metrics_file)]
    assert recorded == sorted(recorded) and recorded[-1] == stopped


def test_a_workload_is_planned_and_measured_in_its_pods(kube: Kube, tmp_path: Path) -> None:
    ranks = {"cluster__nodes": 2, "cluster__processes_per_node": 1, "workload__train_for": "3 steps"}
    tiny = make_run(tmp_path / "runs", write_corpus(tmp_path / "text"), tmp_path / "cache", **ranks)
    unplanned = on_engine(tiny.run_dir.read_resolved(), "kubernetes").model_copy(
        update={"plan": None, "calibration": None, "planner": (NODE_PLANNER,)}
    )
    run = Run(kube.cluster, tiny.run_dir, unplanned).submit()
    run.reaches("SUCCEEDED", START_S)
    resolved = run.there.read_resolved()
    assert resolved.plan is not None and resolved.calibration is not None
    assert resolved.calibration.num_ranks == 2
