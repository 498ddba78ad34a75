"""Addresses of rails, and what each port of each switch is joined to.

A leaf routes: each port to a node is a network of two addresses, the even one on the leaf. No broadcast domain spans
the fabric, and BGP finds the paths between leaves without addresses on their links (RFC 5549).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from trainworks.config.stack import Stack
from trainworks.deploy.fabric.network import design_of_fabric
from trainworks.errors import ArgumentError
from trainworks.plan.network.addresses import rail_addresses, switch_address
from trainworks.plan.network.cables import cable_plan
from trainworks.plan.network.design import NetworkDesign

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
    hosts = list(stack.hosts("compute"))
    needed = 2 * len(hosts) * len(fabric.devices)
    if needed > fabric.network.num_addresses:
        message = f"{needed} addresses are needed for {len(hosts)} nodes, and {fabric.network} has fewer"
        raise ArgumentError(message, argument="fabric.network", hint="write a larger network")
    found = []
    for place, host in enumerate(hosts):
        for number, (device, interface) in enumerate(zip(fabric.devices, fabric.interfaces, strict=True)):
            leaf, own = rail_addresses(fabric.network, node=place, rail=number, rails=len(fabric.devices))
            found.append(Rail(host, number, device, interface, own, leaf))
    return found


def switches(stack: Stack) -> list[SwitchPorts]:
    """Switches of the network that Trainworks designs for the nodes, with their ports, leaves first.

    Raises:
        ArgumentError: the network has more than two tiers, or its addresses are too few.
    """
    fabric = stack.fabric
    assert fabric is not None and fabric.network is not None
    network = fabric.network
    design = _design(stack)
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


def _design(stack: Stack) -> NetworkDesign:
    design = design_of_fabric(stack)
    if not has_switch_text(design):
        message = f"{design.nodes} nodes have a network of kind `{design.topology}`, whose switches have no text here"
        hint = "write `switches: none`, and configure them by `trainworks network --cables`"
        raise ArgumentError(message, argument="fabric.switches", hint=hint)
    return design
