"""Renting: which offers fit, and what each contract makes of their price."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError
from trainworks.plan.cost.renting import (
    contracts,
    effective_discount,
    market_price,
    notice_s,
    offers_for,
    rent,
    spot_waste,
)
from trainworks.plan.trace import Traced, fact, walk

OFFERS = list(load_catalog().offers.values())
NODE = Offer(
    name="eight",
    provider="AWS",
    accelerator="H100-SXM-80GB",
    accelerators=8,
    node="eight",
    usd_per_hour=40.0,
    spot_usd_per_hour=(8.0, 10.8, 30.0),
    zones=3,
    source="the test",
)
PUBLISHED_SPOT = [(1, 0.35, 0.59), (3, 0.16, 0.68), (8, 0.085, 0.70)]
"""Mean life in hours, waste, and what is left of a list discount of 73 %: a published calculation."""


def hours(value: float) -> Traced:
    return fact("hours", value, "h", source="the test")


def cost(contract, *, offer: Offer = NODE, count: int = 8, used: float = 100.0, **replaced: float) -> float:
    """USD of one contract."""
    renamed = {name.replace("_", " "): value for name, value in replaced.items()}
    return rent(offer, contract=contract, num_accelerators=count, hours=hours(used), given=renamed).value


def names(cluster: str, offers=OFFERS) -> set[str]:
    return {offer.name for offer in offers_for(parse_cluster(cluster), offers)}


def test_an_instance_is_rented_as_itself() -> None:
    assert names("4x p5.48xlarge") == {"AWS p5.48xlarge"}


def test_an_instance_that_nobody_offers_is_rented_as_its_like() -> None:
    assert "Lambda gpu_8x_b200_sxm6" in names("4x p6-b200.48xlarge")


def test_a_smaller_instance_makes_no_node() -> None:
    found = names("DGX H100")
    assert "AWS p5.48xlarge" in found
    assert not {"AWS p5.4xlarge", "GCP a3-highgpu-1g"} & found


def test_a_price_per_accelerator_fits_any_number_of_them() -> None:
    assert "Crusoe H100-SXM-80GB" in names("DGX H100") & names("4x H100")


def test_an_offer_that_is_larger_than_the_cluster_does_not_fit() -> None:
    assert "AWS p5.48xlarge" not in names("4x H100")


def test_another_accelerator_does_not_fit() -> None:
    fitting = offers_for(parse_cluster("DGX H100"), OFFERS)
    assert {offer.accelerator for offer in fitting} == {"H100-SXM-80GB"}


def test_the_cheapest_accelerator_hour_comes_first() -> None:
    fitting = offers_for(parse_cluster("DGX H100"), OFFERS)
    each = [(offer.usd_per_hour or 0) / offer.accelerators for offer in fitting]
    assert each == sorted(each)


def test_on_demand_is_price_times_hours() -> None:
    assert cost("on-demand") == pytest.approx(4000)


@given(st.integers(1, 4096))
def test_whole_offers_are_paid(count: int) -> None:
    assert cost("on-demand", count=count) == pytest.approx(math.ceil(count / 8) * 4000)


@pytest.mark.parametrize(("life", "waste", "discount"), PUBLISHED_SPOT)
def test_spot_waste_is_that_of_a_published_calculation_within_a_point(life, waste, discount) -> None:
    wasted = spot_waste({"spot life": life * 3600}).value
    assert wasted == pytest.approx(waste, abs=0.01)
    assert 1 - 0.27 / (1 - wasted) == pytest.approx(discount, abs=0.01)


@given(st.floats(2000, 1e6), st.floats(1.01, 10))
def test_spot_waste_falls_with_the_life_of_a_job(life: float, factor: float) -> None:
    assert spot_waste({"spot life": life * factor}).value < spot_waste({"spot life": life}).value


def test_spot_jobs_that_live_too_short_are_refused() -> None:
    with pytest.raises(UsageError, match="makes no progress"):
        spot_waste({"spot life": 300.0})


def test_spot_is_the_median_zone_with_its_waste() -> None:
    assert cost("spot") == pytest.approx(1080 / (1 - spot_waste().value))


def test_a_spot_price_ranges_from_the_cheapest_to_the_dearest_zone() -> None:
    found = rent(NODE, contract="spot", num_accelerators=8, hours=hours(1))
    price = next(figure for figure in walk(found) if figure.name == "eight spot price")
    assert (price.low, price.value, price.high) == (8.0, 10.8, 30.0)


def test_the_effective_discount_is_what_spot_saves() -> None:
    saved = effective_discount(NODE)
    assert saved is not None
    assert saved.value == pytest.approx(1 - cost("spot") / cost("on-demand"))


@pytest.mark.parametrize(("used", "paid"), [(100, 8760), (8760, 8760), (10000, 10000)])
def test_a_commitment_is_paid_for_its_whole_term(used: float, paid: float) -> None:
    assert cost("reserved", used=used, committed_use_discount=0) == pytest.approx(0.7 * 40 * paid)


@given(st.sampled_from(["on-demand", "reserved", "spot"]), st.floats(1, 1e5), st.floats(1.0, 10))
def test_more_hours_never_cost_less(contract, used: float, factor: float) -> None:
    assert cost(contract, used=used) <= cost(contract, used=used * factor) * (1 + 1e-12)


@given(st.sampled_from(["on-demand", "reserved"]), st.floats(0.1, 100), st.floats(1.01, 10))
def test_a_higher_price_costs_more(contract, usd: float, factor: float) -> None:
    low, high = (NODE.model_copy(update={"usd_per_hour": it}) for it in (usd, usd * factor))
    assert cost(contract, offer=low) < cost(contract, offer=high)


def test_a_contract_that_is_not_sold_is_refused() -> None:
    listed = NODE.model_copy(update={"spot_usd_per_hour": ()})
    assert contracts(listed) == ["on-demand", "reserved"]
    with pytest.raises(UsageError, match="eight has no spot price"):
        cost("spot", offer=listed)


def test_the_market_price_is_the_median_between_its_ends() -> None:
    offers = [NODE.model_copy(update={"name": f"at {usd}", "usd_per_hour": usd}) for usd in (80.0, 16.0, 24.0)]
    found = market_price(offers)
    assert found is not None
    assert (found.low, found.value, found.high) == (2.0, 3.0, 10.0)


def test_without_an_on_demand_price_there_is_no_market_price() -> None:
    assert market_price([NODE.model_copy(update={"usd_per_hour": None})]) is None


@pytest.mark.parametrize(("provider", "notice"), [("AWS", 120.0), ("GCP", 30.0), ("Azure", 30.0), ("Crusoe", None)])
def test_the_notice_before_a_preemption_is_the_providers(provider: str, notice: float | None) -> None:
    assert notice_s(provider) == notice
