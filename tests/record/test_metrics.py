"""metrics.jsonl: columns of one row per step; of a step that was done twice the later row counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import metrics_row
from trainworks.record.metric_columns import COLUMNS, MetricColumns, read_columns, thinned
from trainworks.record.metrics import MetricsRow, append_metrics
from trainworks.record.run_dir import RunDir

ATTEMPTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5)


def test_rows_come_back_in_the_order_in_which_they_were_written(run_dir: RunDir) -> None:
    rows = [metrics_row(step, loss=step / 7, memory_peak_bytes=2**40 + step, overflow=step / 16) for step in (1, 2, 1)]
    append_metrics(run_dir.metrics_file, rows[:2])
    append_metrics(run_dir.metrics_file, rows[2:])
    steps = read_columns(run_dir.metrics_file).steps()
    assert {name: steps[name].tolist() for name in COLUMNS} == {name: [row[name] for row in rows] for name in COLUMNS}  # type: ignore[literal-required]


def test_an_interval_without_steps_writes_nothing(run_dir: RunDir) -> None:
    append_metrics(run_dir.metrics_file, [])
    assert len(read_columns(run_dir.metrics_file)) == 0


def test_a_look_reads_what_was_added_and_leaves_earlier_steps_as_they_were(run_dir: RunDir) -> None:
    columns = MetricColumns(run_dir.metrics_file)
    columns.look()
    assert len(columns) == 0
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(1, 4)])
    columns.look()
    before = columns.steps()
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(4, 40)])
    assert run_dir.metrics_file.stat().st_size > 5000
    columns.look(chunk_bytes=1000)
    assert columns.steps()["step"].tolist() == list(range(1, 40))
    assert before["step"].tolist() == [1, 2, 3]


def test_a_file_that_was_written_anew_is_read_from_its_beginning(run_dir: RunDir) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(step) for step in range(1, 9)])
    columns = read_columns(run_dir.metrics_file)
    run_dir.metrics_file.write_text("")
    append_metrics(run_dir.metrics_file, [metrics_row(1)])
    columns.look()
    assert columns.steps()["step"].tolist() == [1]


@pytest.mark.parametrize(
    "torn",
    [
        '{"step": 2, "t": 1.',
        "null",
        "[1]",
        "{}",
        '{"step": "two", "t": 0}',
        '{"step": null, "t": 0}',
        "\x00\x00",
        "[" * 999,
    ],
)
def test_a_line_that_is_no_row_is_left_out(run_dir: RunDir, torn: str) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(1)])
    with run_dir.metrics_file.open("a") as file:
        file.write(torn + "\n")
    append_metrics(run_dir.metrics_file, [metrics_row(3)])
    assert read_columns(run_dir.metrics_file).steps()["step"].tolist() == [1, 3]


@pytest.mark.parametrize("value", [None, "high", [], {}, 10**400])
def test_a_value_that_is_no_number_is_nan(run_dir: RunDir, value: Any) -> None:
    append_metrics(run_dir.metrics_file, [metrics_row(1), metrics_row(2, loss=value), metrics_row(3, loss=math.inf)])
    first, second, third = read_columns(run_dir.metrics_file).steps()["loss"].tolist()
    assert first == 4.0 and math.isnan(second) and not math.isfinite(third)


def test_skipped_steps_and_slow_ranks_are_columns(run_dir: RunDir) -> None:
    slowest = {"rank": 3, "extra_s": 0.25, "extra_data_s": -0.5}
    reasons = [{}, {"skipped": "spike"}, {"skipped": "loss_scale"}, {"skipped": "of a later version"}]
    rows = [metrics_row(step, **reason) for step, reason in enumerate(reasons, start=1)]
    append_metrics(run_dir.metrics_file, [*rows, metrics_row(5, slowest=slowest)])
    steps = read_columns(run_dir.metrics_file).steps()
    assert steps.is_skipped().tolist() == [False, True, True, True, False]
    assert steps.is_fault().tolist() == [False, True, False, False, False]
    assert steps.is_skipped("loss_scale").tolist() == [False, False, True, False, False]
    assert [steps[f"slowest_{name}"][-1] for name in slowest] == list(slowest.values())
    assert math.isnan(steps["slowest_rank"][0])


def recorded(folder: Path, attempts: list[tuple[int, int]]) -> tuple[list[MetricsRow], list[bool]]:
    """Rows of attempts of (first step, length), and which of them are lost."""
    rows = [metrics_row(start + n, attempt=a) for a, (start, length) in enumerate(attempts) for n in range(length)]
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    append_metrics(folder / "metrics.jsonl", rows)
    return rows, read_columns(folder / "metrics.jsonl").steps().is_lost().tolist()


@given(attempts=ATTEMPTS)
def test_every_step_counts_once_and_in_order(tmp_path_factory: pytest.TempPathFactory, attempts: Any) -> None:
    rows, lost = recorded(tmp_path_factory.getbasetemp(), attempts)
    steps = [row["step"] for row, is_lost in zip(rows, lost, strict=True) if not is_lost]
    assert steps == sorted(set(steps))


@given(attempts=ATTEMPTS)
def test_the_last_attempt_counts_in_full(tmp_path_factory: pytest.TempPathFactory, attempts: Any) -> None:
    rows, lost = recorded(tmp_path_factory.getbasetemp(), attempts)
    last = len(attempts) - 1
    assert not any(is_lost for row, is_lost in zip(rows, lost, strict=True) if row["attempt"] == last)


def test_steps_that_were_lost_and_not_done_again_do_not_count(tmp_path: Path) -> None:
    assert recorded(tmp_path, [(1, 5), (3, 1)])[1] == [False, False, True, True, True, False]


def test_a_rollback_undoes_steps_before_they_are_done_again(tmp_path: Path) -> None:
    rows, _ = recorded(tmp_path, [(1, 5)])
    steps = read_columns(tmp_path / "metrics.jsonl").steps()
    assert steps.is_lost([(rows[-1]["t"], 3)]).tolist() == [False, False, False, True, True]


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=200))
def test_thinning_keeps_ends_extremes_and_order(values: list[float]) -> None:
    kept = thinned(values, 20).tolist()
    finite = [index for index, value in enumerate(values) if math.isfinite(value)]
    assert len(kept) <= 20
    assert kept == sorted(set(kept))
    if finite:
        assert (kept[0], kept[-1]) == (finite[0], finite[-1])
        assert {max, min} == {
            end for end in (max, min) if end(values[i] for i in kept) == end(values[i] for i in finite)
        }
