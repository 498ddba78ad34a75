"""The loop that closes by itself: a finished run is in `accuracy`, and the next plan has learned from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

import trainworks
from tests.record.test_finished_run import finished
from tests.report.conftest import RunWriter, make_plan
from trainworks.errors import ArgumentError
from trainworks.host.folders import FINISHED_RUNS
from trainworks.plan.score import AccuracyReport
from trainworks.record.measured.finished_run import remember_finished
from trainworks.record.resolved import ExpectedStep, Plan, ResolvedRun
from trainworks.record.status import RunStatus

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
    text = " ".join(str(report).split())
    assert "20% off in the median over 3 runs, 3 of them inside their 80 % interval" in text
    assert "all machines 3 20.0% 20.0% -20.0% 100%" in text
    assert "lm-2" in report.to_html()
    assert json.loads(json.dumps(report.to_json()))["errors"]["n"] == 3
    assert len(trainworks.accuracy("h100").runs) == 2


def test_before_the_first_run_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    assert "no run has finished yet" in str(trainworks.accuracy())
    assert trainworks.accuracy().to_json()["errors"] is None


INTERVAL = ExpectedStep(low_s=0.08, high_s=0.15, by_rate_s={}, learned_from=0)


def team(errors: Sequence[float], **changes: object) -> AccuracyReport:
    """Runs of 2 s a step whose plans were off by so much."""
    return AccuracyReport(
        [
            finished(run=f"/runs/lm-{number}", planned_s=2.0 * (1 + error), low_s=1.5, high_s=2.5, **changes)
            for number, error in enumerate(errors)
        ]
    )


@pytest.mark.parametrize(
    ("errors", "changes", "action", "signal"),
    [
        ([0.02] * 8, {}, "Rely on these plans", "go"),
        ([0.02] * 4, {}, "Wait for more runs before you rely on these plans", "check"),
        ([0.3] * 8, {}, "Leave a margin of 30% on these plans", "check"),
        ([0.02] * 8, {"high_s": 1.9}, "Leave a margin of 2% on these plans", "check"),
    ],
    ids=["close", "few", "far", "intervals that do not hold"],
)
def test_the_verdict_says_whether_plans_can_be_relied_on(
    errors: list[float], changes: dict[str, object], action: str, signal: str
) -> None:
    report = team(errors)
    verdict = AccuracyReport([run.model_copy(update=changes) for run in report.runs]).verdict
    assert verdict is not None
    assert (verdict.action, verdict.signal) == (action, signal)


def test_the_verdict_names_the_run_farthest_from_its_plan() -> None:
    verdict = team([0.02, -0.5, 0.6, 0.01, 0.0]).verdict  # half as long is farther than 1.6 times as long
    assert verdict is not None and verdict.unless == "the plan of lm-1 was 50% too short"


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_of_the_terms_add_up_to_the_bias(seed: int) -> None:
    draw = Random(seed)
    runs = []
    for number in range(7):
        terms = {name: (draw.uniform(0.1, 1), draw.uniform(0.1, 1)) for name in ("compute", "data", "other")}
        planned_s, measured_s = (sum(pair[side] for pair in terms.values()) for side in (0, 1))
        runs.append(finished(run=f"/runs/{number}", terms_s=terms, planned_s=planned_s, measured_s=measured_s))
    report = AccuracyReport(runs)
    assert report.errors is not None
    assert sum(term.part for term in report.terms.values()) == pytest.approx(report.errors.bias)


def test_runs_of_earlier_versions_have_no_terms() -> None:
    report = team([0.1])
    assert report.terms == {}
    assert "By term" not in str(report)


def test_the_newest_run_is_the_first_of_the_list() -> None:
    text = str(team([0.1, 0.2, 0.3])).partition("newest first")[2]
    assert text.index("lm-2") < text.index("lm-1") < text.index("lm-0")


def test_a_picture_has_a_dot_and_an_interval_per_run() -> None:
    page = team([0.1, 0.2, 0.9]).to_html()
    assert page.count('class="trial-line"') == 3
    assert (page.count('class="dot front"'), page.count('class="dot chosen"')) == (3, 0)


def test_the_runs_of_a_team_are_those_of_its_folders_and_stores(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = RunWriter(tmp_path / "runs", make_plan(expected=INTERVAL), None, name="t").launch()
        writer.steps(40).finish()
        writer.run_dir.write_status(RunStatus(state="SUCCEEDED", exit_code=0, updated_at=1e9 + number))
    RunWriter(tmp_path / "runs", make_plan(expected=INTERVAL), None, name="running").launch().steps(40)
    store = tmp_path / "ada.jsonl"
    remember_finished(store, finished(run="/runs/of-ada", finished_at=5.0))
    remember_finished(store, finished(run=str((tmp_path / "runs/t-1").resolve()), finished_at=6.0))
    report = trainworks.accuracy(sources=[store, tmp_path / "runs"])
    assert [Path(run.run).name for run in report.runs] == ["of-ada", "t-1", "t-2"]
    assert set(report.terms) == {"compute", "communication", "optimizer", "data", "other"}
    assert report.runs[1].measured_s == pytest.approx(sum(measured for _, measured in report.runs[1].terms_s.values()))
    assert report.runs[1].planned_s == pytest.approx(sum(planned for planned, _ in report.runs[1].terms_s.values()))


def test_a_source_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="does not exist"):
        trainworks.accuracy(sources=[tmp_path / "nowhere"])


def test_a_folder_without_finished_runs_has_none(tmp_path: Path) -> None:
    assert "no run of these sources has finished" in str(trainworks.accuracy(sources=[tmp_path]))


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
