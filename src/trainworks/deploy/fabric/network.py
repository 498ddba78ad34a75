"""The network of a stack's compute nodes, designed once for topology.conf, batches, rails and switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.catalog.catalog import node
from trainworks.catalog.stack_cluster import fabric_design, group_fabric, joined_nodes
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.fabric import NodeAdapters
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.errors import ArgumentError, UsageError
from trainworks.plan.network.cables import nodes_by_leaf
from trainworks.plan.network.design import NetworkDesign, design_network


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Compute nodes that one network joins."""

    names: tuple[str, ...]
    design: NetworkDesign | None
    """None for a single node, and where nothing is known of the adapters."""

    @property
    def leaves(self) -> list[tuple[str, ...]]:
        """Names by the set of leaf switches that whole nodes are attached to; all together without a design."""
        if self.design is None:
            return [self.names]
        return [tuple(self.names[index] for index in places) for places in nodes_by_leaf(self.design)]


def networks_of(stack: Stack) -> list[NodeNetwork]:
    """Networks of the compute nodes: first that of `fabric`, then one for each other kind of adapters of the machines.

    Raises:
        UsageError: `fabric.design` names what the catalogue does not have, or cannot hold the nodes.
    """
    first = joined_groups(stack)
    networks = []
    if first:
        joined = joined_nodes(stack, first)
        networks.append(NodeNetwork(_names(first), design_network(joined) if joined.num_nodes > 1 else None))
    alike: dict[tuple[int, float, str, NodeAdapters | None], list[NodeGroup]] = {}
    for group in stack.groups("compute"):
        if group not in first:
            machine = node(group.machine) if group.machine is not None else None
            # those of one network have adapters of one number, rate and kind
            adapters = (machine.nics, machine.nic_bytes_per_s, machine.network) if machine else (0, 0.0, "")
            alike.setdefault((*adapters, group.fabric), []).append(group)
    return networks + [NodeNetwork(_names(found), _catalogued_network(stack, found)) for found in alike.values()]


def joined_groups(stack: Stack) -> list[NodeGroup]:
    """Groups of nodes that the network of `fabric` joins: those with as many adapters of its kind; none without one."""
    fabric = stack.fabric
    if fabric is None or fabric_design(stack) is None:
        return []
    adapters = (fabric.link, len(fabric.devices))
    found = [(group, group_fabric(stack, group)) for group in stack.groups("compute")]
    return [group for group, own in found if own is not None and (own.link, len(own.devices)) == adapters]


def check_design(stack: Stack) -> None:
    """Design the networks of a stack once, to find what is wrong with `fabric.design`.

    Raises:
        ArgumentError: it names what the catalogue does not have, or cannot hold the nodes.
    """
    try:
        networks_of(stack)
    except UsageError as error:
        raise ArgumentError(error.message, argument="fabric.design", hint=error.hint) from None


def design_of_fabric(stack: Stack) -> NetworkDesign:
    """The design of the network of `fabric`, which has several nodes and a rate.

    Raises:
        ArgumentError: the network has a single compute node, or some nodes have another number of adapters.
    """
    first = joined_groups(stack)
    others = [each for each in stack.groups("compute") if each not in first and group_fabric(stack, each) is not None]
    if others:
        message = f"`{others[0].label}` has other adapters than the stack, and the text of switches is for one number"
        raise ArgumentError(message, argument="fabric.switches", hint="write `switches: none`")
    network = networks_of(stack)[0]
    if network.design is None:
        message = f"`{network.names[0]}` is a single node, which no switch joins to another"
        raise ArgumentError(message, argument="fabric.switches", hint="write `switches: none`")
    return network.design


def leaves_of(stack: Stack) -> list[tuple[str, ...]]:
    """Names of the compute nodes by the set of leaf switches that they are attached to."""
    return [names for network in networks_of(stack) for names in network.leaves]


def _names(groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group.names)


def _catalogued_network(stack: Stack, groups: Sequence[NodeGroup]) -> NetworkDesign | None:
    """The network that machines of the catalogue have; None for one that is not known, or that a provider has built."""
    machine = None if groups[0].machine is None else node(groups[0].machine)
    if machine is None or len(_names(groups)) < 2 or not machine.nics:
        return None
    try:
        return design_network(joined_nodes(stack, groups))
    except UsageError:
        return None
