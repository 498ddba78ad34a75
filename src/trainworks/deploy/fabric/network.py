"""The network of a stack's compute nodes, designed once for topology.conf, batches, rails and switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.catalog.catalog import load_catalog, node
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes, fabric_of
from trainworks.catalog.cluster_words import Switching
from trainworks.catalog.facts import Accelerator
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.fabric import Fabric, FabricDesign
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.deploy.hardware import node_of
from trainworks.errors import ArgumentError, UsageError
from trainworks.plan.network.cables import nodes_by_leaf
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.network.switches import find_switch


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
    """Networks of the compute nodes: that of `fabric`, else one for each kind of adapters that the machines have.

    Raises:
        UsageError: `fabric.design` names what the catalogue does not have, or cannot hold the nodes.
    """
    groups = list(stack.groups("compute"))
    asked = _asked(stack.fabric, groups)
    if asked is not None:
        names = _names(groups)
        return [NodeNetwork(names, _designed(_cluster(groups, len(names), asked), asked))]
    alike: dict[tuple[int, float, str], list[NodeGroup]] = {}
    for group in groups:
        alike.setdefault(_adapters(group), []).append(group)
    return [NodeNetwork(_names(found), _of_machines(found)) for found in alike.values()]


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
        ArgumentError: the stack has a single compute node.
    """
    (network,) = networks_of(stack)
    if network.design is None:
        message = f"`{network.names[0]}` is a single node, which no switch joins to another"
        raise ArgumentError(message, argument="fabric.switches", hint="write `switches: none`")
    return network.design


def described_cluster(stack: Stack) -> ClusterDescription:
    """The compute nodes of a stack as a description has them, with the adapters that `fabric` names.

    Raises:
        UsageError: they are not of one kind, or have no accelerators.

    >>> from pathlib import Path
    >>> from trainworks.config.stack import load_stack
    >>> described_cluster(load_stack(Path("examples/cluster/stack.yaml"))[0]).name
    '4 nodes of DGX H100'
    """
    groups = list(stack.groups("compute"))
    nodes = [node_of(group) for group in groups]
    first, num_nodes, asked = nodes[0], len(_names(groups)), _asked(stack.fabric, groups)
    if first is None or any(each != first for each in nodes):
        names = ", ".join(dict.fromkeys(each.name if each else "none with accelerators" for each in nodes))
        raise UsageError(
            f"the compute nodes of `{stack.name}` are not of one kind with accelerators: {names}",
            hint='describe the nodes that are meant: "8x H100-SXM-80GB over 8x NDR"',
        )
    return _cluster(groups, num_nodes, asked) if asked is not None else cluster_of_nodes(first, num_nodes)


def leaves_of(stack: Stack) -> list[tuple[str, ...]]:
    """Names of the compute nodes by the set of leaf switches that they are attached to."""
    return [names for network in networks_of(stack) for names in network.leaves]


def port_of(network: str, bytes_per_s: float) -> str:
    """A port in a description: the catalogue's link of that network and rate, else the rate.

    >>> port_of("InfiniBand", 25e9), port_of("Omni-Path", 1e9)
    ('InfiniBand HDR', '8 Gb/s')
    """
    links = load_catalog().links.values()
    found = (each.name for each in links if each.network == network and each.bytes_per_s == bytes_per_s)
    return next(found, f"{bytes_per_s * 8 / 1e9:g} Gb/s")


def _names(groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group.names)


def _asked(fabric: Fabric | None, groups: Sequence[NodeGroup]) -> FabricDesign | None:
    """The design that a stack asks for; None where its adapters have no rate."""
    if fabric is None or fabric.design is not None or fabric.link is None:
        return fabric.design if fabric is not None else None
    if fabric.speed is not None:
        return FabricDesign(nics=len(fabric.devices), port=f"RoCE {fabric.speed}")
    machines = [node(group.machine) for group in groups if group.machine is not None]
    rates = {each.nic_bytes_per_s for each in machines if each.network == "InfiniBand"}
    return FabricDesign(nics=len(fabric.devices), port=port_of("InfiniBand", rates.pop())) if len(rates) == 1 else None


def _designed(cluster: ClusterDescription, asked: FabricDesign) -> NetworkDesign | None:
    if cluster.num_nodes < 2:
        return None
    return design_network(
        cluster,
        topology=asked.topology,
        switch=None if asked.switch is None else find_switch(asked.switch),
        spare_slots=asked.spare_slots,
    )


def _cluster(groups: Sequence[NodeGroup], num_nodes: int, asked: FabricDesign) -> ClusterDescription:
    """The compute nodes behind the network of the design, with the GPUs of the first group that has some."""
    fabric, switching = fabric_of(asked.nics, asked.port), Switching(asked.sharp, asked.oversubscription)
    known = next((found for group in groups if (found := node_of(group)) is not None), None)
    if known is not None:
        described = cluster_of_nodes(known)
        described = described if fabric.is_of(known) else described.with_fabric(fabric)
        return described.with_nodes(num_nodes).with_switching(switching)
    nodes = ClusterDescription(
        name=f"{num_nodes} nodes over {fabric}",
        accelerator=_NONE,
        num_nodes=num_nodes,
        accelerators_per_node=asked.nics,
        scale_up_domain=asked.nics,
        scale_up_bytes_per_s=0.0,
        node_bytes_per_s=asked.nics * fabric.bytes_per_s,
        network=fabric.network,
        nics=asked.nics,
    )
    return nodes.with_switching(switching)


_NONE = Accelerator(
    name="none",
    vendor="none",
    launched=0,
    memory_bytes=0,
    memory_bytes_per_s=0.0,
    peak_flops_per_s={},
    scale_up="none",
    scale_up_bytes_per_s=0.0,
    host_bytes_per_s=0.0,
)
"""Stands for the accelerators of nodes without any, whose adapters meet in the memory of the node."""


def _adapters(group: NodeGroup) -> tuple[int, float, str]:
    """Number, rate and kind of the adapters of a machine: those of one network are alike."""
    machine = None if group.machine is None else node(group.machine)
    return (machine.nics, machine.nic_bytes_per_s, machine.network) if machine is not None else (0, 0.0, "")


def _of_machines(groups: Sequence[NodeGroup]) -> NetworkDesign | None:
    """The network that machines of the catalogue have; None for one that is not known, or that a provider has built."""
    num_nodes = len(_names(groups))
    machine = None if groups[0].machine is None else node(groups[0].machine)
    if machine is None or num_nodes < 2 or not machine.nics:
        return None
    try:
        return design_network(cluster_of_nodes(machine, num_nodes))
    except UsageError:
        return None
