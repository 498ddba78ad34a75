"""The simulated run: its laws, and its agreement with the formulas where their assumptions hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from trainworks.errors import UsageError
from trainworks.plan.reliability.goodput import waiting_share
from trainworks.plan.reliability.scenario import CAUSES, Scenario, SimulationOutcome
from trainworks.plan.reliability.simulation import simulate, simulate_all

DAY_S = 86400.0
QUIET = Scenario(num_nodes=256, work_s=10 * DAY_S, interval_s=1800.0, save_s=60.0)
RELIABLE_RECOVERY = {"detect_s": 100.0, "restart_s": 500.0}
FAILING = replace(QUIET, node_mttf_s=40 * DAY_S, repair_s=DAY_S, spares=8, **RELIABLE_RECOVERY)
EVERYTHING = replace(
    FAILING,
    other_mttf_s=3 * DAY_S,
    write_s=120.0,
    swap_s=60.0,
    replicas=64,
    min_replicas=60,
    slow_mttf_s=300 * DAY_S,
    slow_speed=0.9,
    slow_found_s=DAY_S / 2,
    capacity_life_s=2 * DAY_S,
    capacity_wait_s=3600.0,
    queue_s=7200.0,
    work_spread=0.1,
    spares=2,
)


def daly(scenario: Scenario, mttf_s: float, recovery_s: float) -> float:
    """Expected productive share."""
    cycle = scenario.interval_s + scenario.save_s
    return scenario.interval_s / (mttf_s * math.exp(recovery_s / mttf_s) * math.expm1(cycle / mttf_s))


def assert_agrees(outcome: SimulationOutcome, expected: float, *, sigmas: float = 4.0) -> None:
    """The mean goodput of the trials is the expected one, within what chance leaves open."""
    each = outcome.work_s / outcome.held_s
    error = float(each.std(ddof=1)) / math.sqrt(len(each))
    assert abs(float(each.mean()) - expected) < sigmas * error


def test_without_failures_only_checkpoints_take_time() -> None:
    outcome = simulate(QUIET, trials=3)
    assert outcome.runtime_goodput == pytest.approx(1800 / 1860, rel=1e-12)
    assert set(outcome.failures) == {0}


@given(st.floats(100, 1e6), st.floats(10, 1e4), st.floats(0, 100))
def test_without_failures_a_run_saves_after_every_interval_and_at_its_end(
    work_s: float, interval_s: float, save_s: float
) -> None:
    wall = simulate(Scenario(num_nodes=1, work_s=work_s, interval_s=interval_s, save_s=save_s), trials=1).wall_s[0]
    saves = math.ceil(work_s / interval_s - 1e-9)
    assert wall == pytest.approx(work_s + saves * save_s)


@pytest.mark.parametrize("scenario", [QUIET, FAILING, EVERYTHING], ids=["quiet", "failing", "everything"])
def test_every_second_is_work_or_has_a_cause(scenario: Scenario) -> None:
    outcome = simulate(scenario, trials=50)
    assert tuple(outcome.badput_s) == CAUSES
    assert all((seconds > -1e-6).all() for seconds in outcome.badput_s.values())
    assert sum(outcome.shares().values()) == pytest.approx(1.0)


def test_the_clock_of_a_trial_is_the_sum_of_its_parts() -> None:
    ticks: list[float] = []
    outcome = simulate(EVERYTHING, trials=20, progress=ticks.append)
    assert outcome.wall_s == pytest.approx(outcome.work_s + sum(outcome.badput_s.values()), rel=1e-12)
    assert ticks == sorted(ticks) or max(ticks) <= 1


def test_everything_that_can_happen_happens() -> None:
    outcome = simulate(replace(EVERYTHING, replicas=2, min_replicas=1, spares=0), trials=200)
    assert all(outcome.badput_s[cause].sum() > 0 for cause in CAUSES if cause != "waiting for nodes")
    assert outcome.preemptions.sum() > 0


def test_the_same_seed_gives_the_same_runs_and_another_one_does_not() -> None:
    first, again, other = (simulate(EVERYTHING, trials=20, seed=seed).wall_s for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(("mttf_days", "save_s"), [(40, 60.0), (400, 60.0), (10, 300.0)])
def test_it_agrees_with_daly(mttf_days: float, save_s: float) -> None:
    scenario = replace(FAILING, node_mttf_s=mttf_days * DAY_S, save_s=save_s, repair_s=0.0, work_s=100 * DAY_S)
    assert_agrees(simulate(scenario, trials=300), daly(scenario, mttf_days * DAY_S / 256, 600.0))


@pytest.mark.parametrize("spares", [0, 2, 8])
def test_the_wait_for_nodes_agrees_with_erlang(spares: int) -> None:
    scenario = replace(FAILING, spares=spares, work_s=200 * DAY_S, interval_s=300.0)
    outcome = simulate(scenario, trials=100)
    assert outcome.shares()["waiting for nodes"] == pytest.approx(waiting_share(256 / 40, spares), rel=0.05, abs=0.002)


@settings(max_examples=examples(15))
@given(st.integers(0, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_more_spares_are_never_later(spares: int, more: int, seed: int) -> None:
    few = simulate(replace(FAILING, spares=spares), trials=20, seed=seed)
    many = simulate(replace(FAILING, spares=spares + more), trials=20, seed=seed)
    assert (many.wall_s <= few.wall_s * (1 + 1e-9)).all()


@pytest.mark.parametrize("field", ["node_mttf_s", "other_mttf_s", "slow_mttf_s", "capacity_life_s"])
def test_what_happens_more_often_costs_more(field: str) -> None:
    rare = simulate(EVERYTHING, trials=200)
    often = simulate(replace(EVERYTHING, **{field: getattr(EVERYTHING, field) / 3}), trials=200)
    assert often.wall_s.mean() > rare.wall_s.mean()


def test_a_long_enough_notice_loses_no_work() -> None:
    spot = replace(QUIET, capacity_life_s=DAY_S / 4, restart_s=300.0)
    warned = simulate(replace(spot, notice_s=60.0), trials=50)
    assert warned.badput_s["lost work"].sum() == 0
    assert simulate(replace(spot, notice_s=59.0), trials=50).badput_s["lost work"].sum() > 0


def test_waiting_for_capacity_is_not_paid() -> None:
    outcome = simulate(replace(QUIET, capacity_life_s=DAY_S, capacity_wait_s=DAY_S, queue_s=DAY_S), trials=100)
    waited = outcome.badput_s["preempted"] + DAY_S
    assert outcome.held_s == pytest.approx(outcome.wall_s - waited)
    assert outcome.ettr < outcome.runtime_goodput


def test_a_failure_during_the_write_loses_the_interval_before_too() -> None:
    sync = simulate(replace(FAILING, repair_s=0.0), trials=200)
    late = simulate(replace(FAILING, repair_s=0.0, write_s=1800.0), trials=200)
    lost = [run.badput_s["lost work"].sum() / run.failures.sum() for run in (sync, late)]
    after_a_cycle = math.exp(-(600 + 1860) / (40 * DAY_S / 256))  # before that the newest checkpoint was restored
    assert lost[1] - lost[0] == pytest.approx(1800 * 1800 / 1860 * after_a_cycle, rel=0.05)


def test_half_an_interval_is_lost_per_failure() -> None:
    rare = replace(FAILING, node_mttf_s=4000 * DAY_S, repair_s=0.0, work_s=2000 * DAY_S, restart_s=0.0)
    outcome = simulate(rare, trials=20)
    lost = outcome.badput_s["lost work"].sum() / outcome.failures.sum()
    assert lost == pytest.approx((1800 * 1800 / 2 + 60 * 1800) / 1860, rel=0.1)


def test_a_straggler_slows_the_job_until_it_is_found() -> None:
    slow = replace(QUIET, slow_mttf_s=QUIET.num_nodes * DAY_S, slow_speed=0.5, slow_found_s=DAY_S / 10, spares=1)
    outcome = simulate(slow, trials=200)
    per_straggler = 0.5 * DAY_S / 10 * (1800 / 1860)
    found = outcome.badput_s["straggling"].mean()
    stragglers = outcome.wall_s.mean() / (DAY_S + DAY_S / 10)
    assert found == pytest.approx(per_straggler * stragglers, rel=0.1)
    assert outcome.badput_s["lost work"].sum() == 0


def test_an_elastic_job_goes_on_where_another_one_waits() -> None:
    waits = replace(FAILING, spares=0)
    elastic = replace(waits, replicas=256, min_replicas=200)
    assert simulate(elastic, trials=20).wall_s.mean() < simulate(waits, trials=20).wall_s.mean() / 2
    assert simulate(elastic, trials=20).badput_s["fewer nodes"].sum() > 0


def test_whole_nodes_of_a_replica_that_left_are_spares_for_the_others() -> None:
    small = replace(FAILING, spares=0, replicas=256, min_replicas=255)
    large = replace(small, replicas=16, min_replicas=15)  # 16 nodes each: fifteen spares once one has left
    waited = [simulate(scenario, trials=20).shares()["waiting for nodes"] for scenario in (small, large)]
    assert waited[0] > 0.3
    assert waited[1] < 0.02


def test_a_replica_that_comes_back_does_not_shorten_a_recovery() -> None:
    often = replace(FAILING, spares=0, replicas=256, min_replicas=1, rejoin_s=0.0, repair_s=60.0, detect_s=0.0)
    outcome = simulate(replace(often, restart_s=600.0), trials=20)
    assert outcome.badput_s["recovery"].sum() > 550 * outcome.failures.sum()


def test_the_unsure_step_time_widens_the_finish() -> None:
    sure, unsure = (simulate(replace(QUIET, work_spread=spread), trials=2000) for spread in (0.0, 0.1))
    width = math.log(unsure.quantile_s(0.9) / unsure.quantile_s(0.1))
    assert sure.quantile_s(0.9) == sure.quantile_s(0.1)
    assert width == pytest.approx(2 * 1.2816 * 0.1, rel=0.1)


def test_the_chance_is_the_share_of_runs_in_time() -> None:
    outcome = simulate(FAILING, trials=200)
    assert outcome.chance(outcome.quantile_s(0.5)) == pytest.approx(0.5, abs=0.01)
    assert (outcome.chance(0.0), outcome.chance(math.inf)) == (0.0, 1.0)


def test_progress_ends_near_one() -> None:
    ticks: list[float] = []
    simulate(replace(FAILING, node_mttf_s=4 * DAY_S), trials=20, progress=ticks.append)
    assert ticks
    assert 0 <= min(ticks) <= max(ticks) <= 1
    assert max(ticks) > 0.5


@pytest.mark.parametrize(
    "changed", [{"node_mttf_s": 3600.0}, {"capacity_life_s": 30.0, "notice_s": 600.0}], ids=["failures", "preemptions"]
)
def test_a_job_that_does_not_get_on_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="the job does not finish: something stops it every"):
        simulate(replace(FAILING, **changed), trials=10)


def test_a_long_run_is_simulated_in_part_and_comes_to_the_same() -> None:
    scenario = replace(FAILING, work_s=200 * DAY_S, queue_s=7200.0)
    whole, part = (simulate(scenario, trials=100, most_events=events) for events in (5000, 200))
    assert part.wall_s.mean() == pytest.approx(whole.wall_s.mean(), rel=0.01)
    assert part.failures.mean() == pytest.approx(whole.failures.mean(), rel=0.05)
    assert set(part.badput_s["queueing"]) == {7200.0}
    assert part.wall_s - sum(part.badput_s.values()) == pytest.approx(np.full(100, 200 * DAY_S))


def test_a_run_of_centuries_ends_after_a_bounded_number_of_events() -> None:
    steps: list[float] = []
    simulate(replace(FAILING, work_s=1e12), trials=2, most_events=640, progress=steps.append)
    assert len(steps) < 2 * 640 / 64


def test_trials_are_independent() -> None:
    failures = simulate(FAILING, trials=500).failures
    assert np.corrcoef(failures[:-1], failures[1:])[0, 1] == pytest.approx(0, abs=0.15)


def test_scenarios_together_end_as_each_does_alone() -> None:
    spot = replace(EVERYTHING, capacity_life_s=DAY_S / 4, num_nodes=128, replicas=32, min_replicas=30)
    endless = replace(FAILING, node_mttf_s=3600.0)
    scenarios = [FAILING, EVERYTHING, replace(FAILING, work_s=3 * DAY_S, spares=1), endless, spot, QUIET]
    together = simulate_all(scenarios, trials=20, seed=3)
    for scenario, outcome in zip(scenarios, together, strict=True):
        if scenario is endless:
            assert isinstance(outcome, UsageError) and "the job does not finish" in outcome.message
        else:
            alone = simulate(scenario, trials=20, seed=3)
            assert isinstance(outcome, SimulationOutcome)
            assert (outcome.wall_s == alone.wall_s).all() and (outcome.failures == alone.failures).all()


def test_a_job_that_does_not_get_on_does_not_stop_those_that_advance_with_it() -> None:
    endless = replace(FAILING, node_mttf_s=3600.0)
    refused, fine = simulate_all([endless, FAILING], trials=20)
    assert isinstance(refused, UsageError) and isinstance(fine, SimulationOutcome)
    assert (fine.wall_s == simulate(FAILING, trials=20).wall_s).all()
