"""Addresses of a cluster's networks, and which device has which: the same in a drawing and in what a stack renders.

    management  10.10.0.0/16   nodes from 10.10.1.1 on, compute switches from 10.10.128.1, storage and management
                               switches from 10.10.192.1, power distribution units from 10.10.224.1
    storage     10.20.0.0/16   one address of both ports of a node, from 10.20.1.1 on
    compute     172.16.0.0     Ethernet alone, as large as it has to be: two addresses for each adapter, node by node
                               and rail by rail, the even one on the leaf and the odd one on the node (RFC 3021), and
                               loopbacks of the switches from the end; InfiniBand has no addresses to plan, since its
                               subnet manager assigns LIDs

The last octets of a node are equal in the first two.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import SupportNetworks

MANAGEMENT = IPv4Network("10.10.0.0/16")
STORAGE = IPv4Network("10.20.0.0/16")
FIRST_NODE = 257
"""Address of the first node within a network: `.1.1`."""
_SWITCHES, _SUPPORT, _POWER = 128 * 256 + 1, 192 * 256 + 1, 224 * 256 + 1
_RAILS = IPv4Address("172.16.0.0")
_LARGEST_RAILS = 12
"""Prefix of the private network that begins there (RFC 1918)."""
MOST_NODES = _SWITCHES - FIRST_NODE
"""Nodes that this plan has addresses for."""


@dataclass(frozen=True, slots=True)
class AddressRange:
    """Addresses of equal devices in one network."""

    network: str
    """`management`, `storage`, or `compute`."""
    devices: str
    count: int
    first: IPv4Address
    subnet: IPv4Network
    step: int = 1
    """Distance of the addresses of two neighbouring devices."""

    @property
    def last(self) -> IPv4Address:
        """Address of the last device."""
        return self.first + self.step * (self.count - 1)

    def __str__(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first} to {self.last}"


def rails_network(design: NetworkDesign) -> IPv4Network | None:
    """The smallest network with two addresses for each adapter and one for each switch; None where none is private."""
    needed = 2 * design.endpoints + design.num_switches + 2
    prefix = 32 - (needed - 1).bit_length()
    return IPv4Network((_RAILS, prefix)) if prefix >= _LARGEST_RAILS else None


def rail_addresses(network: IPv4Network, *, node: int, rail: int, rails: int) -> tuple[IPv4Address, IPv4Address]:
    """Addresses of the two ends of the cable of an adapter, on the leaf and on the node; all counted from 0.

    >>> rail_addresses(IPv4Network("172.16.0.0/26"), node=1, rail=0, rails=8)
    (IPv4Address('172.16.0.16'), IPv4Address('172.16.0.17'))
    """
    leaf = network.network_address + 2 * (node * rails + rail)
    return leaf, leaf + 1


def switch_address(network: IPv4Network, index: int) -> IPv4Address:
    """Loopback of a switch, counted from 0 in the order of the cable plan.

    >>> switch_address(IPv4Network("172.16.0.0/26"), 0)
    IPv4Address('172.16.0.62')
    """
    return network.broadcast_address - 1 - index


def address_plan(design: NetworkDesign, support: SupportNetworks) -> tuple[AddressRange, ...]:
    """Ranges of all devices; empty where there are more of a kind than its part of the management network holds.

    >>> from trainworks.api.network import network
    >>> plan = network(on="4 nodes of DGX H100")
    >>> [f"{each.network}, {each.devices}: {each}" for each in address_plan(plan.design, plan.support)][:2]
    ['management, nodes: 10.10.1.1 to 10.10.1.4', 'management, compute switches: 10.10.128.1']
    """
    nodes = design.nodes
    others = round(support.storage_leaves.value + support.storage_spines.value + support.management_switches.value)
    wanted = [
        ("nodes", nodes, FIRST_NODE, _SWITCHES),
        ("compute switches", design.num_switches, _SWITCHES, _SUPPORT),
        ("storage and management switches", others, _SUPPORT, _POWER),
        ("power distribution units", 2 * round(support.racks.value), _POWER, MANAGEMENT.num_addresses - 1),
    ]
    if any(at + count > end for _, count, at, end in wanted):
        return ()
    ranges = [
        AddressRange("management", what, count, MANAGEMENT.network_address + at, MANAGEMENT)
        for what, count, at, _ in wanted
        if count
    ]
    ranges.append(AddressRange("storage", "nodes", nodes, STORAGE.network_address + FIRST_NODE, STORAGE))
    rails = rails_network(design) if is_ethernet(design) else None
    if rails is not None:
        _, first = rail_addresses(rails, node=0, rail=0, rails=design.nics)
        ranges.append(AddressRange("compute", "adapters", nodes * design.nics, first, rails, step=2))
        if design.num_switches:
            first = switch_address(rails, 0)
            ranges.append(AddressRange("compute", "switches", design.num_switches, first, rails, step=-1))
    return tuple(ranges)


def address_lines(design: NetworkDesign, support: SupportNetworks) -> list[str]:
    """The plan in a few lines, one per network: `management 10.10.0.0/16: nodes 10.10.1.1 to 10.10.1.4, ...`."""
    plan = address_plan(design, support)
    lines = []
    for network in ("management", "storage", "compute"):
        ranges = [each for each in plan if each.network == network]
        if ranges:
            lines.append(f"{network} {ranges[0].subnet}: {', '.join(f'{each.devices} {each}' for each in ranges)}")
    if any(each.network == "compute" for each in plan):
        leaf = ", and the address before each is that of its leaf" if design.num_switches else ""
        lines[-1] += f"; a node has {design.nics} in a row{leaf}"
    elif plan and design.num_switches:
        lines.append(f"compute: {design.cluster.network}, without addresses of the Internet protocol")
    return lines


def is_ethernet(design: NetworkDesign) -> bool:
    """Whether the NICs of the compute network have IP addresses, as those of RoCE do."""
    name = design.cluster.network.lower()
    return any(word in name for word in ("roce", "ethernet", "tcp"))
