"""The bill of materials and the order list: what they count, and that every price says where it comes from."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.plan.network.networks import network, networks
from trainworks.api.network import network as plan_network
from trainworks.api.size import size
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.cost.owning import purchase
from trainworks.plan.network.bill import NetworkPrices, bill_of_materials, bill_total, switch_power, usual_share
from trainworks.plan.network.design import NetworkDesign

ALL = NetworkPrices(switch_usd=30000, cable_usd=200, transceiver_usd=1000, nic_usd=1500, switch_power_w=1500)


def counted(design: NetworkDesign, kind: str) -> int:
    return sum(item.count for item in bill_of_materials(design, ALL) if item.kind == kind)


@given(networks())
def test_the_bill_has_every_switch_nic_and_cable(design: NetworkDesign) -> None:
    assert counted(design, "switch") == design.num_switches
    assert counted(design, "NIC") == design.endpoints
    assert counted(design, "cable") == design.num_cables
    assert design.num_cables <= counted(design, "transceiver") <= 2 * design.num_cables * design.planes


@given(networks())
def test_the_total_is_the_sum_of_its_parts(design: NetworkDesign) -> None:
    items = bill_of_materials(design, ALL)
    total = bill_total(items)
    assert total is not None
    each = {"switch": 30000, "NIC": 1500, "cable": 200, "transceiver": 1000}
    assert total.value == pytest.approx(sum(each[item.kind] * item.count for item in items))


@pytest.mark.parametrize(
    ("on", "transceivers"),
    [
        # leaves and spines with 32 cages each, and four cages of each node
        ("32 nodes of DGX H100", {"transceiver of 2 x 400 Gb/s": 12 * 32 + 32 * 4}),
        # trays have a cage for each NIC
        ("8x GB200 NVL72", {"transceiver of 2 x 400 Gb/s": 32 * 18 + 9 * 32, "transceiver of 400 Gb/s": 576}),
        # a port of 800 Gb/s that is split has both links on one transceiver
        ("4 nodes of 8x H100 over 8x RoCE 400 at 1:1", None),
        ("72 nodes of DGX B300", {"transceiver of 2 x 800 Gb/s": 8 * 72 + 4 * 72, "transceiver of 800 Gb/s": 576}),
    ],
)
def test_a_transceiver_serves_a_whole_cage(on: str, transceivers: dict[str, int] | None) -> None:
    switch = None if transceivers else "SN5600"
    plan = plan_network(on=on, switch=switch)
    found = {item.name: item.count for item in bill_of_materials(plan.design, ALL) if item.kind == "transceiver"}
    assert found == (transceivers or {"transceiver of 2 x 400 Gb/s": 16, "transceiver of 400 Gb/s": 32})


def test_a_price_is_the_users_else_that_of_the_catalogue_with_its_source_and_date() -> None:
    design = network(on="32 nodes of DGX H100")
    (known, *_), (mine, *_) = (bill_of_materials(design, each) for each in (NetworkPrices(), ALL))
    assert known.each is not None
    assert (known.each_usd, "2024-08" in str(known.each.source)) == (36000, True)
    assert mine.each is not None
    assert (mine.each_usd, mine.each.source) == (30000, GIVEN)


def test_what_has_no_price_is_left_out_of_the_total() -> None:
    items = bill_of_materials(network("star"), NetworkPrices(transceiver_usd=0))
    total = bill_total(items)
    assert total is not None
    assert total.value == 0
    assert [item.name for item in items if item.total_usd is None] == ["Quantum QM8700", "cable"]


def test_without_a_published_power_there_is_none() -> None:
    assert switch_power(network("star"), NetworkPrices()) is None


def test_power_is_that_of_all_switches() -> None:
    given_power, known = (
        switch_power(network("star"), ALL),
        switch_power(network(on="32 nodes of DGX H100"), NetworkPrices()),
    )
    assert given_power is not None
    assert known is not None
    assert (given_power.value, known.value) == (6000, 12 * 1720)


def test_a_ring_is_billed_without_switches() -> None:
    kinds = [item.kind for item in bill_of_materials(network("ring"), ALL)]
    assert kinds == ["NIC", "cable", "transceiver"]


def test_the_usual_share_has_a_range_and_a_source() -> None:
    share = usual_share()
    assert (share.low, share.high) == (0.1, 0.25)
    assert share.source


# The order list


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


ORDERED = ["32 nodes of DGX H100", "16x GB200 NVL72", "8 nodes of DGX B200", "64 nodes of DGX H100 over 8x RoCE 400"]


@pytest.mark.parametrize("on", ORDERED)
def test_every_row_has_a_price_with_its_source_or_is_to_be_asked_for(on: str) -> None:
    for row in rows_of(plan_network(on=on).bill_csv):
        assert bool(row["each_usd"]) != (row["price"] == "ask") or row["part"] == "total"
        assert row["price"]
        if row["each_usd"] and row["part"] != "total":
            assert float(row["total_usd"]) == float(row["each_usd"]) * int(row["count"])


@pytest.mark.parametrize("on", ORDERED)
def test_the_sums_are_those_of_the_rows_and_the_purchase_that_size_counts(on: str) -> None:
    rows = rows_of(plan_network(on=on).bill_csv)
    (priced, missing, bought) = [row for row in rows if row["part"] == "total"]
    listed = [row for row in rows if row["part"] not in ("total", "room")]
    assert int(priced["total_usd"]) == sum(int(row["total_usd"]) for row in listed if row["total_usd"])
    assert int(priced["total_w"]) == sum(
        int(row["total_w"]) for row in rows if row["total_w"] and row["part"] != "total"
    )
    assert int(missing["count"]) == sum(row["price"] == "ask" for row in listed)
    assert int(priced["total_usd"]) + int(missing["total_usd"]) == int(bought["total_usd"])
    assert int(bought["total_usd"]) == round(purchase(parse_cluster(on)).capex.value)


def test_the_order_list_of_size_ends_with_what_size_says_it_costs_to_buy() -> None:
    proposal = size("examples/plan-llama-2-7b.yaml", only=["H100"], contract=["own"], hours_per_year=7000)
    owned = proposal.details.ownership
    assert owned is not None
    rows = rows_of(proposal.bill_csv)
    assert int(rows[-1]["total_usd"]) == round(owned.owning.capex.value)
    nodes = proposal.chosen.num_nodes + proposal.chosen.spares
    assert int(rows[0]["count"]) == nodes


def test_racks_are_ordered_as_racks_with_their_nodes() -> None:
    rows = rows_of(plan_network(on="75 nodes of GB200 NVL72 tray").bill_csv)
    assert [(row["item"], row["count"]) for row in rows[:2]] == [
        ("GB200 NVL72 of 18 nodes", "4"),
        ("GB200 NVL72 tray", "3"),
    ]
    assert int(rows[0]["each_w"]) == 18 * int(rows[1]["each_w"])


def test_the_power_supply_has_the_switches_too() -> None:
    supplies = [_supply_kw(power) for power in (0.0, 10_000.0)]
    assert supplies[1] - supplies[0] == pytest.approx(12 * 10 * 1.4, abs=0.2)


def _supply_kw(switch_power_w: float) -> float:
    rows = rows_of(plan_network(on="32 nodes of DGX H100", switch_power=switch_power_w).bill_csv)
    (supply,) = (row["item"] for row in rows if row["item"].startswith("power supply of"))
    return float(supply.removeprefix("power supply of ").removesuffix(" kW"))


def _spares(on: str) -> Iterator[tuple[str, int]]:
    return (
        (row["item"], int(row["count"])) for row in rows_of(plan_network(on=on).bill_csv) if row["part"] == "spares"
    )


def test_two_of_a_hundred_switches_transceivers_and_cables_are_spares_and_one_at_least() -> None:
    assert dict(_spares("127 nodes of DGX H100")) == {
        "Quantum-2 QM9700": 1,
        "cable": 41,
        "transceiver of 2 x 400 Gb/s": 41,
    }
    assert dict(_spares("2 nodes of DGX H100"))["Quantum-2 QM9700"] == 1
