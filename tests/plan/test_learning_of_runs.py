"""Plans of this machine after finished runs on it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.record.test_finished_run import finished
from tests.report.conftest import make_plan
from trainworks.plan.cluster.learning import with_learning
from trainworks.plan.uncertainty import CALIBRATED_PRIOR, RATES, Belief, expected_step
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.resolved import Plan
from trainworks.record.step_time import StepTimeGroups


def plan(communication_s: float = 0.5) -> Plan:
    """A plan of a second of products beside communication."""
    by_rate = {"products": 1.0, "scale_up": communication_s, "memory": 0.1, "host": 0.01}
    parts = np.array([by_rate.get(rate, 0.0) for rate in RATES])
    groups = StepTimeGroups(compute_s=1.0, communication_s=communication_s, optimizer_s=0.1, data_s=0.01)
    return make_plan(step_time=groups, expected=expected_step(parts, Belief.of(CALIBRATED_PRIOR)))


def run_of(planned: Plan, factor: float, software: str = "this", spread: float = 0.0) -> FinishedRun:
    """A run that took so many times as long as planned."""
    learned = with_learning(planned, [], software=software)
    assert learned.expected is not None
    return finished(
        by_rate_s=learned.expected.by_rate_s,
        measured_s=factor * learned.step_time.total_s,
        software=software,
        spread=spread,
    )


def test_a_plan_without_finished_runs_is_unchanged_and_has_an_interval() -> None:
    learned = with_learning(plan(), [], software="this")
    assert learned.step_time == plan().step_time
    assert learned.run_time_s == plan().run_time_s
    assert learned.expected is not None
    assert learned.expected.low_s < plan().step_time.total_s < learned.expected.high_s
    assert sum(learned.expected.by_rate_s.values()) == pytest.approx(plan().step_time.total_s)


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_finished_runs_bring_the_next_plan_near_to_them_and_narrow_its_interval(factor: float) -> None:
    blind, learned = (with_learning(plan(), [run_of(plan(), factor)] * count, software="this") for count in (0, 3))
    assert abs(learned.step_time.total_s / blind.step_time.total_s / factor - 1) < 0.1
    assert blind.expected is not None and learned.expected is not None
    assert learned.expected.high_s / learned.expected.low_s < blind.expected.high_s / blind.expected.low_s
    assert learned.expected.learned_from == 3
    longer_s = learned.step_time.total_s - blind.step_time.total_s
    assert learned.run_time_s - blind.run_time_s == pytest.approx(plan().num_steps * longer_s)


def test_nothing_is_learned_twice_because_a_record_has_the_prediction_before_learning() -> None:
    once = with_learning(plan(), [run_of(plan(), 1.3)], software="this")
    assert once.expected is not None
    assert once.expected.by_rate_s == run_of(plan(), 1.3).by_rate_s


def test_slow_communication_of_one_layout_leaves_a_layout_without_it_nearly_alone() -> None:
    chatty, alone = plan(communication_s=3.0), plan(communication_s=0.0)
    learned = with_learning(alone, [run_of(chatty, 1.5)] * 2 + [run_of(alone, 1.0)] * 2, software="this")
    assert learned.step_time.total_s == pytest.approx(alone.step_time.total_s, rel=0.05)


def test_one_disturbed_run_does_not_spoil_the_next_plan() -> None:
    quiet = [run_of(plan(), 1.0)] * 3
    learned = with_learning(plan(), [*quiet, run_of(plan(), 4.0, spread=0.5)], software="this")
    assert learned.step_time.total_s == pytest.approx(plan().step_time.total_s, rel=0.03)
