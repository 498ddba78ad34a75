"""Addresses of a cluster's networks, and which device has which: the same in a drawing and in a stack file.

    management  10.10.0.0/16   nodes from 10.10.1.1 on, compute switches from 10.10.128.1, storage and management
                               switches from 10.10.192.1, power distribution units from 10.10.224.1
    storage     10.20.0.0/16   one address of both ports of a node, from 10.20.1.1 on
    compute     10.R.0.0/16    Ethernet alone: rail R - 100 of every node, from 10.R.1.1 on; InfiniBand has no addresses
                               to plan, since its subnet manager assigns LIDs

The last octets of a node are equal in all networks.
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
_FIRST_RAIL = 100
MOST_NODES = _SWITCHES - FIRST_NODE
"""Nodes that this plan has addresses for."""


@dataclass(frozen=True, slots=True)
class AddressRange:
    """Addresses of equal devices in one network."""

    network: str
    """`management`, `storage`, or `compute rail 1`."""
    devices: str
    count: int
    first: IPv4Address
    subnet: IPv4Network

    @property
    def last(self) -> IPv4Address:
        """Address of the last device."""
        return self.first + (self.count - 1)

    def __str__(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first} to {self.last}"


def address_plan(design: NetworkDesign, support: SupportNetworks) -> tuple[AddressRange, ...]:
    """Ranges of all devices; empty for more nodes than `MOST_NODES`.

    >>> from trainworks.api.network import network
    >>> plan = network(on="4 nodes of DGX H100")
    >>> [f"{each.network}, {each.devices}: {each}" for each in address_plan(plan.design, plan.support)][:2]
    ['management, nodes: 10.10.1.1 to 10.10.1.4', 'management, compute switches: 10.10.128.1']
    """
    nodes = design.nodes
    if nodes > MOST_NODES:
        return ()
    others = round(support.storage_leaves.value + support.storage_spines.value + support.management_switches.value)
    wanted = [
        ("nodes", nodes, FIRST_NODE),
        ("compute switches", design.num_switches, _SWITCHES),
        ("storage and management switches", others, _SUPPORT),
        ("power distribution units", 2 * round(support.racks.value), _POWER),
    ]
    ranges = [_range("management", what, count, MANAGEMENT, at) for what, count, at in wanted if count]
    ranges.append(_range("storage", "nodes", nodes, STORAGE, FIRST_NODE))
    if is_ethernet(design):
        subnets = (IPv4Network(f"10.{_FIRST_RAIL + rail}.0.0/16") for rail in range(1, design.nics + 1))
        ranges += [
            _range(f"compute rail {rail}", "nodes", nodes, subnet, FIRST_NODE) for rail, subnet in enumerate(subnets, 1)
        ]
    return tuple(ranges)


def address_lines(design: NetworkDesign, support: SupportNetworks) -> list[str]:
    """The plan in a few lines, one per network: `management 10.10.0.0/16: nodes 10.10.1.1 to 10.10.1.4, ...`."""
    plan = address_plan(design, support)
    lines = []
    for network in ("management", "storage"):
        ranges = [each for each in plan if each.network == network]
        if ranges:
            lines.append(f"{network} {ranges[0].subnet}: {', '.join(f'{each.devices} {each}' for each in ranges)}")
    rails = [each for each in plan if each.network.startswith("compute")]
    if rails:
        more = f", and so on to {rails[-1]} in {rails[-1].subnet}" if len(rails) > 1 else ""
        lines.append(f"compute, {len(rails)} rails: nodes {rails[0]} in {rails[0].subnet}{more}")
    elif plan and design.num_switches:
        lines.append(f"compute: {design.cluster.network}, without addresses of the Internet protocol")
    return lines


def is_ethernet(design: NetworkDesign) -> bool:
    """Whether the NICs of the compute network have IP addresses, as those of RoCE do."""
    name = design.cluster.network.lower()
    return any(word in name for word in ("roce", "ethernet", "tcp"))


def _range(network: str, devices: str, count: int, subnet: IPv4Network, at: int) -> AddressRange:
    return AddressRange(network, devices, count, subnet.network_address + at, subnet)
