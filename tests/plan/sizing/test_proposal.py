"""Which alternative is proposed, and which ones nothing beats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import node
from trainworks.catalog.cluster import cluster_of_nodes
from trainworks.plan.reliability.scenario import CAUSES, SimulationOutcome
from trainworks.plan.sizing.candidates import Candidate
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, choose, front, reasons, tie
from trainworks.plan.trace import fact

DAY_S = 86400.0


def alternative(cost_usd: float, *days: float, name: str = "DGX H100", contract: str = "on-demand") -> Alternative:
    """One that takes these days in as many simulated runs."""
    work = np.array(days) * DAY_S
    nothing = np.zeros_like(work)
    counts = np.zeros(len(days), dtype=np.int64)
    outcome = SimulationOutcome(work, dict.fromkeys(CAUSES, nothing), counts, counts)
    candidate = Candidate(name, cluster_of_nodes(node(name)), for_sale=True, offers=())
    cost = fact("cost", cost_usd, "USD", source="a test")
    life_s = 10_800.0 if contract == "spot" else None
    return Alternative(candidate, 2, 0, contract, f"X {name}", cost, outcome, interval_s=3600.0, life_s=life_s)


def goal(days: float | None = 10.0, budget: float | None = None, confidence: float = 0.9) -> SizingGoal:
    """Done by that day."""
    return SizingGoal(None if days is None else days * DAY_S, budget, confidence)


def test_the_cheapest_that_meets_the_deadline_is_chosen() -> None:
    slow, cheap, dear = alternative(1.0, 20.0), alternative(2.0, 9.0), alternative(3.0, 1.0)
    assert choose([dear, slow, cheap], goal()) is cheap


def test_a_chance_below_the_confidence_is_not_enough() -> None:
    unsure = alternative(1.0, *[9.0] * 8, 11.0, 11.0)
    assert choose([unsure], goal()) is None
    assert choose([unsure], goal(confidence=0.8)) is unsure


def test_the_budget_counts_too() -> None:
    assert choose([alternative(5.0, 1.0)], goal(budget=4.0)) is None


def test_capacity_that_is_taken_away_is_proposed_only_where_it_was_asked_for() -> None:
    spot, lasting = alternative(1.0, 9.0, contract="spot"), alternative(2.0, 9.0)
    assert choose([spot, lasting], goal()) is lasting
    assert choose([spot, lasting], replace(goal(), spot=True)) is spot


def test_capacity_that_is_taken_away_is_proposed_where_nothing_else_meets_the_goal() -> None:
    spot = alternative(1.0, 9.0, contract="spot")
    assert choose([spot, alternative(2.0, 20.0)], goal()) is spot


def test_spot_that_would_be_cheaper_is_named_with_its_assumption() -> None:
    items = [alternative(1.0, 9.0, contract="spot"), alternative(2.0, 9.0)]
    said = reasons(items[1], items, goal())
    assert said[0] == "2 of 2 alternatives meet the goal; this is the cheapest that is not preempted"
    assert said[1].startswith("on spot: 2 x X DGX H100, spot, 50% cheaper")
    assert said[1].endswith("if a job lives 3h 0m there, which is assumed: `--contract spot` proposes it")


def test_without_a_deadline_the_cheapest_is_chosen_however_long_it_takes() -> None:
    slow = alternative(1.0, 1000.0)
    assert choose([slow, alternative(2.0, 1.0)], goal(days=None)) is slow


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=20))
def test_nothing_beats_one_of_the_front_and_something_beats_every_other(points: list[tuple[float, float]]) -> None:
    items = [alternative(cost, days) for cost, days in points]
    best = front(items)
    for item in items:
        beaten = any(
            other.cost.value <= item.cost.value
            and other.p90_s <= item.p90_s
            and (other.cost.value, other.p90_s) != (item.cost.value, item.p90_s)
            for other in items
        )
        same = any((kept.cost.value, kept.p90_s) == (item.cost.value, item.p90_s) for kept in best)
        assert same is not beaten


def test_a_cheaper_one_that_misses_the_goal_is_named_with_the_reason() -> None:
    items = [alternative(1.0, 20.0, name="p5.48xlarge"), alternative(2.0, 9.0)]
    said = reasons(items[1], items, goal())
    assert said[-1] == (
        "cheaper would be: 2 x X p5.48xlarge, on-demand, 50% cheaper, half of the runs done in 20d 0h, "
        "but it meets the deadline with a chance of 0% only"
    )


@pytest.mark.parametrize("budget", [None, 10.0])
def test_everything_meets_no_wish_at_all(budget: float | None) -> None:
    assert alternative(1.0, 1.0).meets(goal(days=None, budget=budget))


@pytest.mark.parametrize(
    ("cost_usd", "name", "is_tie"),
    [
        (101.0, "DGX H100", True),
        (110.0, "DGX H100", False),  # of the same accelerator: errors of its rates are the same for both
        (110.0, "DGX A100", True),
        (140.0, "DGX A100", False),
    ],
)
def test_a_price_within_what_a_prediction_is_sure_of_has_no_winner(cost_usd: float, name: str, is_tie: bool) -> None:
    chosen, other = alternative(100.0, 9.0), alternative(cost_usd, 5.0, name=name)
    said = tie(chosen, [chosen, other], goal(), spread=1.25)
    assert ("no clear winner" in said and "half of its runs are done in 5d 0h" in said) == is_tie


def test_capacity_that_is_taken_away_and_what_misses_the_goal_is_no_rival() -> None:
    chosen = alternative(100.0, 9.0)
    rivals = [alternative(90.0, 9.0, contract="spot"), alternative(90.0, 99.0)]
    assert tie(chosen, [chosen, *rivals], goal(), spread=1.25) == ""
