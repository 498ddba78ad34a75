"""All ways to pay, side by side."""

from __future__ import annotations

import pytest

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.cost.comparison import CostComparison, compare, usd_per_million
from trainworks.plan.trace import fact, with_changed

OFFERS = list(load_catalog().offers.values())


def year(cluster: str = "DGX H100", used: float = 5000) -> CostComparison:
    hours = fact("hours per year", used, "h", source="the test")
    return compare(parse_cluster(cluster), OFFERS, hours=hours)


def run(used: float) -> CostComparison:
    per_year = fact("hours per year", 5000, "h", source="the test")
    hours = fact("hours", used, "h", source="the test")
    return compare(parse_cluster("DGX H100"), OFFERS, hours=hours, hours_per_year=per_year)


def test_the_widest_swing_comes_first() -> None:
    widths = [swing.width for swing in year().swings]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0


def test_the_price_of_the_market_moves_the_answer_most() -> None:
    assert year().swings[0].of.name == "market price"


def test_a_run_pays_its_share_of_an_owned_year() -> None:
    owned, whole = run(50).owned, year().owned
    assert owned is not None
    assert whole is not None
    assert owned.value == pytest.approx(whole.value / 100)


def test_each_offer_breaks_even_where_its_rent_is_the_price_of_owning() -> None:
    found = year()
    line = next(line for line in found.lines if line.offer.name == "AWS p5.48xlarge")
    assert line.break_even is not None
    assert found.owned is not None
    owned = with_changed(found.owned, {"hours per year": line.break_even.value})
    rented = with_changed(line.costs["on-demand"], {"hours per year": line.break_even.value})
    assert owned.value == pytest.approx(rented.value)


def test_spot_costs_as_much_as_its_zone() -> None:
    line = next(line for line in year().lines if line.offer.name == "AWS p5.48xlarge")
    assert line.spot_range is not None
    low, high = line.spot_range
    assert low < line.costs["spot"].value < high
    assert high > line.costs["on-demand"].value  # at the on-demand price, and with the waste


def test_where_no_power_is_published_only_renting_has_a_price() -> None:
    found = year("8x TPU-v5p")
    assert (found.owning, found.owned, found.energy, found.against) == (None, None, None, None)
    assert found.answer is found.market


def test_where_nobody_offers_it_only_owning_has_a_price() -> None:
    found = year("16x MI355X")
    assert found.lines == ()
    assert found.answer is found.owned


def test_a_million_tokens_cost_the_run_over_its_tokens() -> None:
    cost = fact("cost", 50.0, "USD", source="the test")
    tokens = fact("work", 2e9, "", source="the test")
    assert usd_per_million(cost, tokens, "tokens").value == pytest.approx(0.025)
