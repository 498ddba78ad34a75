"""From the record of a run to its alerts: a run is compared with its plan in what the plan has, and like with like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import FakeClock
from tests.observe.conftest import RunningRun
from tests.observe.prometheus import judge, values
from tests.observe_why.conftest import calibration
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.api.observing.monitor import render_monitoring
from trainworks.observe.monitoring.prometheus import MonitoringSetup
from trainworks.observe.monitoring.rules import RUN_ALERTS
from trainworks.record.measured.step_anchor import AnchoredStep, StepAnchor, write_anchor
from trainworks.record.resolved import PlannedEvaluation
from trainworks.record.step_time import ExpectedStep

SLOW, LOSSES = "RunStepAbovePlan", "RunGoodputBelowPlan"
PLANNED = {
    "run_time_s": 50.0,
    "expected": ExpectedStep(low_s=0.09, high_s=0.12, by_rate_s={}, learned_from=0),
    "evaluation": PlannedEvaluation(every_steps=10, count=30, batches=20, batch_s=0.02),
}


def as_planned(run: RunningRun) -> None:
    run.launch().steps(100)


def is_slow(run: RunningRun) -> None:
    run.launch().steps(100, compute_s=0.2)


def starts_slowly(run: RunningRun) -> None:
    run.launch(start_s=900.0).steps(100)


def starts_slowly_again_and_again(run: RunningRun) -> None:
    for _ in range(3):
        run.launch(start_s=30.0).steps(100).wait(0.1).status("STOPPED")
    run.launch(start_s=30.0).steps(100)


def evaluates(run: RunningRun) -> None:
    run.launch()
    for _ in range(10):
        run.steps(9).steps(1, evaluation=2.5, evaluation_s=30.0)


def saves_as_planned(run: RunningRun) -> None:
    run.launch()
    for _ in range(10):
        run.steps(9).steps(1, checkpoint_s=0.3).checkpoint()


def saves_too_slowly(run: RunningRun) -> None:
    run.launch()
    for _ in range(10):
        run.steps(9).steps(1, checkpoint_s=3.0).checkpoint()


def calls_back(run: RunningRun) -> None:
    run.launch().steps(100, callback_s=0.3)


def restarts(run: RunningRun) -> None:
    run.launch().steps(100).fail().wait(60.0).attempt(from_step=0).steps(100)


def is_disturbed(run: RunningRun) -> None:
    run.launch().steps(100, compute_s=0.5)
    run.others(12.0, of_s=20.0)


def is_slow_among_the_programs_of_its_calibration(run: RunningRun) -> None:
    measured = calibration(2).model_copy(update={"others_share": 0.6})
    run.run_dir.write_resolved(run.run_dir.read_resolved().model_copy(update={"calibration": measured}))
    run.launch().steps(100, compute_s=0.5)
    run.others(13.0, of_s=20.0)


def is_slow_beside_programs_that_leave_it_its_cores(run: RunningRun) -> None:
    resolved = run.run_dir.read_resolved()
    host = resolved.host.model_copy(update={"num_cores": 64})
    run.run_dir.write_resolved(resolved.model_copy(update={"host": host}))
    run.launch().steps(100, compute_s=0.5)
    run.others(12.0, of_s=20.0)


def is_slow_since_it_has_left_a_disturbed_node(run: RunningRun) -> None:
    resolved = run.run_dir.read_resolved()
    processes = resolved.processes.model_copy(update={"nodes": 2, "processes_per_node": 1})
    run.run_dir.write_resolved(resolved.model_copy(update={"processes": processes}))
    run.event("submitted", nodes=2, processes_per_node=1).attempt()
    run.others(12.0, of_s=20.0, node=1)
    run.event("resized", nodes=1, places=[0]).attempt().steps(100, compute_s=0.5)
    run.others(1.0, of_s=20.0)


def anchored(run: RunningRun, step_s: float) -> RunningRun:
    """Its first quiet steps took so long."""
    plan = run.run_dir.read_resolved().plan
    assert plan is not None
    found = AnchoredStep(first_step=6, step=20, step_s=step_s, low_s=0.95 * step_s, high_s=1.05 * step_s, unrest=0.01)
    write_anchor(run.run_dir.anchor_file, StepAnchor(layout=plan.layout, planned_s=0.1, found=found))
    return run


def becomes_slower_than_at_first_within_a_pessimistic_plan(run: RunningRun) -> None:
    anchored(run.launch(), 0.1).steps(100, compute_s=0.075)


def is_as_slow_as_at_first_above_an_optimistic_plan(run: RunningRun) -> None:
    anchored(run.launch(), 0.24).steps(100, compute_s=0.2)


FIRES: dict[Callable[[RunningRun], None], set[str]] = {
    as_planned: set(),
    is_slow: {SLOW},
    starts_slowly: set(),
    starts_slowly_again_and_again: {LOSSES},
    evaluates: set(),
    saves_as_planned: set(),
    saves_too_slowly: {LOSSES},
    calls_back: {LOSSES},
    restarts: {LOSSES},
    is_disturbed: set(),
    is_slow_among_the_programs_of_its_calibration: {SLOW},
    is_slow_beside_programs_that_leave_it_its_cores: {SLOW},
    is_slow_since_it_has_left_a_disturbed_node: {SLOW},
    becomes_slower_than_at_first_within_a_pessimistic_plan: {SLOW},
    is_as_slow_as_at_first_above_an_optimistic_plan: set(),
}


def test_a_run_is_compared_with_its_plan_like_with_like(
    folder: Path, metrics: NodeMetrics, clock: FakeClock, tmp_path: Path
) -> None:
    fires: dict[str, set[str]] = {}
    for plant, alerts in FIRES.items():
        run = RunningRun(folder, **PLANNED)
        plant(run)
        run.state("RUNNING")
        fires[run.run_dir.run_id] = alerts
    clock.sleep(2.0)
    found = values(metrics.text())
    series = [
        {"series": name, "values": f"{value!r}+0x60"}
        for name, value in found.items()
        if name.startswith("trainworks_run_")
    ]
    tests = [{"eval_time": "50m", "alertname": name, "exp_alerts": expected(name, fires)} for name in (SLOW, LOSSES)]
    for name, text in render_monitoring(MonitoringSetup(page="https://pager.example/hook")).items():
        (tmp_path / name).write_text(text)
    test = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "planted_test.yml").write_text(yaml.safe_dump(content))
    judge("promtool", "test", "rules", tmp_path / "planted_test.yml")


def expected(name: str, fires: dict[str, set[str]]) -> list[dict[str, Any]]:
    """The alerts of one name, one of each run that has it."""
    (rule,) = (rule for rule in RUN_ALERTS if rule.name == name)
    return [
        {
            "exp_labels": {"severity": rule.severity, "run": run},
            "exp_annotations": {
                key: text.replace("{{ $labels.run }}", run) for key, text in rule.annotations(None).items()
            },
        }
        for run, names in fires.items()
        if name in names
    ]


def test_an_interval_in_steps_is_as_long_as_the_steps_take(
    folder: Path, metrics: NodeMetrics, clock: FakeClock
) -> None:
    """On a busy machine a run is not stalled, and its checkpoints are not overdue, because of a plan in seconds."""
    intervals = []
    for compute_s in (0.05, 2 - 0.039):
        run = RunningRun(folder, **PLANNED)
        run.launch().steps(20, compute_s=compute_s)
        run.state("RUNNING")
        clock.sleep(2.0)
        found, label = values(metrics.text()), f'{{run="{run.run_dir.run_id}"}}'
        names = ("planned_log_interval_seconds", "planned_checkpoint_interval_seconds")
        intervals.append([found[f"trainworks_run_{name}{label}"] for name in names])
    assert intervals[0] == [pytest.approx(10 * 0.1 + 0.4), pytest.approx(50 * 0.1)], "those of the plan"
    assert intervals[1] == [pytest.approx(20 * 1.4), pytest.approx(50 * 2.0)], "a step takes twenty times as long"


def test_the_slowdown_is_that_of_the_anchored_step_and_the_error_that_of_the_plan(tmp_path: Path) -> None:
    """The recorded series: a step of 240 ms, planned 100 ms, anchored on 200 ms in one of two runs."""
    (tmp_path / "recording.yml").write_text(render_monitoring(MonitoringSetup())["recording.yml"])
    seconds = {
        "training_step": {"a": 0.24, "b": 0.24},
        "planned_step": {"a": 0.1, "b": 0.1},
        "anchored_step": {"a": 0.2},
    }
    series = [
        {"series": f'trainworks_run_{name}_seconds{{run="{run}"}}', "values": f"{value}+0x10"}
        for name, values_by_run in seconds.items()
        for run, value in values_by_run.items()
    ]
    ratios = {"run:trainworks_step_slowdown:ratio": (1.2, 2.4), "run:trainworks_plan_error:ratio": (2.4, 2.4)}
    tests = [
        {
            "expr": f"round({name}, 0.001)",
            "eval_time": "5m",
            "exp_samples": [
                {"labels": f'{{run="{run}"}}', "value": value} for run, value in zip("ab", expected_values, strict=True)
            ],
        }
        for name, expected_values in ratios.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    content = {"rule_files": ["recording.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "recording_test.yml").write_text(yaml.safe_dump(content))
    judge("promtool", "test", "rules", tmp_path / "recording_test.yml")
