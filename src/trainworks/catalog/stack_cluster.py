"""A cluster by its stack file: the machines of its compute nodes, and the network between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainworks.catalog.catalog import accelerator, load_catalog, node, rack_of
from trainworks.catalog.cluster import (
    ClusterDescription,
    cluster_of_nodes,
    fabric_of,
    node_of_accelerators,
    parse_cluster,
)
from trainworks.catalog.cluster_words import Switching
from trainworks.catalog.facts import Accelerator, Node, System
from trainworks.config.engines import stack_file_in
from trainworks.config.stack import Stack, load_stack
from trainworks.config.stack_parts.fabric import Fabric, FabricDesign
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.errors import ArgumentError, UsageError


def read_cluster(text: str) -> ClusterDescription:
    """The cluster that a text describes: in words, or by its stack file, `stack.yaml` or `stack.yaml:GROUP`.

    Raises:
        UsageError: the words have none of the forms, or name what the catalogue does not have.
        RunFileError: the stack file has problems, each with its line, or leaves open which of its nodes are meant.

    >>> read_cluster("examples/cluster/stack.yaml").name
    '4 nodes of DGX H100'
    """
    if (named := stack_file_in(text)) is None:
        return parse_cluster(text)
    path, group = named
    stack, source = load_stack(Path(path))
    try:
        return cluster_of_stack(stack, group)
    except ArgumentError as error:
        raise source.blame(error) from None


def cluster_of_stack(stack: Stack, group: str | None = None) -> ClusterDescription:
    """The compute nodes of a stack, or one kind of them, and the network that joins them.

    `group` has the name of one group, its hosts, `gpu[01-04]` or `gpu`, or their machine; all compute nodes when left
    out.

    Raises:
        ArgumentError: the nodes are not of one kind, or have no accelerators; the argument is the path of the key.
    """
    every, groups = list(stack.groups("compute")), compute_groups(stack, group)
    kinds = {each.hosts: _kind(stack, each) for each in groups}
    first = next(iter(kinds.values()), None)
    if first is None or any(kind != first for kind in kinds.values()):
        kinds = kinds or {each.hosts: _kind(stack, each) for each in every}
        names = ", ".join(f"`{hosts}` ({kind[1] if kind else 'no accelerators'})" for hosts, kind in kinds.items())
        wrong = f"the compute nodes of `{stack.name}` are not of one kind with accelerators: {names}"
        raise ArgumentError(
            wrong if group is None or groups else f"`{stack.name}` has no compute nodes `{group}`: {names}",
            argument="nodes",
            hint="name those that are meant behind the file, such as `stack.yaml:gpu`",
        )
    found = joined_nodes(stack, groups)
    return found if groups == every else found.model_copy(update={"topology": "auto", "spare_slots": 0})


def compute_groups(stack: Stack, group: str | None) -> list[NodeGroup]:
    """Compute nodes of a stack by the name of their group or of a host of it; all of them when None."""
    every = stack.groups("compute")
    return [each for each in every if group is None or each.is_called(group) or group in each.names]


def joined_nodes(stack: Stack, groups: Sequence[NodeGroup]) -> ClusterDescription:
    """Compute nodes behind the network of `fabric`, with the GPUs of the first group that has some.

    Raises:
        ArgumentError: the stack names what the catalogue does not have, or says no network between several nodes.
    """
    num_nodes, asked = sum(len(group.names) for group in groups), fabric_design(stack, groups)
    known = next((kind for group in groups if (kind := _kind(stack, group)) is not None), None)
    try:
        if known is None:
            return _without_accelerators(num_nodes, asked)
        one = cluster_of_nodes(known[0], node_name=known[1])
        if asked is None:
            return one.with_nodes(num_nodes)
        fabric = fabric_of(asked.nics, asked.port)
        joined = one if fabric.is_of(known[0]) else one.with_fabric(fabric)
        return _wired(joined.with_nodes(num_nodes), asked)
    except UsageError as error:
        key = "fabric.design" if asked is not None else "nodes"
        raise ArgumentError(error.message, argument=key, hint=error.hint) from None


def node_of(group: NodeGroup) -> Node | None:
    """A node of a group as the catalogue knows it: its machine, or one with its accelerators; None without any.

    Sockets and memory are those of `hardware`, whose processors no catalogue knows.

    Raises:
        UsageError: the catalogue does not have the machine or the accelerators.
    """
    if group.machine is not None:
        return _for_jobs(node(group.machine), group)
    described = group.hardware
    if described is None or (found := described.accelerators) is None:
        return None
    shown = {"processor": None, "processors": described.sockets, "host_memory_bytes": described.memory, "vcpus": None}
    return _for_jobs(node_of_accelerators(accelerator(found.name), found.count).model_copy(update=shown), group)


def _for_jobs(machine: Node, group: NodeGroup) -> Node:
    """A node without the memory that the system keeps, as a plan may fill the rest."""
    if group.reserved_memory is None or machine.host_memory_bytes is None:
        return machine
    left = max(0, machine.host_memory_bytes - group.reserved_memory)
    return machine.model_copy(update={"host_memory_bytes": left})


def rack_of_group(group: NodeGroup) -> System | None:
    """The rack whose nodes are one scale-up domain, such as a GB200 NVL72; None for nodes that are in none."""
    machine = node_of(group)
    rack = rack_of(machine)
    return rack if machine is not None and machine.scale_up_domain > machine.accelerators else None


def has_accelerators(group: NodeGroup) -> bool:
    """Whether a node of a group has accelerators."""
    machine = node_of(group)
    return machine is not None and machine.accelerators > 0


def group_fabric(stack: Stack, group: NodeGroup) -> Fabric | None:
    """The network of a stack with the adapters of a group; None for one that is not in it."""
    fabric, own = stack.fabric, group.fabric
    if fabric is None or "compute" not in group.roles or (own is not None and own.link == "none"):
        return None
    if own is not None:
        return fabric.with_adapters(own) if fabric.link is not None else fabric
    is_in = has_accelerators(group) or not any(map(has_accelerators, stack.groups("compute")))
    return fabric if is_in else None


def fabric_design(stack: Stack, groups: Sequence[NodeGroup] = ()) -> FabricDesign | None:
    """The network that a stack asks for, as `fabric.design` or by the rate of its adapters; None where it has none.

    Some groups may have other adapters, all of them the same: their number is that of the network, and those of another
    kind are in none that the stack asks for.
    """
    own = {group.fabric for group in groups}
    adapters = own.pop() if len(own) == 1 else None
    found = _stack_design(stack)
    if adapters is None or found is None:
        return found
    if adapters.link is not None and stack.fabric is not None and adapters.link != stack.fabric.link:
        return None
    return found.model_copy(update={"nics": len(adapters.devices) or found.nics})


def _stack_design(stack: Stack) -> FabricDesign | None:
    fabric = stack.fabric
    if fabric is None or fabric.design is not None or fabric.link is None:
        return fabric.design if fabric is not None else None
    if fabric.speed is not None:
        return FabricDesign(nics=len(fabric.devices), port=f"RoCE {fabric.speed}")
    machines = [node(group.machine) for group in stack.groups("compute") if group.machine is not None]
    rates = {each.nic_bytes_per_s for each in machines if each.network == "InfiniBand"}
    return FabricDesign(nics=len(fabric.devices), port=port_of("InfiniBand", rates.pop())) if len(rates) == 1 else None


def port_of(network: str, bytes_per_s: float) -> str:
    """A port in a description: the catalogue's link of that network and rate, else the rate.

    >>> port_of("InfiniBand", 25e9), port_of("Omni-Path", 1e9)
    ('InfiniBand HDR', '8 Gb/s')
    """
    links = load_catalog().links.values()
    found = (each.name for each in links if each.network == network and each.bytes_per_s == bytes_per_s)
    return next(found, f"{bytes_per_s * 8 / 1e9:g} Gb/s")


def _kind(stack: Stack, group: NodeGroup) -> tuple[Node, str] | None:
    """A node of a group and its name in a description; None without accelerators."""
    try:
        found = node_of(group)
    except UsageError as error:
        key = "machine" if group.machine is not None else "hardware.accelerators"
        place = f"nodes.{stack.nodes.index(group)}.{key}"
        raise ArgumentError(error.message, argument=place, hint=error.hint) from None
    if found is None:
        return None
    return found, found.name if group.machine is not None else f"{found.accelerators}x {found.accelerator}"


def _wired(cluster: ClusterDescription, asked: FabricDesign) -> ClusterDescription:
    wiring = {"topology": asked.topology, "switch": asked.switch, "spare_slots": asked.spare_slots}
    return cluster.with_switching(Switching(asked.sharp, asked.oversubscription)).model_copy(update=wiring)


def _without_accelerators(num_nodes: int, asked: FabricDesign | None) -> ClusterDescription:
    if asked is None:
        raise UsageError("these nodes have no accelerators, and no network is known", hint="add `fabric.design`")
    fabric = fabric_of(asked.nics, asked.port)
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
    return _wired(nodes, asked)


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
