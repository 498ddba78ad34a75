"""Runs that differ by their seed alone: one curve, the mean, with its spread."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import trainworks
from tests.report.conftest import RunWriter, make_plan
from trainworks.api.run_handle import Run
from trainworks.report.pages.overlay import RunOverlay
from trainworks.report.runs.seeds import group_by_seed

SETTINGS = [{"workload.seed": seed, "lr": lr, "name": f"n{seed}"} for lr in (0.1, 0.2) for seed in (1, 2, 3)]


def curve(value: float) -> list[tuple[float, float]]:
    return [(step, value + step) for step in range(0, 50, 10)]


def test_runs_that_differ_by_their_seed_and_name_alone_are_one_group() -> None:
    groups = group_by_seed(SETTINGS, [curve(value) for value in range(6)])
    assert [group.runs for group in groups] == [(0, 1, 2), (3, 4, 5)]


def test_the_mean_and_the_deviation_are_those_of_the_values_at_each_step() -> None:
    values = [1.0, 2.0, 6.0]
    (group,) = group_by_seed(SETTINGS[:3], [curve(value) for value in values])
    for (step, low), (_, mean), (_, high) in zip(group.low, group.mean, group.high, strict=True):
        assert mean == pytest.approx(statistics.mean(values) + step)
        assert [high - mean, mean - low] == pytest.approx([statistics.stdev(values)] * 2)


def test_the_mean_ends_where_the_shortest_run_ends() -> None:
    (group,) = group_by_seed(SETTINGS[:2], [curve(1.0), curve(2.0)[:3]])
    assert group.mean[-1][0] == 20


def test_runs_thinned_at_other_steps_are_compared_on_straight_lines_between_them() -> None:
    (group,) = group_by_seed(SETTINGS[:2], [[(0, 0.0), (10, 10.0)], [(0, 0.0), (3, 3.0), (10, 10.0)]])
    assert group.mean == [(0.0, 0.0), (10.0, 10.0)]
    assert group.high == group.mean


def test_a_run_without_values_is_in_no_group() -> None:
    assert [group.runs for group in group_by_seed(SETTINGS[:3], [curve(1), [], curve(2)])] == [(0, 2)]


def test_runs_that_have_no_common_step_have_no_mean() -> None:
    (group,) = group_by_seed(SETTINGS[:2], [[(0, 1.0), (1, 1.0)], [(5, 1.0), (6, 1.0)]])
    assert group.mean == [] and group.final is None


def seeded(folder: Path, seed: int, slower_s: float = 0.0) -> Run:
    writer = RunWriter(folder, make_plan(), None, name="t", seed=seed).launch()
    writer.steps(50, data_s=0.002 + slower_s).finish()
    return Run(writer.run_dir)


def test_three_runs_lie_over_each_other_with_the_mean_of_their_seeds(tmp_path: Path) -> None:
    runs = [seeded(tmp_path, seed) for seed in (1, 2, 3)]
    overlay = trainworks.compare(*runs)
    assert isinstance(overlay, RunOverlay)
    text, page = str(overlay), overlay.to_html()
    assert "mean over seeds" in text
    assert "t-1, t-2, t-3" in text
    assert page.count('class="spread-0"') == 1
    assert [group["runs"] for group in overlay.to_json()["groups"]] == [["t-1", "t-2", "t-3"]]
    assert "href" not in page


def test_runs_with_other_settings_have_no_mean(tmp_path: Path) -> None:
    writers = [
        RunWriter(tmp_path, make_plan(), None, name="t", optimizer={"lr": rate}).launch() for rate in (1e-4, 2e-4, 3e-4)
    ]
    for writer in writers:
        writer.steps(20).finish()
    assert "mean over seeds" not in str(trainworks.compare(*(Run(writer.run_dir) for writer in writers)))
