"""metrics.jsonl: one row per step; of a step that was done twice the later row counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import metrics_row
from trainworks.record.metrics import append_metrics, effective_rows, read_metrics
from trainworks.record.run_dir import RunDir

ATTEMPTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5)


def test_rows_come_back_in_the_order_in_which_they_were_written(run_dir: RunDir) -> None:
    rows = [metrics_row(step) for step in (1, 2, 1)]
    append_metrics(run_dir.metrics_file, rows[:2])
    append_metrics(run_dir.metrics_file, rows[2:])
    assert read_metrics(run_dir.metrics_file) == rows


def test_an_interval_without_steps_writes_nothing(run_dir: RunDir) -> None:
    append_metrics(run_dir.metrics_file, [])
    assert read_metrics(run_dir.metrics_file) == []


@given(ATTEMPTS)
def test_every_step_counts_once_and_in_order(attempts: list[tuple[int, int]]) -> None:
    rows = [metrics_row(start + n, attempt=a) for a, (start, length) in enumerate(attempts) for n in range(length)]
    steps = [row["step"] for row in effective_rows(rows)]
    assert steps == sorted(set(steps))


@given(ATTEMPTS)
def test_the_last_attempt_counts_in_full(attempts: list[tuple[int, int]]) -> None:
    rows = [metrics_row(start + n, attempt=a) for a, (start, length) in enumerate(attempts) for n in range(length)]
    last = [row for row in rows if row["attempt"] == len(attempts) - 1]
    assert [row for row in effective_rows(rows) if row["attempt"] == len(attempts) - 1] == last


def test_steps_that_were_lost_and_not_done_again_do_not_count() -> None:
    first = [metrics_row(step, attempt=1) for step in (1, 2, 3, 4, 5)]
    second = [metrics_row(step, attempt=2) for step in (3,)]
    assert effective_rows(first + second) == [*first[:2], *second]
