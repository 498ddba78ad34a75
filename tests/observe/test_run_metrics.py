"""Metrics of runs: the record says what happened, the plan what should have; dead runs disappear."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest

from tests.fakes import LAUNCH_AT, FakeClock
from tests.observe.conftest import RunningRun
from tests.observe.prometheus import judge, values
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.api.observing.watched_runs import RunWatcher
from trainworks.config.run_file import RunFile
from trainworks.record.usage import NodeUsage


def read(metrics: NodeMetrics, clock: FakeClock, after_s: float = 2.0) -> dict[str, float]:
    """The metrics some time later, by series."""
    clock.sleep(after_s)
    return values(metrics.text())


def of(run: str, found: dict[str, float]) -> dict[str, float]:
    """Metrics of one run without labels, by the end of their names."""
    label = f'{{run="{run}"}}'
    starts = "trainworks_run_"
    return {name.removeprefix(starts).removesuffix(label): value for name, value in found.items() if label in name}


def test_what_is_measured_stands_beside_what_was_planned(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    run = of("stdlib-lm-1", read(metrics, clock))
    assert (run["step"], run["planned_steps"]) == (80, 300)
    assert run["step_seconds"] == pytest.approx(0.119)
    assert run["planned_step_seconds"] == pytest.approx(0.1)
    assert run["tokens_per_second"] == pytest.approx(8192 / 0.119)
    assert run["mfu_ratio"] == pytest.approx(38e6 * 8192 / 0.119 / (2 * 8e12))
    assert run["expected_finish_timestamp_seconds"] == pytest.approx(running.at + 220 * 0.119)


def test_the_parts_of_a_step_add_up(running: RunningRun, metrics: NodeMetrics, clock: FakeClock) -> None:
    found = read(metrics, clock)
    for prefix in ("", "planned_"):
        parts = [value for name, value in found.items() if name.startswith(f"trainworks_run_{prefix}step_part_seconds")]
        assert sum(parts) == pytest.approx(of("stdlib-lm-1", found)[f"{prefix}step_seconds"])


def test_a_wait_for_data_is_a_share_of_the_step_without_its_checkpoint_and_evaluation(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    waits = {"data_s": 0.3, "compute_s": 0.5, "communication_s": 0.1, "optimizer_s": 0.1}
    running.attempt().steps(10, **waits, checkpoint_s=2.0, evaluation_s=30.0, callback_s=5.0)
    assert of("stdlib-lm-1", read(metrics, clock))["data_wait_ratio"] == pytest.approx(0.3)


def test_a_run_without_a_step_waits_for_no_data_yet(folder: Path, metrics: NodeMetrics, clock: FakeClock) -> None:
    RunningRun(folder).launch().state("RUNNING")
    assert "data_wait_ratio" not in of("stdlib-lm-1", read(metrics, clock))


def test_prometheus_has_no_complaint(running: RunningRun, metrics: NodeMetrics) -> None:
    judge("promtool", "check", "metrics", text=metrics.text())


def test_what_is_not_saved_counts_from_the_newest_checkpoint_or_a_later_start(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    saved_at = LAUNCH_AT + 3 + 60 * 0.119
    assert of("stdlib-lm-1", read(metrics, clock))["unsaved_since_timestamp_seconds"] == pytest.approx(saved_at)
    running.fail().wait(5).attempt(from_step=60)
    restarted_at = running.at
    assert "unsaved_since_timestamp_seconds" not in of("stdlib-lm-1", read(metrics, clock))
    running.steps(1)
    run = of("stdlib-lm-1", read(metrics, clock))
    assert run["unsaved_since_timestamp_seconds"] == pytest.approx(restarted_at)
    assert (run["attempts_total"], run["failures_total"]) == (2, 1)


def test_all_ranks_that_fail_together_are_one_failure(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    running.fail(rendezvous="a").fail(rendezvous="a", rank=0)
    assert of("stdlib-lm-1", read(metrics, clock))["failures_total"] == 1


def test_a_loss_that_is_not_a_number_is_shown_as_such(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    running.steps(1, loss=math.nan)
    assert math.isnan(of("stdlib-lm-1", read(metrics, clock))["loss"])


def test_cost_and_deadline_come_from_the_run_file(running: RunningRun, metrics: NodeMetrics, clock: FakeClock) -> None:
    resolved = running.run_dir.read_resolved()
    goals = {"goal": {"deadline": "1h", "budget": "50 USD"}, "cluster": {"usd_per_accelerator_hour": 2.0}}
    run_file = RunFile.model_validate(resolved.run_file.model_dump(exclude_unset=True) | goals)
    processes = resolved.processes.model_copy(update={"device": "cuda"})
    running.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file, "processes": processes}))
    run = of("stdlib-lm-1", read(metrics, clock, after_s=1800))
    assert run["cost_usd"] == pytest.approx(2.0 * 2 * 0.5)
    assert (run["budget_usd"], run["deadline_timestamp_seconds"]) == (50, LAUNCH_AT + 3600)


def test_a_run_without_goal_and_price_has_neither_deadline_nor_cost(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    assert not {"cost_usd", "budget_usd", "deadline_timestamp_seconds"} & of("stdlib-lm-1", read(metrics, clock)).keys()


def test_energy_is_what_the_agents_have_measured(running: RunningRun, metrics: NodeMetrics, clock: FakeClock) -> None:
    assert "energy_joules" not in of("stdlib-lm-1", read(metrics, clock))
    usage = {"agent_pid": 1, "monotonic_s": 1, "cpu_s": 1, "io_bytes": 1, "network_bytes": 1, "disk_waits": 0}
    running.run_dir.write_usage(0, NodeUsage.model_validate({**usage, "accelerator_s": 1, "energy_j": 5e6}))
    assert of("stdlib-lm-1", read(metrics, clock))["energy_joules"] == 5e6


def test_an_ended_run_keeps_its_metrics_for_ten_minutes(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    running.steps(220).finish()
    ended = 'trainworks_run_state{run="stdlib-lm-1",state="SUCCEEDED"}'
    assert ended in read(metrics, clock)
    assert not of("stdlib-lm-1", read(metrics, clock, after_s=700))
    running.launch().state("RUNNING")
    assert of("stdlib-lm-1", read(metrics, clock))["attempts_total"] == 2


def test_the_loss_of_a_supervisor_is_seen_though_the_state_is_old(
    running: RunningRun, metrics: NodeMetrics, clock: FakeClock
) -> None:
    running.status("RUNNING", supervisor_pid=os.getpid(), supervisor_started_at=1.0)
    clock.sleep(1000)
    os.utime(running.run_dir.metrics_file, (clock.now(), clock.now()))
    lost = 'trainworks_run_state{run="stdlib-lm-1",state="LOST"}'
    assert lost in read(metrics, clock)
    for file in (running.run_dir.metrics_file, running.run_dir.events_file):
        os.utime(file, (LAUNCH_AT, LAUNCH_AT))
    assert lost not in read(metrics, clock)


@pytest.fixture
def other(tmp_path: Path) -> RunningRun:
    """A run in another folder, with the name of the first one here."""
    return RunningRun(tmp_path / "others").launch().steps(5).state("RUNNING")


def test_the_end_of_a_run_in_another_folder_is_seen_though_its_job_is_no_longer_live(
    other: RunningRun, folder: Path, clock: FakeClock
) -> None:
    live = [str(other.run_dir.path)]
    watcher = RunWatcher(folder, lambda: live, clock)
    watcher.facts()
    other.status("FAILED")
    live.clear()
    assert [run.state for run in watcher.facts()] == ["FAILED"]


def test_a_run_that_was_never_launched_or_waits_has_no_metrics(
    folder: Path, metrics: NodeMetrics, clock: FakeClock
) -> None:
    RunningRun(folder)
    RunningRun(folder).state("QUEUED")
    assert not [name for name in read(metrics, clock) if name.startswith("trainworks_run_")]


def test_a_removed_run_disappears(running: RunningRun, metrics: NodeMetrics, clock: FakeClock) -> None:
    assert of("stdlib-lm-1", read(metrics, clock))
    shutil.rmtree(running.run_dir.path)
    assert not of("stdlib-lm-1", read(metrics, clock))


def test_a_record_that_cannot_be_read_is_counted_and_hides_no_other(
    running: RunningRun, folder: Path, metrics: NodeMetrics, clock: FakeClock
) -> None:
    damaged = RunningRun(folder).state("RUNNING")
    damaged.run_dir.resolved_file.write_text("{}")
    found = read(metrics, clock)
    assert found["trainworks_exporter_runs_unreadable"] == 1
    assert of("stdlib-lm-1", found)


def test_runs_above_the_limit_are_left_out_and_counted(folder: Path, clock: FakeClock) -> None:
    for age in range(3):
        RunningRun(folder).wait(-age).state("RUNNING")
    watcher = RunWatcher(folder, list, clock, most_runs=2)
    assert [run.run for run in watcher.facts()] == ["stdlib-lm-1", "stdlib-lm-2"]
    assert watcher.left_out == 1


def test_a_run_keeps_its_name_while_another_of_that_name_comes_and_goes(
    running: RunningRun, other: RunningRun, folder: Path, clock: FakeClock
) -> None:
    watcher = RunWatcher(folder, lambda: [str(other.run_dir.path)], clock)

    def labels() -> dict[str, str]:
        return {run.run: str(run.state) for run in watcher.facts()}

    running.state("QUEUED")
    assert list(labels()) == ["stdlib-lm-1"]
    other.status("FAILED")
    running.wait(60).state("RUNNING")
    assert labels() == {"stdlib-lm-1": "FAILED", str(running.run_dir.path): "RUNNING"}


def test_two_runs_of_one_name_in_different_folders_are_two_series(
    running: RunningRun, other: RunningRun, folder: Path, clock: FakeClock
) -> None:
    watcher = RunWatcher(folder, lambda: [str(other.run_dir.path)], clock)
    assert len({run.run for run in watcher.facts()}) == 2
