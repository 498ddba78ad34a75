"""Ethernet switches for RoCE: addresses of rails, cables of ports, and their text, with a lossless priority and BGP.

A leaf routes: each port to a node is a network of two addresses, the even one on the leaf. No broadcast domain spans
the fabric.

BGP unnumbered (RFC 5549): neighbours meet over link-local IPv6, and links between switches need no addresses. Each leaf
has an autonomous system, the spines share one, so that a path over a leaf to another spine is refused as a loop
(RFC 7938).

Source: NVIDIA Cumulus Linux 5, guides to RoCE and to BGP, and the reference of NVUE; Arista EOS, user manual (QoS, BGP)
and the guide to AI networks. Neither program is here to try the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from trainworks.catalog.stack_cluster import group_fabric
from trainworks.config.stack import Stack
from trainworks.deploy.fabric.network import design_of_fabric
from trainworks.deploy.templating import render
from trainworks.errors import ArgumentError
from trainworks.plan.network.addresses import rail_addresses, switch_address
from trainworks.plan.network.cables import cable_plan
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.nccl import ROCE

_TOPOLOGIES = ("star", "rail-optimised", "rail-only", "spine-leaf")
"""Topologies of at most two tiers, in which one autonomous system for all spines is right."""


@dataclass(frozen=True, slots=True)
class Rail:
    """One adapter of a node."""

    host: str
    number: int
    """Number of the rail, from 0 on."""
    device: str
    interface: str
    address: IPv4Address
    gateway: IPv4Address
    """Address of the leaf, on the other end of the cable."""


@dataclass(slots=True)
class SwitchPorts:
    """A switch and its cables."""

    name: str
    asn: int
    loopback: IPv4Address
    split: int
    """Links of a port."""
    rails: list[tuple[str, Rail]] = field(default_factory=list)
    """Ports to nodes."""
    links: list[tuple[str, str, str]] = field(default_factory=list)
    """Ports to other switches: port, name of the other switch, and its port."""


def rails(stack: Stack) -> list[Rail]:
    """Adapters of all compute nodes, by node and rail.

    Raises:
        ArgumentError: `fabric.network` has too few addresses.
    """
    fabric = stack.fabric
    assert fabric is not None and fabric.network is not None
    own = {group.hosts: group_fabric(stack, group) for group in stack.groups("compute")}
    ends = [
        (host, *end)
        for group in stack.groups("compute")
        if (adapters := own[group.hosts]) is not None and adapters.link == "roce"
        for host in group.names
        for end in enumerate(zip(adapters.devices, adapters.interfaces, strict=True))
    ]
    if 2 * len(ends) > fabric.network.num_addresses:
        hosts = len({host for host, *_ in ends})
        message = f"{2 * len(ends)} addresses are needed for {hosts} nodes, and {fabric.network} has fewer"
        raise ArgumentError(message, argument="fabric.network", hint="write a larger network")
    found = []
    for place, (host, number, (device, interface)) in enumerate(ends):
        leaf, address = rail_addresses(fabric.network, node=place, rail=0, rails=1)
        found.append(Rail(host, number, device, interface, address, leaf))
    return found


def switches(stack: Stack) -> list[SwitchPorts]:
    """Switches of the network that Trainworks designs for the nodes, with their ports, leaves first.

    Raises:
        ArgumentError: the network has more than two tiers, or its addresses are too few.
    """
    fabric = stack.fabric
    assert fabric is not None and fabric.network is not None
    network = fabric.network
    design = design_of_fabric(stack)
    if not has_switch_text(design):
        message = f"{design.nodes} nodes have a network of kind `{design.topology}`, whose switches have no text here"
        hint = "write `switches: none`, and configure them by `trainworks network --cables`"
        raise ArgumentError(message, argument="fabric.switches", hint=hint)
    by_place = {
        (f"node{index // len(fabric.devices) + 1}", f"nic{rail.number + 1}"): rail
        for index, rail in enumerate(rails(stack))
    }
    found: dict[str, SwitchPorts] = {}

    def switch(name: str) -> SwitchPorts:
        if name not in found:
            loopback = switch_address(network, len(found))
            leaves = sum("spine" not in each for each in found)
            asn = fabric.asn if "spine" in name else fabric.asn + 1 + leaves
            found[name] = SwitchPorts(name, asn, loopback, design.split)
        return found[name]

    for cable in cable_plan(design):
        if cable.tier in ("node-leaf", "node-switch"):
            if rail := by_place.get((cable.from_device, cable.from_port)):  # none of a spare slot
                switch(cable.to_device).rails.append((cable.to_port, rail))
        else:
            switch(cable.from_device).links.append((cable.from_port, cable.to_device, cable.to_port))
            switch(cable.to_device).links.append((cable.to_port, cable.from_device, cable.from_port))
    if len(found) + 2 * len(by_place) + 1 > network.num_addresses:
        message = f"{network} has no addresses left for {len(found)} switches"
        raise ArgumentError(message, argument="fabric.network", hint="write a larger network")
    return list(found.values())


def has_switch_text(design: NetworkDesign) -> bool:
    """Whether the switches of a network are configured here: those of at most two tiers."""
    return design.topology in _TOPOLOGIES and "core" not in design.switches


_ENDINGS = {"cumulus": "nvue.sh", "eos": "eos"}
"""Endings of the files, and of their templates, by operating system."""
_LANES = 8
"""Lanes of a port, by which EOS numbers the links of a split one."""


def switch_files(stack: Stack) -> dict[str, str]:
    """Text of each switch by the name of its file; empty for InfiniBand, whose subnet manager configures them, and for
    `switches: none`.

    Raises:
        ArgumentError: the network has more than two tiers, or too few addresses.
    """
    if stack.fabric is None or stack.fabric.link != "roce" or stack.fabric.switches == "none":
        return {}
    ending = _ENDINGS[stack.fabric.switches]
    found = switches(stack)
    systems = {each.name: each.asn for each in found}
    return {f"{each.name}.{ending}": _text(each, ending, systems) for each in found}


def _text(switch: SwitchPorts, ending: str, systems: dict[str, int]) -> str:
    ports = [port for port, _ in switch.rails] + [port for port, _, _ in switch.links]
    ports.sort(key=lambda port: [int(part) for part in port.split("/")])
    return render(
        f"fabric/switch.{ending}",
        switch=switch,
        systems=systems,
        ports=[_swp(port) for port in ports],
        split_ports=sorted({port.partition("/")[0] for port in ports}, key=int) if switch.split > 1 else [],
        swp=_swp,
        ethernet=_ethernet,
        roce=ROCE,
    )


def _swp(port: str) -> str:
    """A port in the words of Cumulus, which counts links of a split port from 0: `12/2` is `swp12s1`."""
    number, _, link = port.partition("/")
    return f"swp{number}s{int(link) - 1}" if link else f"swp{number}"


def _ethernet(switch: SwitchPorts, port: str) -> str:
    """A port in the words of EOS, which names a link of a split port by its first lane: `12/2` is `Ethernet12/5`."""
    number, _, link = port.partition("/")
    lane = (int(link) - 1) * _LANES // switch.split + 1 if link else 1
    return f"Ethernet{number}/{lane}"
