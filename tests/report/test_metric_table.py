"""Metrics of a run as columns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.report.conftest import RunStart, RunWriter
from trainworks.report.artifacts import read_metric_table


def test_a_step_that_was_done_again_counts_once(finished_run: RunWriter) -> None:
    table = read_metric_table(finished_run.run_dir)
    assert table["step"].tolist() == list(range(1, 301))
    assert table["attempt"][[0, 99, 100, 299]].tolist() == [1, 1, 2, 3]
    assert {len(column) for column in table.values()} == {300}


def test_pandas_takes_a_table_as_it_is(finished_run: RunWriter) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(read_metric_table(finished_run.run_dir))
    assert frame.shape == (300, len(read_metric_table(finished_run.run_dir)))
    assert frame["loss"].iloc[-1] == pytest.approx(2.2 + 6.1 * 0.985**300)


def test_held_out_and_own_figures_stand_at_their_steps(start_run: RunStart) -> None:
    run = start_run().launch().steps(2).steps(1, evaluation={"loss": 1.5, "figures": {"wiki/loss": 1.25}}).steps(1)
    run.steps(1, figures={"reward": 0.5})
    table = read_metric_table(run.run_dir)
    assert np.flatnonzero(np.isfinite(table["eval_loss"])).tolist() == [2]
    assert (table["wiki/loss"][2], table["reward"][4]) == (1.25, 0.5)
    assert math.isnan(table["reward"][0])


def test_a_column_without_a_value_is_left_out(start_run: RunStart) -> None:
    table = read_metric_table(start_run().launch().steps(2, memory=None).run_dir)
    assert "memory_peak_bytes" not in table
    assert "eval_loss" not in table


def test_a_run_without_steps_has_an_empty_table(start_run: RunStart) -> None:
    table = read_metric_table(start_run(command="make").run_dir)
    assert {name: column.tolist() for name, column in table.items()} == {"step": [], "loss": []}
    assert repr(table) == "<MetricTable: 0 steps>"


def test_a_table_shows_its_ends_and_names_its_other_columns(finished_run: RunWriter) -> None:
    lines = str(read_metric_table(finished_run.run_dir)).splitlines()
    assert [line.split()[0] for line in lines[:12]] == ["step", *"12345", "...", "296", "297", "298", "299", "300"]
    assert lines[12].startswith("Also: ")
