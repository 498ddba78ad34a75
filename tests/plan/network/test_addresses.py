"""Every device has one address, and a node the same last octets in all networks."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import combinations

from hypothesis import given, settings

from tests.lanes import examples
from tests.plan.network.networks import networks
from trainworks.plan.network.addresses import AddressRange, address_plan
from trainworks.plan.network.design import NetworkDesign
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
