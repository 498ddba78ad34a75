"""Network of a cluster: switches and cables by tier, bandwidth, and its largest size.

`bisection` is the bandwidth from one half of the nodes to the other, in one direction, over the worst cut between
nodes: n c / 2 links if non-blocking. `oversubscription` is that over the available links. Traffic between rails that
do not meet passes the nodes' scale-up links first (NCCL's PXN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from trainworks.catalog.catalog import explain_term
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.cluster_words import Switching
from trainworks.catalog.facts import Switch
from trainworks.errors import UsageError
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.network.switches import find_switch, fitting_switches
from trainworks.plan.network.topologies import TOPOLOGIES, Topology, TopologyRequest, TopologyResult, build, rails_of
from trainworks.plan.network.trees import TreeNetwork, leaf_ports

_BY_PREFERENCE: tuple[Topology, ...] = (
    "star",
    "rail-optimised",
    "spine-leaf",
    "multi-plane",
    "rail-only",
    "3-tier",
    "dragonfly+",
    "dragonfly",
)
"""Preference among topologies with as many switches and tiers."""
_ROUNDING = 1 + 1e-9
CABLES_OF_SPARE_SLOT = 4
"""Cables of a fabric manager in the place of a node (DGX SuperPOD H100: 252 cables for 31 nodes of 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDesign(TopologyResult):
    """A network that holds a cluster."""

    topology: Topology
    cluster: ClusterDescription
    """Its nodes, with the oversubscription that was asked for."""
    fabric: TreeNetwork | GroupNetwork | GridNetwork
    rails: int
    spare_slots: int
    """Places for nodes that something else takes."""
    max_nodes: int | None
    """Largest cluster, spare slots left out; None without a limit."""
    too_small: tuple[Switch, ...] = ()
    """Switches with closer ports that were tried first and do not hold the cluster."""

    @property
    def taper(self) -> float:
        """Largest oversubscription requested; leaves that are not full may have less."""
        return self.cluster.oversubscription

    @property
    def nodes(self) -> int:
        """Nodes of the cluster."""
        return self.cluster.num_nodes

    @property
    def nics(self) -> int:
        """NICs of a node."""
        return self.cluster.nics

    @property
    def nodes_per_set(self) -> int:
        """Nodes, or spare slots, that are attached to the same set of leaves."""
        return self.set_nodes or -(-(self.nodes + self.spare_slots) // self.sets)

    @property
    def units(self) -> int:
        """Scalable units, the last one perhaps partly filled."""
        return -(-(self.nodes + self.spare_slots) // self.unit)

    def leaf_of(self, which: int, rail: int) -> int:
        """Number of the leaf of a set of leaves by rail and of a rail, all counted from 0."""
        block, place = divmod(which, self.pod_sets)
        return (block * self.rails + rail) * self.pod_sets + place

    def set_and_rail(self, leaf: int) -> tuple[int, int]:
        """Set and rail of a leaf: the inverse of `leaf_of`."""
        row, place = divmod(leaf, self.pod_sets)
        block, rail = divmod(row, self.rails)
        return block * self.pod_sets + place, rail

    @property
    def endpoints(self) -> int:
        """NICs of all nodes."""
        return self.nodes * self.nics

    @property
    def split(self) -> int:
        """Links that one cable of a switch carries."""
        return self.ports.split if self.ports else 1

    @property
    def max_endpoints(self) -> int | None:
        """NICs of the largest cluster."""
        return None if self.max_nodes is None else self.max_nodes * self.nics

    @property
    def spare_cables(self) -> int:
        """Cables of the devices in the spare slots."""
        return self.spare_slots * min(CABLES_OF_SPARE_SLOT, self.nics)

    @property
    def endpoint_bytes_per_s(self) -> float:
        """Bandwidth of one NIC."""
        return self.cluster.node_bytes_per_s / self.nics

    @property
    def switch(self) -> Switch | None:
        """Model of its switches; None without switches."""
        return self.ports.switch if self.ports else None

    @property
    def switches(self) -> Mapping[str, int]:
        """Switches by tier."""
        fabric, copies = self.fabric, self.copies
        if isinstance(fabric, GridNetwork):
            return {}
        if isinstance(fabric, GroupNetwork):
            names = ("leaf", "spine") if fabric.spines else ("switch", "")
            counts = {names[0]: fabric.count * fabric.members, names[1]: fabric.count * fabric.spines}
        else:
            counts = {"leaf" if fabric.up else "switch": fabric.leaves, "spine": fabric.spines, "core": fabric.cores}
        return {name: copies * count for name, count in counts.items() if count}

    @property
    def num_switches(self) -> int:
        """Switches of all tiers."""
        return sum(self.switches.values())

    @property
    def cables(self) -> Mapping[str, int]:
        """Cables by the tiers they join. A cable between switches carries as many links as a port is split into."""
        fabric, copies = self.fabric, self.copies
        if isinstance(fabric, GridNetwork):
            return {"node-node": fabric.cables}
        endpoint_cables = self.endpoints + self.spare_cables
        if isinstance(fabric, GroupNetwork):
            local = "leaf-spine" if fabric.spines else "local"
            first = "node-leaf" if fabric.spines else "node-switch"
            counts = {first: endpoint_cables, local: fabric.local_links, "global": fabric.global_links}
        else:
            up = fabric.leaves * -(-fabric.up // self.split)
            core = fabric.pod_spines * sum(-(-fabric.spine_up(pod) // self.split) for pod in range(fabric.pods))
            counts = {
                "node-leaf" if up else "node-switch": endpoint_cables,
                "leaf-spine": copies * up,
                "spine-core": copies * core,
            }
        return {name: count for name, count in counts.items() if count}

    @property
    def num_cables(self) -> int:
        """Cables of all kinds."""
        return sum(self.cables.values())

    @property
    def hops_worst(self) -> int:
        """Switches, or without switches NICs, on the longest of the shortest paths."""
        return self.fabric.hops

    @property
    def bisection_links(self) -> float:
        """Links of a NIC's speed between two halves of the nodes."""
        fabric, most = self.fabric, self.endpoints / 2
        if isinstance(fabric, GridNetwork):
            return min(float(fabric.bisection_links), most)
        if isinstance(fabric, GroupNetwork):
            return min(fabric.pair_links * (fabric.count // 2) * -(-fabric.count // 2), most)
        return most if self.sets == 1 else min(self.copies / self.planes * fabric.leaf_spine_links / 2, most)

    @property
    def bisection_bytes_per_s(self) -> float:
        """Bandwidth between two halves of the nodes, in one direction."""
        return self.bisection_links * self.endpoint_bytes_per_s

    @property
    def oversubscription(self) -> float:
        """Bandwidth of half of the NICs over that of the bisection; 1 if non-blocking."""
        return self.endpoints / 2 / self.bisection_links


# Choosing, and refusing


def design_network(
    cluster: ClusterDescription,
    *,
    topology: str = "auto",
    oversubscription: float | None = None,
    switch: Switch | None = None,
    spare_slots: int = 0,
) -> NetworkDesign:
    """The network of a cluster; topology, switch and spare slots that are left out are those that it says.

    `auto` is the design that the vendor of the nodes sells, where it has one for their own network and neither one
    switch nor one scale-up domain holds them; else the topology with the fewest switches of those that serve
    (`serves`); of equal ones that with the fewest tiers, then that whose rails are nearest.

    Without a switch it is the catalogue's with the closest ports of those whose network holds the cluster.

    Args:
        cluster: of at least two nodes with NICs.
        topology: `auto`, one of `TOPOLOGIES`, or `fat-tree`: spine-leaf, with a third tier where two do not hold it.
        oversubscription: links down to links up of a full leaf; of groups, endpoints to links that leave the group;
            that of the cluster when left out.
        switch: instead of the catalogue's.
        spare_slots: places for nodes that something else takes, such as a fabric manager.

    Raises:
        UsageError: the topology is unknown or cannot hold so many nodes, or the switch does not fit the NICs.
    """
    named = (cluster.topology if topology == "auto" else topology).strip().lower().replace("_", "-").replace(" ", "-")
    named = named.replace("optimized", "optimised")
    topology = _SPELLINGS.get(named, named)
    switch = find_switch(cluster.switch) if switch is None and cluster.switch is not None else switch
    spare_slots = spare_slots or cluster.spare_slots
    taper = cluster.oversubscription if oversubscription is None else oversubscription
    _check(topology, taper, spare_slots)
    slots, rails = cluster.num_nodes + spare_slots, rails_of(cluster)
    tried: list[Switch] = []
    candidates: list[Switch | None] = [switch] if switch else [*fitting_switches(cluster)] or [None]
    for each in candidates:
        request = TopologyRequest(cluster, slots, rails, taper, each)
        chosen = _chosen(topology, request)
        design = _design(chosen, request, build(chosen, request))
        if design is not None:
            return replace(design, too_small=tuple(tried))
        tried += [each] if each else []
    raise _refusal(chosen, request)


def topologies_compared(
    cluster: ClusterDescription,
    *,
    oversubscription: float | None = None,
    switch: Switch | None = None,
    spare_slots: int = 0,
) -> list[NetworkDesign]:
    """Every topology that can hold the cluster, in the order of `TOPOLOGIES`.

    Raises:
        UsageError: no switch fits the NICs.
    """
    taper = cluster.oversubscription if oversubscription is None else oversubscription
    request = TopologyRequest(cluster, cluster.num_nodes + spare_slots, rails_of(cluster), taper, switch)
    return [design for design in (_attempt(name, request) for name in TOPOLOGIES) if design is not None]


def _attempt(topology: Topology, request: TopologyRequest) -> NetworkDesign | None:
    try:
        return _design(topology, request, build(topology, request))
    except UsageError:  # ports that cannot be split for planes, or no switch: the topology is not there
        return None


_SPELLINGS = {
    "fattree": "fat-tree",
    "leaf/spine": "leaf-spine",
    "dragonfly-plus": "dragonfly+",
    "3d-torus": "torus",
    "rail": "rail-optimised",
}
_FAT_TREES = ("fat-tree", "clos", "folded-clos", "leaf-spine")
"""Other names of spine-leaf, which a larger cluster needs with three tiers."""


def _chosen(topology: str, request: TopologyRequest) -> Topology:
    if topology == "auto":
        return _automatic(request)
    if topology in _FAT_TREES:
        return _fat_tree(request)
    return next(name for name in TOPOLOGIES if name == topology)


def _fat_tree(request: TopologyRequest) -> Topology:
    return "spine-leaf" if build("spine-leaf", request).fabric is not None else "3-tier"


def _check(topology: str, oversubscription: float, spare_slots: int) -> None:
    if topology not in ("auto", *TOPOLOGIES, *_FAT_TREES):
        raise explain_term(topology) or UsageError(
            f"no topology `{topology}`", hint=f"there are auto, {', '.join(TOPOLOGIES)}"
        )
    if not 1.0 <= oversubscription < float("inf"):
        raise UsageError(
            f"oversubscription must be at least 1, got {oversubscription:g}",
            hint="2 means two links down for each link up",
        )
    if spare_slots < 0:
        raise UsageError(f"spare slots must be at least 0, got {spare_slots}")


def _automatic(request: TopologyRequest) -> Topology:
    """The vendor's own design, else the topology with the fewest switches, then tiers, that serves.

    Where none serves it is the largest, which is refused.
    An oversubscription that the cluster is described with is a fact: where a topology has it, one that has it is taken.
    """
    names = [name for name in _BY_PREFERENCE if request.rails > 1 or name not in ("rail-optimised", "rail-only")]
    designs = (_attempt(name, request) for name in names)
    serving = [design for design in designs if design is not None and serves(design)]
    sold = next((design.topology for design in serving if design.unit > 1), None)
    in_one = request.cluster.scale_up_domain == request.cluster.num_accelerators
    if sold is not None and not in_one and all(design.num_switches > 1 for design in serving):
        return sold
    if request.cluster.oversubscription > 1:
        serving = [design for design in serving if design.oversubscription > 1] or serving
    if serving:
        return min(serving, key=lambda design: (design.num_switches, len(design.switches))).topology
    return "rail-optimised" if request.rails > 1 else _fat_tree(request)


def serves(design: NetworkDesign) -> bool:
    """True if all nodes can train together at the requested oversubscription.

    Every NIC reaches every other through switches, at that rate across the worst cut. Rails of one switch each may stay
    apart where scale-up links join them in the nodes; rails of several switches may not, because a lost link would cut
    a node off from a part of its rail.
    """
    cluster = design.cluster
    apart = design.copies > design.planes
    joined = cluster.scale_up_domain >= cluster.accelerators_per_node and len(design.switches) == 1
    return design.switch is not None and (joined or not apart) and design.oversubscription <= design.taper * _ROUNDING


def _design(topology: Topology, request: TopologyRequest, built: TopologyResult) -> NetworkDesign | None:
    if built.fabric is None:
        return None
    spare = request.slots - request.cluster.num_nodes
    return NetworkDesign(
        **{each.name: getattr(built, each.name) for each in fields(built)},
        topology=topology,
        cluster=request.cluster.with_switching(Switching(request.cluster.in_network_reduction, request.taper)),
        rails=request.rails,
        spare_slots=spare,
        max_nodes=None if built.most_slots is None else built.most_slots - spare,
    )


def _refusal(topology: Topology, request: TopologyRequest) -> UsageError:
    built, nodes = build(topology, request), request.cluster.num_nodes
    if built.ports is None:
        nics = request.cluster.nics
        return UsageError(f"a {topology} needs 2 NICs in each node, but these have {nics}", hint="take `auto`")
    ports = built.ports.count
    if not leaf_ports(ports, request.taper)[1]:
        return UsageError(
            f"oversubscription {request.taper:g} leaves no link up on a switch with {ports} links",
            hint=f"it is at most {ports - 1}",
        )
    spare = request.slots - nodes
    most = max(0, (built.most_slots or 0) - spare)
    if nodes <= most:
        return UsageError(f"{nodes} nodes are too few for a {topology}: fewer switches hold them", hint="take `auto`")
    possible = [each for each in (_attempt(name, request) for name in TOPOLOGIES) if each is not None and each.ports]
    instead = (
        f"`{possible[0].topology}` holds {possible[0].max_nodes:,}" if possible else "name a switch with more ports"
    )
    return UsageError(
        f"{nodes:,} nodes are too many for `{topology}`: with {ports} links on {built.ports.switch.name} it holds "
        f"{most:,} nodes of {request.cluster.nics} NICs",
        hint=instead,
    )
