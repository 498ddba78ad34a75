"""Every device has one address, and a node the same last octets in all networks."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import combinations

from hypothesis import given, settings

from tests.lanes import examples
from tests.plan.network.networks import networks
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.network.addresses import AddressRange, address_lines, address_plan
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.network.support import support_networks


def addresses(found: AddressRange) -> list[IPv4Address]:
    """Address of each device of a range."""
    return [found.first + found.step * index for index in range(found.count)]


@settings(max_examples=examples(50))
@given(networks())
def test_ranges_do_not_overlap_and_stay_in_their_networks(design: NetworkDesign) -> None:
    plan = address_plan(design, support_networks(design))
    assert all(each.first in each.subnet and each.last in each.subnet for each in plan)
    assert all(not set(addresses(one)) & set(addresses(other)) for one, other in combinations(plan, 2))


@settings(max_examples=examples(50))
@given(networks())
def test_a_node_has_the_same_last_octets_for_management_and_storage(design: NetworkDesign) -> None:
    plan = address_plan(design, support_networks(design))
    ends = {(int(each.first) & 0xFFFF, each.count) for each in plan if each.devices == "nodes"}
    assert ends == {(257, design.nodes)}


def test_racks_whose_power_does_not_fit_the_management_network_leave_no_plan() -> None:
    design = design_network(parse_cluster("5000 nodes of DGX H100"))
    assert address_plan(design, support_networks(design, nodes_per_rack=4))
    assert not address_plan(design, support_networks(design, nodes_per_rack=1))


def test_only_a_network_with_switches_has_addresses_of_leaves() -> None:
    of = parse_cluster("4 nodes of 8x H100 over 8x RoCE 400")
    designs = [design_network(of, topology=name) for name in ("star", "ring")]
    assert ["leaf" in address_lines(each, support_networks(each))[-1] for each in designs] == [True, False]
