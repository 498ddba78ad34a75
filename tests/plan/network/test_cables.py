"""The cable plan: every port once, as many cables as the design counts, and the right ends."""

from __future__ import annotations

import csv
import io
from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.plan.network.networks import network, networks
from trainworks.plan.network.cables import Cable, cable_plan, cables_as_csv
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.trees import TreeNetwork

few = settings(max_examples=examples(40))


def ends(rows: list[Cable]) -> Counter[tuple[str, str]]:
    return Counter([(row.from_device, row.from_port) for row in rows] + [(row.to_device, row.to_port) for row in rows])


def is_switch(device: str) -> bool:
    return not device.startswith(("node", "spare"))


@few
@given(networks())
def test_no_port_has_two_cables(design: NetworkDesign) -> None:
    assert set(ends(list(cable_plan(design))).values()) == {1}


@few
@given(networks())
def test_there_are_as_many_cables_as_the_design_says(design: NetworkDesign) -> None:
    numbered = {(row.tier, row.cable) for row in cable_plan(design)}
    assert Counter(tier for tier, _ in numbered) == design.cables


@few
@given(networks())
def test_cables_are_numbered_from_one_without_gaps(design: NetworkDesign) -> None:
    for tier, count in design.cables.items():
        assert {row.cable for row in cable_plan(design) if row.tier == tier} == set(range(1, count + 1))


@few
@given(networks())
def test_ports_are_those_that_a_switch_has(design: NetworkDesign) -> None:
    most = design.switch.ports if design.switch else 0
    used = [port for device, port in ends(list(cable_plan(design))) if is_switch(device)]
    assert all(1 <= int(port.partition("/")[0]) <= most for port in used)


@few
@given(networks())
def test_every_nic_is_joined_once_to_each_plane(design: NetworkDesign) -> None:
    nics = Counter(device for device, _ in ends(list(cable_plan(design))) if device.startswith("node"))
    each = design.fabric.used_nics if design.switch is None else design.nics * design.planes  # type: ignore[union-attr]
    assert set(nics.values()) == {each}
    assert len(nics) == design.nodes


@few
@given(networks())
def test_no_more_switches_are_cabled_than_there_are(design: NetworkDesign) -> None:
    cabled = {device for device, _ in ends(list(cable_plan(design))) if is_switch(device)}
    assert len(cabled) <= design.num_switches


@few
@given(networks())
def test_every_leaf_of_a_tree_serves_a_node(design: NetworkDesign) -> None:
    assume(isinstance(design.fabric, TreeNetwork) and not design.spare_slots)
    serving = {row.to_device for row in cable_plan(design) if row.tier.startswith("node-")}
    assert len(serving) == design.switches.get("leaf", design.switches.get("switch"))


@few
@given(networks(), st.integers(1, 16))
def test_a_rack_layout_gives_every_cable_a_length(design: NetworkDesign, nodes_per_rack: int) -> None:
    assert all((row.length_m or 0) >= 1 for row in cable_plan(design, nodes_per_rack=nodes_per_rack))


def test_a_rail_ends_on_its_own_leaf() -> None:
    rows = [row for row in cable_plan(network("rail-optimised")) if row.tier == "node-leaf"]
    assert {(row.from_port, row.to_device) for row in rows} == {(f"nic{rail}", f"leaf{rail}") for rail in range(1, 9)}


def test_both_parts_of_a_nic_go_to_different_planes() -> None:
    rows = list(cable_plan(network("multi-plane")))
    first = [row.to_device for row in rows if (row.tier, row.cable) == ("node-leaf", 1)]
    assert first == ["plane1-leaf1", "plane2-leaf1"]


def test_the_table_has_a_head_and_a_row_for_each_link() -> None:
    table = list(csv.DictReader(io.StringIO(cables_as_csv(network("star")))))
    assert len(table) == 128
    assert table[0] == {
        "tier": "node-switch",
        "cable": "1",
        "from_device": "node1",
        "from_port": "nic1",
        "to_device": "switch1",
        "to_port": "1",
        "length_m": "",
    }


def test_a_cable_within_a_rack_is_short() -> None:
    rows = list(cable_plan(network("star", "4 nodes of DGX A100"), nodes_per_rack=4))
    assert {row.length_m for row in rows} == {2}
