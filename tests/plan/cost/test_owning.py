"""Owning: what raises its price, and a published table of break-even hours that it reproduces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.cost.owning import OwnershipCost, break_even_hours, fits_in_year, own
from trainworks.plan.trace import Traced, fact, with_changed

NODE = parse_cluster("DGX H100")
PUBLISHED_INPUTS = {
    "server price": 350_000.0,
    "network share of capex": 0.12 / 1.12,
    "years of use": 4.0,
    "residual value": 0.25,
    "power while training": 0.8,
    "power while idle": 0.8,
    "PUE": 1.4,
    "electricity": 0.1,
    "maintenance": 0.05,
    "salary": 160_000.0,
    "colocation": 150.0,
}
"""Of a published comparison of one 8x H100 node; its salary is the one that its rows imply."""
PUBLISHED = [
    # FTE per node, colocation, kUSD per year, USD per accelerator hour, hours against 55.04, 31.92, 19.2 and 13 USD/h
    (0.02, False, 109, 1.55, (1979, 3413, 5674, 8379)),
    (0.02, True, 127, 1.82, (2313, 3988, 6630, None)),
    (0.25, True, 164, 2.34, (2981, 5141, 8546, None)),
    (0.5, False, 186, 2.65, (3374, 5819, None, None)),
]
PRICES = (55.04, 31.92, 19.2, 13.0)
ASSUMED = ("staff, few nodes", "server price", "electricity", "PUE", "salary", "maintenance", "node power")


def hours(value: float) -> Traced:
    return fact("hours per year", value, "h", source="the test")


def price(value: float) -> Traced:
    return fact("rent", value, "USD/h", source="the test")


def published(staff: float, *, colocated: bool) -> OwnershipCost:
    """The node of the published comparison."""
    staffed = PUBLISHED_INPUTS | {"staff, few nodes": staff, "staff, many nodes": staff}
    return own(NODE, hours_per_year=hours(8760), given=staffed, colocated=colocated)


@pytest.mark.parametrize(("staff", "colocated", "kusd", "each", "even"), PUBLISHED)
def test_a_published_year_is_reproduced_to_half_a_percent(staff, colocated, kusd, each, even) -> None:
    found = published(staff, colocated=colocated)
    assert found.per_year.value == pytest.approx(kusd * 1e3, rel=0.005)
    assert found.per_accelerator_hour.value == pytest.approx(each, rel=0.005)


@pytest.mark.parametrize(("staff", "colocated", "kusd", "each", "even"), PUBLISHED)
def test_published_break_even_hours_are_reproduced_to_the_hour(staff, colocated, kusd, each, even) -> None:
    found = [break_even_hours(published(staff, colocated=colocated), price(usd)) for usd in PRICES]
    assert tuple(round(it.value) if it and fits_in_year(it) else None for it in found) == even


@given(st.floats(0.1, 500), st.floats(10, 8700))
def test_at_the_break_even_hours_both_cost_the_same(usd: float, used: float) -> None:
    found = own(NODE, hours_per_year=hours(used))
    even = break_even_hours(found, price(usd))
    if even is not None:
        year = with_changed(found.per_year, {"hours per year": even.value})
        assert year.value == pytest.approx(usd * even.value, rel=1e-9)


def test_owning_never_pays_where_an_hour_of_electricity_costs_more_than_its_rent() -> None:
    even = break_even_hours(own(NODE, hours_per_year=hours(5000)), price(0.1))
    assert even is None
    assert not fits_in_year(even)


@given(st.sampled_from(ASSUMED), st.floats(0.01, 0.99), st.floats(100, 8700))
def test_whatever_costs_more_makes_owning_dearer(name: str, share: float, used: float) -> None:
    usual = {"server price": 350_000.0, "node power": 10_200.0, "PUE": 1.4, "electricity": 0.1, "salary": 170_000.0}
    usual |= {"maintenance": 0.05, "staff, few nodes": 0.5}
    cheaper = usual | {name: usual[name] * share}
    costs = [own(NODE, hours_per_year=hours(used), given=each).per_year.value for each in (cheaper, usual)]
    assert costs[0] < costs[1]


@given(st.floats(1, 8000), st.floats(1, 700))
def test_more_hours_cost_more_a_year_and_less_each(used: float, more: float) -> None:
    few, many = (own(NODE, hours_per_year=hours(it)) for it in (used, used + more))
    assert few.per_year.value < many.per_year.value
    assert few.per_accelerator_hour.value > many.per_accelerator_hour.value


@given(st.integers(1, 200))
def test_a_node_more_never_costs_less_staff(nodes: int) -> None:
    few, many = (own(parse_cluster(f"{it}x DGX H100"), hours_per_year=hours(5000)) for it in (nodes, nodes + 1))
    assert few.fixed.inputs["staff"].value <= many.fixed.inputs["staff"].value


def test_colocation_costs_its_rent_beside_the_electricity() -> None:
    room, rack = (own(NODE, hours_per_year=hours(5000), colocated=it) for it in (False, True))
    assert rack.per_year.value - room.per_year.value == pytest.approx(10.2 * 180 * 12)


def test_the_network_is_its_share_of_everything_bought() -> None:
    found = own(NODE, hours_per_year=hours(5000), given={"network share of capex": 0.2})
    assert found.capex.inputs["network"].value == pytest.approx(0.2 * found.capex.value)


def test_half_of_the_nics_are_half_of_the_network() -> None:
    usual, half = (
        own(parse_cluster(f"4 nodes of 8x H100-SXM-80GB over {nics}x NDR"), hours_per_year=hours(5000))
        for nics in (8, 4)
    )
    assert half.capex.inputs["network"].value == pytest.approx(usual.capex.inputs["network"].value / 2)
    assert half.capex.inputs["servers"].value == usual.capex.inputs["servers"].value


@pytest.mark.parametrize("text", ["4x DGX H100", "4x p5.48xlarge", "4x gpu-h100-sxm_8gpu"])
def test_nodes_as_they_are_usually_sold_have_the_usual_network(text: str) -> None:
    found = own(parse_cluster(text), hours_per_year=hours(5000))
    assert found.capex.inputs["network"].inputs["width"].value == 1
