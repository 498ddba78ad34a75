"""An out-of-memory failure in the report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.shapes import calibration
from trainworks.report.runs.outcome import finding, remedy_lines

MEMORY = {
    "limited_by": "accelerator",
    "peak_bytes": 900_000_000,
    "held_bytes": 880_000_000,
    "requested_bytes": 33_554_432,
    "free_bytes": 20_000_000,
    "reserved_bytes": 890_000_000,
    "weights_bytes": 24_000_000,
    "gradients_bytes": 24_000_000,
    "optimizer_bytes": 48_000_000,
}


@pytest.fixture
def failed(start_run):
    """A function that makes a report of a run whose rank 1 ran out of memory in step 41."""

    def fail(cause="oom", **memory: Any):
        run = start_run()
        resolved = run.run_dir.read_resolved()
        run.run_dir.write_resolved(resolved.model_copy(update={"calibration": calibration()}))
        run.launch().steps(40)
        run.fail(cause=cause, message="out of memory", memory=MEMORY | memory, step=41, phase="forward and backward")
        return run.status("FAILED", cause=cause, message="out of memory").report()

    return fail


def test_it_is_explained_against_the_plan_with_three_priced_remedies(failed, golden):
    explained = failed().out_of_memory
    golden("out_of_memory.txt", "\n".join([finding(explained), *remedy_lines(explained)]) + "\n")


def test_terms_that_the_rank_could_count_are_measured_and_the_rest_is_one_sum(failed):
    measured = {term.name: term.measured_bytes for term in failed().out_of_memory.terms}
    assert measured["optimizer"] == 48_000_000
    assert measured["activations"] is None
    assert measured["everything else"] == 880_000_000 + 33_554_432 - 96_000_000


def test_a_term_that_outgrew_its_prediction_is_named(failed):
    explained = failed(optimizer_bytes=200_000_000).out_of_memory
    assert (explained.outgrown, explained.outgrown_bytes) == ("optimizer", 152_000_000)


def test_no_term_is_blamed_where_less_was_held_than_planned(failed):
    assert failed().out_of_memory.outgrown is None


def test_a_rank_that_the_kernel_killed_has_a_peak_alone(failed):
    nothing = dict.fromkeys(set(MEMORY) - {"limited_by", "peak_bytes"})
    sentence = finding(failed(**nothing | {"limited_by": "cgroup"}).out_of_memory)
    assert sentence.startswith("rank 1 held up to 900 MB in forward and backward of step 41, and the cgroup was full")


def test_other_failures_are_not_explained_so(failed):
    assert failed(cause="killed").out_of_memory is None


def test_a_record_without_a_measurement_is_read_all_the_same(failed):
    assert failed(limited_by=None).out_of_memory is None


def test_the_page_has_a_section_of_it(failed):
    assert "<h2>Out of memory</h2>" in failed().to_html()
