"""Structure of each topology for a cluster, and the largest cluster it supports.

Symbols: n nodes with c NICs each, N = n c endpoints, r rails (NICs with the same place in their nodes), w = c / r NICs
of a node on a rail, R links of a switch, t the taper (links down to links up of a leaf; 1 is non-blocking).

    star            each switch has whole rails, as many as fit into R ports; rails meet in the nodes alone
    spine-leaf      two tiers, nodes fill one leaf after the other: at most R leaves
    3-tier          the same with cores above the spines: at most R^2 / 2 leaves
    rail-optimised  leaves in sets of r, rail i of a node on leaf i of its set; two tiers, else three. Nodes that their
                    vendor sells in scalable units get the leaves and spines of whole units, and the trays of a rack
                    stay on one set of leaves
    rail-only       a network of its own for each rail, of one or two tiers
    multi-plane     each NIC split over two networks of ports at half of its speed: R doubles
    dragonfly       groups of switches, every one connected to every other (`groups.py`); dragonfly+ with spines in each
    ring, torus     no switches: NIC to NIC (`grids.py`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trainworks.catalog.catalog import has, rack_of
from trainworks.catalog.catalog import node as catalogue_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Switch
from trainworks.plan.network.grids import GridNetwork, grid
from trainworks.plan.network.groups import GroupNetwork, groups, most_groups
from trainworks.plan.network.switches import Ports, nic_bytes_per_s, ports_for
from trainworks.plan.network.trees import TreeNetwork, leaf_ports, most_leaves, star, tree

Topology = Literal[
    "star",
    "spine-leaf",
    "3-tier",
    "rail-optimised",
    "rail-only",
    "multi-plane",
    "dragonfly",
    "dragonfly+",
    "ring",
    "torus",
]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
PLANES = 2


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """Requirements that every topology is built from."""

    cluster: ClusterDescription
    slots: int
    """Nodes and spare slots."""
    rails: int
    taper: float
    switch: Switch | None

    @property
    def rail_nics(self) -> int:
        """w, NICs of a node on each rail."""
        return self.cluster.nics // self.rails

    @property
    def unit(self) -> int:
        """Nodes of the vendor's scalable unit; 1 where its design is not for this network, or for a taper."""
        node = self.cluster.node
        if node is None or self.taper > 1 or not has("nodes", node.name):
            return 1
        sold, alike = catalogue_node(node.name), ("nics", "nic_bytes_per_s", "accelerators")
        if any(getattr(sold, name) != getattr(node, name) for name in alike):
            return 1
        units = {sold.network: sold.scalable_unit} | ({"RoCE": sold.ethernet_unit} if sold.network != "RoCE" else {})
        return units.get(node.network) or 1

    @property
    def unit_planes(self) -> int:
        """Planes of the design that is sold in units."""
        node = self.cluster.node
        own = node is None or not has("nodes", node.name) or catalogue_node(node.name).network == node.network
        return 1 if own else PLANES

    @property
    def rack(self) -> int:
        """Nodes of a rack that is one scale-up domain; 1 for others."""
        rack = rack_of(self.cluster.node)
        return 1 if rack is None else rack.nodes


def rails_of(cluster: ClusterDescription) -> int:
    """One per NIC; one per accelerator where several NICs serve each."""
    several = cluster.nics > cluster.accelerators_per_node and cluster.nics % cluster.accelerators_per_node == 0
    return cluster.accelerators_per_node if several else cluster.nics


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """Structure of a topology and its largest size, spare slots included."""

    fabric: TreeNetwork | GroupNetwork | GridNetwork | None
    """Structure of one copy of the fabric."""
    most_slots: int | None
    ports: Ports | None = None
    """Ports of the switches; None without switches."""
    copies: int = 1
    """Networks side by side: rails of their own, or planes."""
    planes: int = 1
    sets: int = 1
    """Sets of leaves that whole nodes are attached to."""
    set_nodes: int | None = None
    """Nodes, or spare slots, of a full set; None where all sets share them evenly."""
    pod_sets: int = 1
    """Sets whose leaves of one rail are a pod; 1 where pods are leaves in a row."""
    unit: int = 1
    """Nodes of the vendor's scalable unit that its leaves and spines are for; 1 without one."""


def _star(request: TopologyRequest) -> TopologyResult:
    ports = ports_for(request.cluster, request.switch)
    each = request.slots * request.rail_nics
    together = max(1, ports.count // each)
    copies = -(-request.rails // together)
    built = star(ports.count, each * -(-request.rails // copies)) if each <= ports.count else None
    return TopologyResult(built, ports.count // request.rail_nics, ports, copies)


def _clos(request: TopologyRequest, tiers: int) -> TopologyResult:
    ports = ports_for(request.cluster, request.switch)
    down = leaf_ports(ports.count, request.taper)[0]
    most = down * most_leaves(ports.count, tiers) // request.cluster.nics
    endpoints = request.slots * request.cluster.nics
    leaves = max(2, -(-endpoints // down)) if down else 0
    built = _tree(ports, leaves, -(-endpoints // max(1, leaves)), request.taper, tiers)
    return TopologyResult(built, most, ports, sets=leaves)


def _rail_optimised(request: TopologyRequest, *, planes: int = 1, tiers: tuple[int, ...] = (2, 3)) -> TopologyResult:
    """Leaves in sets of as many as there are rails; the fewest tiers that hold them."""
    ports = ports_for(request.cluster, request.switch, planes=planes)
    per_leaf = leaf_ports(ports.count, request.taper)[0] // request.rail_nics
    set_nodes = per_leaf // request.rack * request.rack
    unit = request.unit if set_nodes and request.unit % set_nodes == 0 and planes == request.unit_planes else 1
    if set_nodes and (unit > 1 or (request.rack > 1 and planes == 1)):
        return _in_units(request, ports, set_nodes, unit, planes=planes, tiers=tiers)
    most = [most_leaves(ports.count, tier) // request.rails * per_leaf for tier in tiers]
    sets = -(-request.slots // per_leaf) if per_leaf else 0
    down = -(-request.slots // max(1, sets)) * request.rail_nics
    trees = (_tree(ports, sets * request.rails, down, request.taper, tier) for tier in tiers)
    return TopologyResult(next(filter(None, trees), None), max(most), ports, planes, planes, sets)


def _in_units(
    request: TopologyRequest, ports: Ports, set_nodes: int, unit: int, *, planes: int, tiers: tuple[int, ...]
) -> TopologyResult:
    """Leaves and spines of whole scalable units, with whole racks on a set of leaves.

    Several units of racks have three tiers from the start, with a pod for each rail of a unit, so that they can grow.
    """
    units = -(-request.slots // unit)
    sets = -(-units * unit // set_nodes)
    leaves, down = sets * request.rails, min(set_nodes, units * unit) * request.rail_nics
    pod_sets = unit // set_nodes if request.rack > 1 and unit > 1 else 1
    tiers = (3,) if pod_sets > 1 and units > 1 else tiers
    pod = pod_sets if pod_sets > 1 else None
    trees = [_tree(ports, leaves, down, request.taper, tier, pod) for tier in tiers]
    fabric = next(filter(None, trees), None)
    most = most_leaves(ports.count, max(tiers)) // request.rails * set_nodes // unit * unit
    whole = 1 if fabric is None or not fabric.cores else pod_sets
    return TopologyResult(fabric, most, ports, planes, planes, sets, set_nodes, whole, unit)


def _rail_only(request: TopologyRequest) -> TopologyResult:
    ports = ports_for(request.cluster, request.switch)
    per_leaf = leaf_ports(ports.count, request.taper)[0] // request.rail_nics
    most = max(ports.count // request.rail_nics, per_leaf * ports.count)
    each = request.slots * request.rail_nics
    if each <= ports.count:
        return TopologyResult(star(ports.count, each), most, ports, request.rails)
    leaves = -(-request.slots // per_leaf) if per_leaf else 0
    down = -(-request.slots // max(1, leaves)) * request.rail_nics
    return TopologyResult(_tree(ports, leaves, down, request.taper, 2), most, ports, request.rails, sets=leaves)


def _tree(
    ports: Ports, leaves: int, down: int, taper: float, tiers: int, pod_leaves: int | None = None
) -> TreeNetwork | None:
    if not 1 < leaves <= most_leaves(ports.count, tiers):
        return None
    return tree(ports.count, leaves, down, taper=taper, tiers=tiers, pod_leaves=pod_leaves)


def _groups(request: TopologyRequest, *, plus: bool) -> TopologyResult:
    ports = ports_for(request.cluster, request.switch)
    endpoints = request.slots * request.cluster.nics
    count, each = most_groups(ports.count, plus=plus, taper=request.taper)
    built = groups(ports.count, endpoints, plus=plus, taper=request.taper)
    return TopologyResult(built, count * each // request.cluster.nics, ports)


def _grid(request: TopologyRequest, axes: int) -> TopologyResult:
    nic_bytes_per_s(request.cluster)  # refuses a cluster without a network
    return TopologyResult(grid(request.cluster.num_nodes, request.cluster.nics, axes=axes), None)


def build(topology: Topology, request: TopologyRequest) -> TopologyResult:
    """Structure of a topology; its fabric is None if it cannot hold the nodes.

    Raises:
        UsageError: no switch fits the NICs, or its ports cannot be split for planes.
    """
    return {
        "star": lambda: _star(request),
        "spine-leaf": lambda: _clos(request, 2),
        "3-tier": lambda: _clos(request, 3),
        "rail-optimised": lambda: _rail_optimised(request),
        "rail-only": lambda: _rail_only(request),
        "multi-plane": lambda: _rail_optimised(request, planes=PLANES, tiers=(2,)),
        "dragonfly": lambda: _groups(request, plus=False),
        "dragonfly+": lambda: _groups(request, plus=True),
        "ring": lambda: _grid(request, 1),
        "torus": lambda: _grid(request, 3),
    }[topology]()
