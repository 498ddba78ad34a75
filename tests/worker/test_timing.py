"""The parts of a step."""

from __future__ import annotations

import pytest

from trainworks.worker.timing import StepMarks


@pytest.mark.parametrize("free", [None, 6.0])
def test_the_parts_of_a_step_add_up_and_none_is_negative(free: float | None) -> None:
    marks = StepMarks(1.0)
    marks.data, marks.gradients, marks.free, marks.optimizer, marks.end = 2.0, 5.0, free, 8.0, 9.0
    marks.waits = [(3.0, 3.5)]
    total, *parts = marks.durations()
    assert total == sum(parts) == 8.0
    assert parts == [1.0, 2.5, 0.5, 8.0 - (free or 5.0), 1.0 + ((free or 5.0) - 5.0), 0.0]
