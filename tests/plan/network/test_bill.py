"""The bill of materials: what it counts, and that only what has a price is priced."""

from __future__ import annotations

from hypothesis import given

from tests.plan.network.networks import network, networks
from trainworks.plan.network.bill import NetworkPrices, bill_of_materials, bill_total, switch_power, usual_share
from trainworks.plan.network.design import NetworkDesign

ALL = NetworkPrices(switch_usd=30000, cable_usd=200, transceiver_usd=1000, nic_usd=1500, switch_power_w=1500)


@given(networks())
def test_the_bill_has_every_switch_nic_and_cable_with_two_transceivers(design: NetworkDesign) -> None:
    counts = {item.name: item.count for item in bill_of_materials(design, ALL)}
    assert counts["NIC"] == design.endpoints
    assert (counts["cable"], counts["transceiver"]) == (design.num_cables, 2 * design.num_cables)
    assert (design.switch.name if design.switch else "") in (*counts, "")


@given(networks())
def test_the_total_is_the_sum_of_its_parts(design: NetworkDesign) -> None:
    total = bill_total(bill_of_materials(design, ALL))
    assert total is not None
    expected = 30000 * design.num_switches + 1500 * design.endpoints + (200 + 2 * 1000) * design.num_cables
    assert abs(total.value / expected - 1) < 1e-9


def test_what_has_no_price_is_left_out_of_the_total() -> None:
    items = bill_of_materials(network("star"), NetworkPrices(switch_usd=20000))
    total = bill_total(items)
    assert total is not None
    assert total.value == 4 * 20000
    assert [item.name for item in items if item.total_usd is None] == ["NIC", "cable", "transceiver"]


def test_without_any_price_there_is_no_total_and_no_power() -> None:
    assert bill_total(bill_of_materials(network("star"), NetworkPrices())) is None
    assert switch_power(network("star"), NetworkPrices()) is None


def test_power_is_that_of_all_switches() -> None:
    power = switch_power(network("star"), ALL)
    assert power is not None
    assert power.value == 6000


def test_a_ring_is_billed_without_switches() -> None:
    assert [item.name for item in bill_of_materials(network("ring"), ALL)] == ["NIC", "cable", "transceiver"]


def test_the_usual_share_has_a_range_and_a_source() -> None:
    share = usual_share()
    assert (share.low, share.high) == (0.1, 0.25)
    assert share.source
