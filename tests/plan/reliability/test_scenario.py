"""What a scenario may be, and how one is made."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.plan.reliability.defaults import Failures
from trainworks.plan.reliability.scenario import Scenario, elastic_replicas, nodes_per_replica, scenario_of, spread_of
from trainworks.plan.trace import fact

FIELDS = {"num_nodes": 8, "work_s": 1e6, "interval_s": 600.0}


@pytest.mark.parametrize(
    "changed",
    [
        {"num_nodes": 0},
        {"work_s": 0.0},
        {"interval_s": -1.0},
        {"interval_s": math.nan},
        {"node_mttf_s": 0.0},
        {"spares": -1},
        {"slow_speed": 1.5},
        {"slow_speed": 0.0},
        {"replicas": 9, "min_replicas": 9},
        {"replicas": 2, "min_replicas": 3},
        {"write_s": 601.0},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Scenario(**(FIELDS | changed))


def test_a_scenario_has_the_failures_that_the_formulas_have() -> None:
    names = ("num_nodes", "node_mttf", "save", "detect", "restart", "repair", "other_mttf", "write")
    numbers = {name: fact(name, 2.0 + index, "s", source="the test") for index, name in enumerate(names)}
    made = scenario_of(Failures(**numbers), work_s=100.0, interval_s=50.0, spares=3)
    fields = (made.num_nodes, made.node_mttf_s, made.save_s, made.detect_s, made.restart_s, made.repair_s)
    assert (*fields, made.other_mttf_s, made.write_s) == (2, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    assert (made.work_s, made.interval_s, made.spares) == (100.0, 50.0, 3)


@given(st.floats(1, 1e6), st.floats(0.001, 1))
def test_the_spread_gives_the_interval_back(middle: float, sigma: float) -> None:
    ends = (middle * math.exp(-1.2815515655446004 * sigma), middle * math.exp(1.2815515655446004 * sigma))
    assert spread_of(*ends) == pytest.approx(sigma)


@given(st.integers(1, 10_000), st.integers(1, 64), st.integers(1, 10_000))
def test_an_elastic_job_never_goes_below_the_fewest_nodes(nodes: int, each: int, fewest: int) -> None:
    replicas, least = elastic_replicas(nodes, each, min(fewest, nodes))
    assert 1 <= least <= replicas <= nodes
    assert least == replicas or least * each >= fewest


@pytest.mark.parametrize(("accelerators", "nodes"), [(1, 1), (8, 1), (9, 2), (64, 8)])
def test_a_replica_takes_whole_nodes(accelerators: int, nodes: int) -> None:
    assert nodes_per_replica(accelerators, 8) == nodes
