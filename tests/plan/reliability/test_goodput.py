"""Expected goodput: what the formulas promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.plan.reliability.defaults import Failures
from trainworks.plan.reliability.goodput import ExpectedRun, expected, job_mttf, spares_needed, waiting_share
from trainworks.plan.reliability.scenario import scenario_of
from trainworks.plan.reliability.simulation import simulate
from trainworks.plan.trace import Traced, fact, tornado

DAY_S = 86400.0
NODES = st.integers(1, 20_000)
MTTF_S = st.floats(10 * DAY_S, 1000 * DAY_S)
SAVE_S = st.floats(0.1, 300)
RECOVERY_S = st.floats(0, 1200)
LOAD = st.floats(1e-3, 200)


def number(name: str, value: float, **ends: float) -> Traced:
    """A number of the test's own."""
    return fact(name, value, "s", source="the test", **ends)


def failures(
    num_nodes: int = 2048,
    node_mttf_s: float = 264 * DAY_S,
    save_s: float = 60.0,
    restart_s: float = 600.0,
    **more: Traced,
) -> Failures:
    """Failures of a large job; nodes are repaired at once."""
    return Failures(
        num_nodes=number("nodes", num_nodes),
        node_mttf=number("node MTTF", node_mttf_s, low=42 * DAY_S, high=427 * DAY_S),
        save=number("save stall", save_s),
        detect=number("failure detection", 0.0),
        restart=number("restart", restart_s),
        **({"repair": number("node repair", 0.0)} | more),
    )


def run(of: Failures, interval_s: float | None = None, spares: int = 0) -> ExpectedRun:
    """A month of work."""
    return expected(
        of,
        work=number("work", 30 * DAY_S),
        spares=number("spares", spares),
        shortest=number("shortest interval", 1.0),
        interval=None if interval_s is None else number("checkpoint interval", interval_s),
    )


def feasible(of: Failures) -> ExpectedRun:
    """The month, where the job gets on at all."""
    try:
        return run(of)
    except UsageError:
        assume(False)
        raise


@given(NODES, MTTF_S)
def test_a_job_fails_as_often_as_all_its_nodes_together(nodes: int, mttf_s: float) -> None:
    assert job_mttf(failures(nodes, mttf_s)).value == pytest.approx(mttf_s / nodes)


@given(NODES, MTTF_S, MTTF_S, MTTF_S)
def test_rates_of_all_failures_add_up(nodes: int, mttf_s: float, other_s: float, life_s: float) -> None:
    of = failures(nodes, mttf_s, other_mttf=number("other MTTF", other_s), capacity_life=number("life", life_s))
    assert 1 / job_mttf(of).value == pytest.approx(nodes / mttf_s + 1 / other_s)


SPOT = [
    {"capacity_life": 3 * 3600.0},
    {"capacity_life": 3 * 3600.0, "write": 120.0, "capacity_wait": 1800.0},
    {"capacity_life": 3 * 3600.0, "notice": 300.0, "capacity_wait": 600.0},
    {"capacity_life": 1800.0, "notice": 300.0, "write": 120.0, "capacity_wait": 600.0},
    {"capacity_life": 3 * 3600.0, "other_mttf": 7200.0, "write": 60.0},
]


@pytest.mark.parametrize("spot", SPOT)
@pytest.mark.parametrize("detect_s", [0.0, 900.0])
def test_on_preemptible_capacity_the_simulation_agrees(spot: dict[str, float], detect_s: float) -> None:
    more = {name: number(name, value) for name, value in spot.items()}
    of = replace(failures(64, 20 * DAY_S, save_s=20.0, **more), detect=number("detection", detect_s))
    mean = run(of)
    scenario = scenario_of(of, work_s=100 * DAY_S, interval_s=mean.interval.value)
    found = simulate(scenario, trials=100)
    assert mean.runtime_goodput.value == pytest.approx(found.runtime_goodput, abs=0.002)
    assert mean.ettr.value == pytest.approx(found.ettr, abs=0.002)
    assert mean.failures.value * 100 / 30 == pytest.approx(found.failures.mean(), rel=0.01)
    assert mean.preemptions.value * 100 / 30 == pytest.approx(found.preemptions.mean(), rel=0.01)


def test_a_preemption_with_enough_notice_does_not_shorten_the_interval() -> None:
    life = number("life", 3600.0)
    warned = run(failures(16, capacity_life=life, notice=number("notice", 120.0)))
    assert warned.interval.value == run(failures(16)).interval.value
    assert run(failures(16, capacity_life=life)).interval.value < warned.interval.value


@given(NODES, MTTF_S, SAVE_S, RECOVERY_S, st.floats(1.01, 10))
def test_goodput_falls_with_the_failure_rate(
    nodes: int, mttf_s: float, save_s: float, restart_s: float, worse: float
) -> None:
    bad = feasible(failures(nodes, mttf_s / worse, save_s, restart_s))
    good = run(failures(nodes, mttf_s, save_s, restart_s))
    assert bad.runtime_goodput.value <= good.runtime_goodput.value * (1 + 1e-9)


@given(NODES, MTTF_S, SAVE_S, RECOVERY_S, st.floats(1.01, 3))
def test_goodput_falls_with_the_stall_and_with_the_recovery(
    nodes: int, mttf_s: float, save_s: float, restart_s: float, longer: float
) -> None:
    best = feasible(failures(nodes, mttf_s, save_s, restart_s)).runtime_goodput.value
    assert feasible(failures(nodes, mttf_s, save_s * longer, restart_s)).runtime_goodput.value <= best * (1 + 1e-4)
    assert feasible(failures(nodes, mttf_s, save_s, restart_s * longer)).runtime_goodput.value <= best * (1 + 1e-9)


@given(st.integers(200, 20_000), MTTF_S, SAVE_S, st.floats(0.3, 3))
def test_no_other_interval_is_better_than_daly_s_by_more_than_a_thousandth(
    nodes: int, mttf_s: float, save_s: float, factor: float
) -> None:
    of = failures(nodes, mttf_s, save_s)
    assume(save_s < 0.1 * mttf_s / nodes)
    mean = feasible(of)
    assume(1 < mean.interval.value < 3600)
    other = run(of, interval_s=factor * mean.interval.value)
    assert other.runtime_goodput.value <= mean.runtime_goodput.value * 1.001


@given(st.integers(1, 30), MTTF_S)
def test_for_rare_failures_the_waste_is_saving_and_half_an_interval_and_a_restart(nodes: int, mttf_s: float) -> None:
    mttf, interval, save, restart = 3 * mttf_s / nodes, 600.0, 10.0, 60.0
    waste = 1 - run(failures(nodes, 3 * mttf_s, save, restart), interval_s=interval).runtime_goodput.value
    first_order = save / interval + (interval / 2 + restart) / mttf
    assert waste == pytest.approx(first_order, rel=0.05)


def test_the_interval_is_young_s_for_a_small_stall() -> None:
    mean = run(failures(save_s=0.01))
    assert mean.interval.value == pytest.approx(math.sqrt(2 * 0.01 * mean.job_mttf.value), rel=0.01)


@given(MTTF_S)
def test_nobody_waits_longer_than_the_longest_interval_with_saving(mttf_s: float) -> None:
    assert run(failures(1, mttf_s)).interval.value <= 3600


def test_a_checkpoint_is_not_begun_before_the_last_one_is_written() -> None:
    mean = run(failures(save_s=1.0, write=number("checkpoint write", 900.0)))
    assert mean.interval.value == 899.0


@given(LOAD, st.integers(0, 300))
def test_a_spare_more_waits_less(load: float, spares: int) -> None:
    fewer, more = waiting_share(load, spares), waiting_share(load, spares + 1)
    assert 0 <= more <= fewer <= 1
    assert more < fewer or fewer < 1e-300


@given(LOAD, st.integers(0, 30))
def test_waiting_is_the_last_state_of_a_truncated_poisson_distribution(load: float, spares: int) -> None:
    states = [load**count / math.factorial(count) for count in range(spares + 2)]
    assert waiting_share(load, spares) == pytest.approx(states[-1] / sum(states))


@given(st.integers(1, 5000), st.floats(0.001, 0.2), st.floats(0.1, 7))
def test_the_spares_that_are_needed_suffice_and_one_less_does_not(nodes: int, limit: float, repair_days: float) -> None:
    of = failures(nodes, repair=number("node repair", repair_days * DAY_S))
    needed = spares_needed(of, limit=number("limit", limit))
    load = needed.inputs["load"].value
    assert waiting_share(load, round(needed.value)) <= limit
    assert needed.value == 0 or waiting_share(load, round(needed.value) - 1) > limit


@given(st.integers(1, 2500))
def test_a_job_twice_as_large_needs_less_than_twice_the_spares(nodes: int) -> None:
    repair = number("node repair", 3 * DAY_S)
    limit = number("limit", 0.01)
    one, two = (spares_needed(failures(count, repair=repair), limit=limit).value for count in (nodes, 2 * nodes))
    assert one <= two <= 2 * one + 1


def test_waiting_takes_its_share_of_the_goodput() -> None:
    mean = run(failures(repair=number("node repair", DAY_S)), spares=8)
    with_nodes = mean.runtime_goodput.inputs["goodput_with_nodes"].value
    assert mean.runtime_goodput.value == with_nodes * (1 - mean.waiting.value)
    assert mean.run_time.value == pytest.approx(30 * DAY_S / mean.runtime_goodput.value)


def test_queueing_lowers_ettr_alone() -> None:
    queued = expected(
        failures(),
        work=number("work", DAY_S),
        spares=number("spares", 0),
        shortest=number("shortest", 1.0),
        queue=number("queue", DAY_S),
    )
    assert queued.runtime_goodput.value == run(failures()).runtime_goodput.value
    assert queued.ettr.value == pytest.approx(DAY_S / (queued.run_time.value + DAY_S))


def test_the_failure_rate_moves_the_run_time_most() -> None:
    assert tornado(run(failures()).run_time)[0].of.name == "node MTTF"


def test_a_job_that_hardly_gets_on_is_refused() -> None:
    with pytest.raises(UsageError, match="it makes little progress"):
        run(failures(node_mttf_s=DAY_S))


@given(st.floats(1e-3, 1e15), st.integers(1, 10**6))
def test_no_rate_breaks_the_arithmetic(mttf_s: float, nodes: int) -> None:
    assert 0 < feasible(failures(nodes, mttf_s)).runtime_goodput.value <= 1
