"""The interval of `checkpoint.every: auto` follows what saving costs in the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.reliability.checkpoint_interval import optimal_interval_s
from trainworks.record.events.training import CheckpointIntervalEvent
from trainworks.recover.memory_checkpoints import daly_interval_s
from trainworks.worker.checkpoint.interval import MeasuredInterval

Changes = list[CheckpointIntervalEvent]


@pytest.fixture
def changes() -> Changes:
    """What was noted."""
    return []


@pytest.fixture
def interval(changes: Changes) -> MeasuredInterval:
    """Planned for a stall of one second and a failure per hour."""
    planned_s = optimal_interval_s(stall_s=1.0, mttf_s=3600.0)
    return MeasuredInterval(planned_s, mttf_s=3600.0, step_s=0.5, note=changes.append)


@given(st.floats(1e-3, 1e4), st.floats(1.0, 1e7), st.floats(0, 1e4), st.floats(0, 100))
def test_ranks_and_planner_have_one_formula(stall_s: float, mttf_s: float, write_s: float, shortest_s: float) -> None:
    costs = {"stall_s": stall_s, "mttf_s": mttf_s, "write_s": write_s, "shortest_s": shortest_s}
    assert daly_interval_s(**costs) == pytest.approx(optimal_interval_s(**costs))


def test_a_plan_that_was_right_is_kept(interval: MeasuredInterval, changes: Changes) -> None:
    before = interval.seconds
    interval.take(1.1, 2.0)
    assert (interval.seconds, changes) == (before, [])


@pytest.mark.parametrize(("stall_s", "longer"), [(0.1, False), (9.0, True)])
def test_cheap_saves_come_more_often_and_dear_ones_less(interval, changes, stall_s: float, longer: bool) -> None:
    before = interval.seconds
    interval.take(stall_s, 0.0)
    assert interval.seconds == pytest.approx(optimal_interval_s(stall_s=stall_s, mttf_s=3600.0))
    assert (interval.seconds > before) is longer
    costs = {"stall_s": stall_s, "write_s": 0.0, "mttf_s": 3600.0}
    assert changes == [{"kind": "checkpoint_interval", "before_s": before, "after_s": interval.seconds, **costs}]


def test_one_slow_save_among_five_changes_nothing(interval: MeasuredInterval, changes: Changes) -> None:
    for stall_s in (1.0, 1.0, 60.0, 1.0, 1.0):
        interval.take(stall_s, 0.0)
    assert changes == []


def test_the_interval_leaves_time_for_the_write(interval: MeasuredInterval) -> None:
    interval.take(1.0, 500.0)
    assert interval.seconds == pytest.approx(499.0)


def test_a_save_that_costs_nothing_leaves_a_step(interval: MeasuredInterval) -> None:
    interval.take(0.0, 0.0)
    assert interval.seconds >= 0.5
