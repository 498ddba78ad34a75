"""Finished runs: what is remembered of them, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.files import append_text
from trainworks.record.measured.finished_run import FinishedRun, read_finished, remember_finished


def finished(**changes: object) -> FinishedRun:
    """A run of 2 s a step that was planned at 1.6 s."""
    fields: dict[str, object] = {
        "run": "/runs/a-1", "finished_at": 1.0, "machine": "cpu-2-cores", "software": "trainworks, torch 2.5",
        "model": "llama", "layout": "dp_replicate 2", "by_rate_s": {"products": 1.2, "scale_up": 0.4},
        "planned_s": 1.6, "low_s": 1.3, "high_s": 1.9, "learned_from": 0, "measured_s": 2.0, "spread": 0.02,
        "num_steps": 40,
    }  # fmt: skip
    return FinishedRun.model_validate(fields | changes)


def test_the_error_is_that_of_the_plan() -> None:
    assert finished().error == pytest.approx(-0.2)
    assert not finished().is_inside
    assert finished(high_s=2.1).is_inside


def test_runs_are_read_in_their_order_and_by_kind_of_machine(tmp_path: Path) -> None:
    file = tmp_path / "data" / "finished.jsonl"
    runs = [finished(run=f"/runs/{name}", machine=machine) for name, machine in (("a", "x"), ("b", "y"), ("c", "x"))]
    for run in runs:
        remember_finished(file, run)
    assert read_finished(file) == runs
    assert read_finished(file, "x") == [runs[0], runs[2]]


def test_a_run_that_finished_again_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "finished.jsonl"
    for measured_s in (2.0, 3.0):
        remember_finished(file, finished(measured_s=measured_s))
    assert [run.measured_s for run in read_finished(file)] == [3.0]


def test_torn_lines_and_those_of_other_versions_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "finished.jsonl"
    append_text(file, '{"run": "/runs/of-the-future", "unknown": 1}\n')
    remember_finished(file, finished())
    append_text(file, '{"run": "/runs/to')
    assert read_finished(file) == [finished()]


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert read_finished(tmp_path / "none.jsonl") == []
