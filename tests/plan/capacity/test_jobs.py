"""A trace of jobs and its CSV text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.capacity.traces import job, jobs, trace, traces
from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import JobTrace, parse_trace, trace_of, trace_text

HEADER = "submit_s,accelerators,duration_s"


def same(one: JobTrace, other: JobTrace) -> bool:
    columns = ("submit_s", "accelerators", "duration_s", "priority", "deadline_s", "preemptible")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
    return equal and one.team == other.team and np.array_equal(one.checkpoint_s, other.checkpoint_s, equal_nan=True)


@given(st.lists(jobs, min_size=1, max_size=20))
def test_a_written_trace_reads_back_the_same(several) -> None:
    assert same(parse_trace(trace_text(several), name="t.csv"), trace_of(several))


@given(traces)
def test_jobs_are_in_the_order_of_submission_and_the_first_is_at_zero(some) -> None:
    assert some.submit_s[0] == 0
    assert np.all(np.diff(some.submit_s) >= 0)


@given(traces)
def test_the_mean_load_is_at_most_the_peak(some) -> None:
    assert some.work_accelerator_s / some.span_s <= some.peak() * (1 + 1e-12)


@pytest.mark.parametrize(("second_at", "peak"), [(5, 12), (10, 8), (11, 8)])
def test_the_peak_counts_jobs_that_overlap(second_at: int, peak: int) -> None:
    assert trace(job(0, 4, 10), job(second_at, 8, 10)).peak() == peak


def test_columns_may_stand_in_any_order_and_optional_cells_may_be_empty() -> None:
    text = '# of last week\nteam,duration_s,accelerators,submit_s,deadline_s\n\n"a, b",60,8,1700000000,\n'
    some = parse_trace(text, name="t.csv")
    assert (some.team, some.duration_s[0], some.accelerators[0], some.submit_s[0]) == (("a, b",), 60, 8, 0)
    assert some.deadline_s[0] == np.inf


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "t.csv:1", "the trace has no jobs"),
        (HEADER, "t.csv:1", "the trace has a header but no jobs"),
        ("submit_s,accelerators\n0,8", "t.csv:1", "no column `duration_s`"),
        ("submit,accelerators,duration_s\n0,8,60", "t.csv:1", "unknown column `submit`"),
        (f"{HEADER},submit_s\n0,8,60,1", "t.csv:1", "duplicate column `submit_s`"),
        (
            f"{HEADER}\n\n0,8,60\n0,0,60",
            "t.csv:4  accelerators",
            "invalid accelerators `0`: it must be a whole number from 1",
        ),
        (f"{HEADER}\n0,1.5,60", "t.csv:2  accelerators", "`1.5`"),
        (f"{HEADER}\n0,99999999,60", "t.csv:2  accelerators", "to 1,000,000"),
        (f"{HEADER}\n0,8,0", "t.csv:2  duration_s", "a number of seconds above 0"),
        (f"{HEADER}\n0,8,nan", "t.csv:2  duration_s", "`nan`"),
        (f"{HEADER}\n-1,8,60", "t.csv:2  submit_s", "from 0"),
        (f"{HEADER}\n,8,60", "t.csv:2  submit_s", "invalid submit_s ``"),
        (f"{HEADER}\n0,8", "t.csv:2", "2 cells, the header has 3"),
        (f"{HEADER},preemptible\n0,8,60,maybe", "t.csv:2  preemptible", "1 or 0"),
    ],
)
def test_an_error_says_value_limit_and_line(text: str, place: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_trace(text, name="t.csv")
    assert found.value.place == place
    assert message in found.value.message
