"""Policies of one trace, their cost, and the front."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.plan.capacity.traces import HOUR, job, policies, trace, traces
from trainworks.plan.capacity import policy_comparison
from trainworks.plan.capacity.answer import Service, Target, capacity_for
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Elastic, Policy, Spot
from trainworks.plan.capacity.policy_comparison import (
    CapacityLimits,
    CapacityPrices,
    PolicyReplay,
    cheapest,
    cost_of,
    front,
    point_of,
)
from trainworks.plan.trace import fact

prices_usd = st.floats(0.1, 100)


def prices(fixed: float = 2.0, spot: float = 1.0, on_demand: float = 4.0) -> CapacityPrices:
    named = {"fixed": fixed, "spot": spot, "on_demand": on_demand}
    return CapacityPrices(
        **{key: fact(f"{key} price", value, "USD/h", source="a test") for key, value in named.items()}
    )


def point(cost: float, wait_s: float) -> PolicyReplay:
    policy = Policy(node_accelerators=8, fixed_nodes=1)
    return PolicyReplay(policy, Service(1, 0.0, wait_s, wait_s, None), {}, 1.0, 0.0, 0, cost)


points = st.lists(st.builds(point, st.integers(0, 9).map(float), st.integers(0, 9).map(float)), min_size=1)


@given(points)
def test_nothing_beats_a_point_of_the_front_and_one_of_it_is_as_good_as_any_other(some) -> None:
    best = [(each.cost_usd_per_week, each.service.wait_p90_s) for each in front(some)]
    for cost, wait in ((each.cost_usd_per_week, each.service.wait_p90_s) for each in some):
        assert any(c <= cost and w <= wait for c, w in best)
        assert not any((cost <= c and wait <= w) and (cost, wait) != (c, w) for c, w in best)


@given(points, st.integers(0, 9))
def test_the_cheapest_that_meets_a_wait_is_on_the_front(some, wait_s: int) -> None:
    found = cheapest(some, Target(wait_s=float(wait_s)))
    assert found is None or found in front(some)
    assert (found is None) == all(each.service.wait_p90_s > wait_s for each in some)


@settings(max_examples=examples(30))
@given(traces, policies, prices_usd, prices_usd, prices_usd, st.sampled_from(["fixed", "spot", "on_demand"]))
def test_the_cost_never_falls_when_a_price_rises(some, policy, fixed, spot, on_demand, dearer) -> None:
    before = {"fixed": fixed, "spot": spot, "on_demand": on_demand}
    after = before | {dearer: before[dearer] * 2}
    low, high = (point_of(some, policy, prices(**these)).cost_usd_per_week for these in (before, after))
    assert low <= high


@settings(max_examples=examples(30))
@given(traces, policies)
def test_the_explained_cost_is_the_cost(some, policy) -> None:
    found = point_of(some, policy, prices())
    assert cost_of(found, prices()).value == pytest.approx(found.cost_usd_per_week)


@settings(max_examples=examples(30))
@given(traces, policies)
def test_jobs_hold_at_most_what_is_paid(some, policy) -> None:
    found = point_of(some, policy, prices())
    assert 0 < found.utilisation <= 1 + 1e-9
    assert 0 <= found.wasted_share < 1


def test_fixed_nodes_without_a_queue_cost_their_price_for_every_hour_of_the_week() -> None:
    policy = Policy(node_accelerators=8, fixed_nodes=2, on_demand=Elastic(max_nodes=9), spot=Spot(max_nodes=9))
    found = point_of(trace(job(0, 8, HOUR)), policy, prices(fixed=2.0))
    assert found.bought_h_per_week == {FIXED: 16 * 168, SPOT: 0, ON_DEMAND: 0}
    assert found.cost_usd_per_week == 16 * 168 * 2


def limits(**given: object) -> CapacityLimits:
    of = {"node_accelerators": 4, "on_demand": Elastic(max_nodes=9), "spot": Spot(max_nodes=9)}
    return CapacityLimits(**(of | given))  # type: ignore[arg-type]


@settings(max_examples=examples(20))
@given(traces)
def test_the_answer_is_one_of_the_policies_and_each_can_run_every_job(some) -> None:
    answer = capacity_for(some, node_accelerators=4, wait_s=600)
    grid = policy_comparison.policies(some, limits(), answer)
    assert Policy(node_accelerators=4, fixed_nodes=round(answer.nodes.value)) in grid
    assert all(point_of(some, policy, prices()).service.jobs == len(some) for policy in grid)


@given(traces)
def test_no_policy_of_the_grid_carries_less_than_the_mean_load(some) -> None:
    answer = capacity_for(some, node_accelerators=4, wait_s=600)
    for policy in policy_comparison.policies(some, limits(), answer):
        nodes = policy.fixed_nodes + policy.on_demand.max_nodes + policy.spot.max_nodes
        assert nodes * 4 >= answer.load.mean.value * (1 - 1e-9)


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ({"fixed_nodes": 5}, {(5, 0, 0), (5, 2, 0), (5, 9, 0), (5, 0, 9), (5, 9, 9)}),
        ({"fixed_nodes": 5, "on_demand": Elastic()}, {(5, 0, 0), (5, 0, 9)}),
        ({"fixed_nodes": 5, "on_demand": Elastic(), "spot": Spot()}, {(5, 0, 0)}),
        ({"fixed_nodes": 0, "spot": Spot()}, {(0, 9, 0)}),
        ({"fixed_nodes": 0, "spot": Spot(), "on_demand": Elastic()}, set()),
    ],
)
def test_what_is_limited_stays_within_its_limit(given, classes) -> None:
    some = trace(job(0, 12, 1000), job(0, 4, 1000))
    answer = capacity_for(some, node_accelerators=4, wait_s=600)
    grid = policy_comparison.policies(some, limits(**given), answer)
    assert {(each.fixed_nodes, each.on_demand.max_nodes, each.spot.max_nodes) for each in grid} == classes


def test_patience_ends_early_enough_for_the_nodes_to_come_in_time() -> None:
    some = trace(job(0, 12, 1000), job(0, 12, 1000))
    answer = capacity_for(some, node_accelerators=4, wait_s=600)
    on_demand = Elastic(max_nodes=9, start_latency_s=200)
    grid = policy_comparison.policies(some, limits(fixed_nodes=3, on_demand=on_demand, spot=Spot()), answer)
    patient = next(each for each in grid if each.patience_s < float("inf"))
    assert patient.patience_s == 400
    assert point_of(some, replace(patient), prices()).service.wait_max_s == 600
