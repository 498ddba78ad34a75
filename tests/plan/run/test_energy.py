"""Energy of the accelerators of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.conftest import make_plan
from trainworks.plan.cost.energy import run_energy
from trainworks.record.step_time import StepTimeGroups

seconds = st.floats(1e-4, 10)


@given(seconds, seconds, st.floats(0, 1000), st.floats(10, 1e6))
def test_energy_is_between_idle_and_full_power_for_the_whole_run(
    compute_s: float, communication_s: float, rest_s: float, power_w: float
) -> None:
    step = StepTimeGroups(compute_s=compute_s, communication_s=communication_s, optimizer_s=0.0, data_s=0.0)
    plan = make_plan(step_time=step, run_time_s=300 * step.total_s + rest_s)
    energy = run_energy(plan, power_w)
    assert energy.low is not None and energy.high is not None
    assert 0.1 * power_w * plan.run_time_s <= energy.low * 1.0001
    assert energy.low <= energy.value <= energy.high
    assert energy.high <= power_w * plan.run_time_s * 1.0001


def test_waiting_takes_less_than_computing_for_the_same_time() -> None:
    computes, waits = (
        StepTimeGroups(compute_s=compute_s, communication_s=0.1 - compute_s, optimizer_s=0, data_s=0)
        for compute_s in (0.1, 0.05)
    )
    used = [run_energy(make_plan(step_time=step), 1400.0).value for step in (computes, waits)]
    assert used[1] / used[0] == pytest.approx((0.87 * 15 + 0.5 * 15 + 0.15 * 10) / (0.87 * 30 + 0.15 * 10))


def test_energy_names_its_assumptions_and_their_sources() -> None:
    energy = run_energy(make_plan(), 1400.0)
    assert "ICLR 2025" in str(energy.inputs["c"].source)
    assert energy.formula is not None
