"""The loop that closes by itself: a finished run is in `accuracy`, and the next plan has learned from it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainworks
from tests.record.test_finished_run import finished
from trainworks.host.folders import FINISHED_RUNS
from trainworks.record.measured.finished_run import remember_finished
from trainworks.record.resolved import Plan, ResolvedRun

RUN_FILE = """
name: small
workload:
  task: causal-lm
  model: {architecture: llama, layers: 2, hidden: 64, heads: 4}
  data: {source: python-stdlib, sequence_length: 64}
  global_batch: 4
  train_for: 24 steps
cluster: {engine: local, processes_per_node: 1}
checkpoint: {every: 1000 steps}
"""


def test_runs_are_shown_with_their_errors_by_kind_of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    for number, machine in enumerate(("cpu-2-cores", "h100", "h100")):
        remember_finished(tmp_path / FINISHED_RUNS, finished(run=f"/runs/lm-{number}", machine=machine, high_s=2.1))
    report = trainworks.accuracy()
    assert {machine: errors.n for machine, errors in report.machines.items()} == {"cpu-2-cores": 1, "h100": 2}
    assert "3 runs: error 20.0% on average, median 20.0%, bias -20.0%, 100% inside their 80 % interval" in " ".join(
        str(report).split()
    )
    assert "lm-2" in report.to_html()
    assert json.loads(json.dumps(report.to_json()))["errors"]["n"] == 3
    assert len(trainworks.accuracy("h100").runs) == 2


def test_before_the_first_run_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    assert "no run has finished yet" in str(trainworks.accuracy())
    assert trainworks.accuracy().to_json()["errors"] is None


@pytest.mark.skipif(find_spec("torch") is None, reason="NOT TESTED: a real run; torch is not installed")
def test_a_finished_run_teaches_the_next_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    run_file = tmp_path / "run.yaml"
    run_file.write_text(RUN_FILE)
    before = planned(trainworks.plan(run_file, runs=tmp_path))
    trainworks.run(run_file, folder=tmp_path / "runs")
    (run,) = trainworks.accuracy().runs
    assert run.planned_s == pytest.approx(before.step_time.total_s)
    assert run.num_steps >= 18
    learned = trainworks.plan(run_file, runs=tmp_path)
    after, without = planned(learned), planned(trainworks.plan(run_file, runs=tmp_path, without_learning=True))
    assert after.expected is not None and after.expected.learned_from == 1
    assert "learned from 1 run here" in str(learned)
    assert abs(after.step_time.total_s - run.measured_s) <= abs(before.step_time.total_s - run.measured_s)
    assert without.step_time == before.step_time


def planned(result: object) -> Plan:
    assert isinstance(result, ResolvedRun) and result.plan is not None
    return result.plan
