"""The first quiet window of steps anchors a plan; a window that scatters, drifts or has outliers does not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import metrics_row
from trainworks.config.layout import ResolvedLayout
from trainworks.record.measured.step_anchor import (
    AnchoredStep,
    AnchorSearch,
    StepAnchor,
    read_anchor,
    unrest_of,
    write_anchor,
)
from trainworks.record.metrics import MetricsRow

LAYOUT = ResolvedLayout(dp_replicate=2, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=4, grad_accum_steps=1)
FOUND = AnchoredStep(first_step=6, step=20, step_s=0.1, low_s=0.095, high_s=0.105, unrest=0.01)


def search(*times_s: float, every: int | None = None, **of_steps: MetricsRow) -> AnchorSearch:
    """A search among steps of these times; `step_N` replaces fields of step N."""
    found = AnchorSearch(1, every)
    for step, seconds in enumerate(times_s, start=1):
        found.add(metrics_row(step, step_s=seconds) | of_steps.get(f"step_{step}", {}))  # type: ignore[arg-type]
    return found


def test_the_first_window_after_the_first_steps_ends_at_step_20() -> None:
    found = search(*[9.0] * 5, *[0.1] * 15).found
    assert found is not None
    assert (found.first_step, found.step, found.step_s) == (6, 20, pytest.approx(0.1))
    assert (found.low_s, found.high_s) == (pytest.approx(0.1 / math.exp(0.05)), pytest.approx(0.1 * math.exp(0.05)))


def test_a_window_lasts_a_second() -> None:
    found = search(*[0.01] * 200).found
    assert found is not None and found.step - found.first_step + 1 == pytest.approx(100, abs=1)


def test_steps_up_to_an_early_first_evaluation_do_not_count() -> None:
    evaluated: MetricsRow = {"evaluation": {"loss": 2.0}, "evaluation_s": 30.0}  # type: ignore[typeddict-item]
    found = search(*[0.3] * 30, *[0.1] * 20, every=30, step_30=evaluated).found
    assert found is not None and (found.first_step, found.step_s) == (31, pytest.approx(0.1))
    late = search(*[0.3] * 30, every=1000).found
    assert late is not None and late.step == 20


@pytest.mark.parametrize(
    ("window", "way"),
    [
        ([0.1, 0.2, 0.1, 0.2, 0.15, 0.1, 0.2] * 2 + [0.15], "scatter"),
        ([0.1] * 7 + [0.2] * 8, "drift"),
        ([0.1] * 12 + [0.3, 0.3, 0.3], "outliers"),
    ],
)
def test_an_unquiet_window_is_dropped_as_a_whole_and_named(window: list[float], way: str) -> None:
    found = search(*[0.1] * 5, *window)
    assert (found.found, found.num_windows) == (None, 1)
    assert found.reason.startswith(f"1 window without a quiet one: at best steps 6 to 20 have {way} of ")
    later = search(*[0.1] * 5, *window, *[0.1] * 15).found
    assert later is not None and later.first_step == 21


def test_the_interval_of_a_window_that_scatters_is_wider() -> None:
    found = search(*[0.1] * 5, *[0.1, 0.108, 0.094] * 5).found
    assert found is not None and 0.05 < found.unrest < 0.1
    assert found.high_s / found.step_s == pytest.approx(math.exp(1.28155 * found.unrest))


@given(st.lists(st.floats(1e-3, 10.0), min_size=4, max_size=40), st.floats(0.1, 10.0))
def test_the_unrest_of_steps_does_not_depend_on_their_size(times_s: list[float], factor: float) -> None:
    assert unrest_of(times_s)[0] == pytest.approx(unrest_of([factor * each for each in times_s])[0], abs=1e-9)


def test_a_run_that_is_too_short_says_what_a_window_needs() -> None:
    assert search(*[0.1] * 19).reason == "a window needs 15 steps and 1 s after the first steps"


def test_the_file_is_read_as_it_was_written_and_one_of_another_version_is_none(tmp_path: Path) -> None:
    file, anchor = tmp_path / "anchor.json", StepAnchor(layout=LAYOUT, planned_s=0.09, found=FOUND)
    assert read_anchor(file) is None
    write_anchor(file, anchor)
    assert (read_anchor(file), [each.name for each in tmp_path.iterdir()]) == (anchor, ["anchor.json"])
    file.write_text(anchor.model_dump_json()[:-9])
    assert read_anchor(file) is None
