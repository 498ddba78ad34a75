"""The parts of a step."""

from __future__ import annotations

import pytest
import torch

from trainworks.record.run_dir import RunDir
from trainworks.worker.telemetry import Telemetry
from trainworks.worker.timing import StepMarks


@pytest.mark.parametrize("free", [None, 6.0])
def test_the_parts_of_a_step_add_up_and_none_is_negative(free: float | None) -> None:
    marks = StepMarks(1.0)
    marks.data, marks.gradients, marks.free, marks.optimizer, marks.end = 2.0, 5.0, free, 8.0, 9.0
    marks.waits = [(3.0, 3.5)]
    total, *parts = marks.durations()
    assert total == sum(parts) == 8.0
    assert parts == [1.0, 2.5, 0.5, 8.0 - (free or 5.0), 1.0 + ((free or 5.0) - 5.0), 0.0]
    marks.called = 8.75  # callbacks are no part of the step, and do not count as its checkpoint
    total, *parts = marks.durations()
    assert total == sum(parts) == 7.25
    assert parts[4] == 0.25 + ((free or 5.0) - 5.0)


@pytest.mark.parametrize(("elapsed_s", "called_s"), [(9.0, 2.0), (7.0, 1.0), (5.0, 0.0)])
def test_a_callback_counts_with_the_time_that_the_steps_leave(
    run_dir: RunDir, elapsed_s: float, called_s: float
) -> None:
    """An accelerator computes while the host is in a callback: no second is in both."""
    telemetry = Telemetry(run_dir, attempt=1, tokens_per_step=1, num_stages=1, device=torch.device("cpu"))
    for step in (1, 2):
        marks, none = StepMarks(0.0), torch.zeros(())
        marks.end, marks.callbacks_s = 3.0, [0.25, 0.75]
        telemetry.add(step, none, none, none, 0.0, marks)
    parts, callbacks = telemetry._durations(elapsed_s)
    assert parts[:, -1].tolist() == callbacks.sum(1).tolist() == [called_s / 2] * 2
    assert parts[:, 0].tolist() == [3.0, 3.0]
