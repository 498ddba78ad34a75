"""Structure of each topology for a cluster, and the largest cluster it supports.

Symbols: n nodes with c NICs each, N = n c endpoints, r rails (NICs with the same place in their nodes), w = c / r NICs
of a node on a rail, R links of a switch, t the taper (links down to links up of a leaf; 1 is non-blocking).

    star            each switch has whole rails, as many as fit into R ports; rails meet in the nodes alone
    spine-leaf      two tiers, nodes fill one leaf after the other: at most R leaves
    3-tier          the same with cores above the spines: at most R^2 / 2 leaves
    rail-optimised  leaves in sets of r, rail i of a node on leaf i of its set; two tiers, else three
    rail-only       a network of its own for each rail, of one or two tiers
    multi-plane     each NIC split over two networks of ports at half of its speed: R doubles
    dragonfly       groups of switches, every one connected to every other (`groups.py`); dragonfly+ with spines in each
    ring, torus     no switches: NIC to NIC (`grids.py`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Switch
from trainworks.plan.network.grids import GridNetwork, grid
from trainworks.plan.network.groups import GroupNetwork, groups, most_groups
from trainworks.plan.network.switches import Ports, nic_bytes_per_s, ports_for
from trainworks.plan.network.trees import TreeNetwork, leaf_ports, most_leaves, star, tree

__all__ = ["TOPOLOGIES", "Topology", "TopologyRequest", "TopologyResult", "build", "rails_of"]

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


def rails_of(cluster: ClusterDescription) -> int:
    """One per NIC; one per accelerator where several NICs serve each."""
    several = cluster.nics > cluster.accelerators_per_node and cluster.nics % cluster.accelerators_per_node == 0
    return cluster.accelerators_per_node if several else cluster.nics


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """Structure of a topology and its largest size, spare slots included."""

    fabric: TreeNetwork | GroupNetwork | GridNetwork | None
    most_slots: int | None
    ports: Ports | None = None
    copies: int = 1
    planes: int = 1
    sets: int = 1


def _star(wanted: TopologyRequest) -> TopologyResult:
    ports = ports_for(wanted.cluster, wanted.switch)
    each = wanted.slots * wanted.rail_nics
    together = max(1, ports.count // each)
    copies = -(-wanted.rails // together)
    built = star(ports.count, each * -(-wanted.rails // copies)) if each <= ports.count else None
    return TopologyResult(built, ports.count // wanted.rail_nics, ports, copies)


def _clos(wanted: TopologyRequest, tiers: int) -> TopologyResult:
    """Nodes on leaves in their order."""
    ports = ports_for(wanted.cluster, wanted.switch)
    down = leaf_ports(ports.count, wanted.taper)[0]
    most = down * most_leaves(ports.count, tiers) // wanted.cluster.nics
    endpoints = wanted.slots * wanted.cluster.nics
    leaves = max(2, -(-endpoints // down)) if down else 0
    built = _tree(ports, leaves, -(-endpoints // max(1, leaves)), wanted.taper, tiers)
    return TopologyResult(built, most, ports, sets=leaves)


def _rail_optimised(wanted: TopologyRequest, *, planes: int = 1, tiers: tuple[int, ...] = (2, 3)) -> TopologyResult:
    """Leaves in sets of as many as there are rails; the fewest tiers that hold them."""
    ports = ports_for(wanted.cluster, wanted.switch, planes=planes)
    per_leaf = leaf_ports(ports.count, wanted.taper)[0] // wanted.rail_nics
    most = [most_leaves(ports.count, tier) // wanted.rails * per_leaf for tier in tiers]
    sets = -(-wanted.slots // per_leaf) if per_leaf else 0
    down = -(-wanted.slots // max(1, sets)) * wanted.rail_nics
    trees = (_tree(ports, sets * wanted.rails, down, wanted.taper, tier) for tier in tiers)
    return TopologyResult(next(filter(None, trees), None), max(most), ports, planes, planes, sets)


def _rail_only(wanted: TopologyRequest) -> TopologyResult:
    ports = ports_for(wanted.cluster, wanted.switch)
    per_leaf = leaf_ports(ports.count, wanted.taper)[0] // wanted.rail_nics
    most = max(ports.count // wanted.rail_nics, per_leaf * ports.count)
    each = wanted.slots * wanted.rail_nics
    if each <= ports.count:
        return TopologyResult(star(ports.count, each), most, ports, wanted.rails)
    leaves = -(-wanted.slots // per_leaf) if per_leaf else 0
    down = -(-wanted.slots // max(1, leaves)) * wanted.rail_nics
    return TopologyResult(_tree(ports, leaves, down, wanted.taper, 2), most, ports, wanted.rails, sets=leaves)


def _tree(ports: Ports, leaves: int, down: int, taper: float, tiers: int) -> TreeNetwork | None:
    if not 1 < leaves <= most_leaves(ports.count, tiers):
        return None
    return tree(ports.count, leaves, down, taper=taper, tiers=tiers)


def _groups(wanted: TopologyRequest, *, plus: bool) -> TopologyResult:
    ports = ports_for(wanted.cluster, wanted.switch)
    endpoints = wanted.slots * wanted.cluster.nics
    count, each = most_groups(ports.count, plus=plus, taper=wanted.taper)
    built = groups(ports.count, endpoints, plus=plus, taper=wanted.taper)
    return TopologyResult(built, count * each // wanted.cluster.nics, ports)


def _grid(wanted: TopologyRequest, axes: int) -> TopologyResult:
    nic_bytes_per_s(wanted.cluster)  # refuses a cluster without a network
    return TopologyResult(grid(wanted.cluster.num_nodes, wanted.cluster.nics, axes=axes), None)


def build(topology: Topology, wanted: TopologyRequest) -> TopologyResult:
    """Structure of a topology; its fabric is None if it cannot hold the nodes.

    Raises:
        UsageError: no switch fits the NICs, or its ports cannot be split for planes.
    """
    builders = {
        "star": lambda: _star(wanted),
        "spine-leaf": lambda: _clos(wanted, 2),
        "3-tier": lambda: _clos(wanted, 3),
        "rail-optimised": lambda: _rail_optimised(wanted),
        "rail-only": lambda: _rail_only(wanted),
        "multi-plane": lambda: _rail_optimised(wanted, planes=PLANES, tiers=(2,)),
        "dragonfly": lambda: _groups(wanted, plus=False),
        "dragonfly+": lambda: _groups(wanted, plus=True),
        "ring": lambda: _grid(wanted, 1),
        "torus": lambda: _grid(wanted, 3),
    }
    return builders[topology]()
