"""Prices of an accelerator hour."""

from __future__ import annotations

import pytest

from trainworks.catalog.catalog import node
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.capacity.policy_comparison import prices_for


def test_a_node_that_is_sold_has_its_own_price() -> None:
    found = prices_for(node("p5.48xlarge"))
    assert (found.on_demand.value, found.spot.value) == (55.04 / 8, 14.554 / 8)
    assert found.on_demand.source is not None
    assert "AWS p5.48xlarge" in found.on_demand.source


def test_a_node_that_nobody_sells_has_the_median_price_of_its_accelerator_and_its_range() -> None:
    found = prices_for(node("DGX H100")).on_demand
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_fixed_nodes_have_the_committed_use_discount() -> None:
    found = prices_for(None, on_demand=4.0)
    assert found.fixed.value == pytest.approx(4.0 * (1 - 0.3))


def test_without_a_spot_market_spot_costs_what_on_demand_costs() -> None:
    assert prices_for(None, on_demand=4.0).spot.value == 4.0


def test_what_is_given_replaces_the_catalogue() -> None:
    found = prices_for(node("DGX H100"), on_demand=3.0, spot=1.0, fixed=0.0)
    assert [(price.value, price.source) for price in (found.on_demand, found.spot, found.fixed)] == [
        (3.0, GIVEN),
        (1.0, GIVEN),
        (0.0, GIVEN),
    ]


def test_a_price_that_nobody_knows_has_to_be_given() -> None:
    with pytest.raises(UsageError, match="without `--node` no price is known"):
        prices_for(None)
