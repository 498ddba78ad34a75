"""Requirements on the room: power with losses and cooling, racks, and whether air cooling suffices.

facility power = nodes * node power * PUE        nodes per rack = floor(rack power / node power)

The nodes of a rack-scale system stay in its racks at any power.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainworks.catalog.catalog import rack_of
from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.cost.energy import node_count, node_power
from trainworks.plan.cost.owning import Purchase, purchase
from trainworks.plan.network.bill import OrderLine
from trainworks.plan.network.support import NODES_PER_RACK
from trainworks.plan.trace import Traced, ceil, fact, maximum


@dataclass(frozen=True, slots=True)
class Facility:
    """Power, racks and cooling of all nodes, spares included, without switches and storage."""

    it_power: Traced
    power: Traced
    racks: Traced
    cooling: str
    """Cooling, in a sentence."""


def facility_of(cluster: ClusterDescription, given: Mapping[str, float]) -> Facility:
    """Power and racks of a cluster in an owned room.

    Args:
        cluster: with its spares.
        given: numbers that replace assumptions, by their names.

    Raises:
        UsageError: the power of the nodes is not published.
    """
    nodes, power = node_count(cluster), node_power(cluster, given)
    it_power = (nodes * power).named("power of the nodes", "W", power=power)
    pue = assumed("PUE", given)
    total = (it_power * pue).named("power of the room", "W", it_power=it_power)
    rack = assumed("air-cooled rack", given)
    racks = (ceil(nodes / maximum(1, rack * 1000 // power))).named("racks", "", rack=rack, power=power)
    if (sold_in := rack_of(cluster.node)) is not None:
        each = fact("nodes per rack", sold_in.nodes, "", source=f"catalogue, {sold_in.name}")
        racks = ceil(nodes / each).named("racks", "", each=each)
    return Facility(it_power, total, racks, _cooling(cluster, power.value, rack))


def nodes_per_rack(cluster: ClusterDescription) -> int:
    """Nodes of a rack-scale system, else those that air cools in one rack; four where their power is not published."""
    if (rack := rack_of(cluster.node)) is not None:
        return rack.nodes
    try:
        return max(1, int(1000 * assumed("air-cooled rack").value // node_power(cluster).value))
    except UsageError:
        return NODES_PER_RACK


def in_whole_racks(cluster: ClusterDescription, nodes: int) -> int:
    """So many nodes as they are sold: in whole racks for those of a rack-scale system.

    >>> from trainworks.catalog.cluster import parse_cluster
    >>> [in_whole_racks(parse_cluster(text), 20) for text in ("GB200 NVL72", "DGX H100")]
    [36, 20]
    """
    rack = rack_of(cluster.node)
    return nodes if rack is None else -(-nodes // rack.nodes) * rack.nodes


def room_lines(
    cluster: ClusterDescription,
    in_a_rack: int | None = None,
    given: Mapping[str, float] | None = None,
    *,
    network_w: float = 0.0,
) -> tuple[OrderLine, ...]:
    """Lines of the order list for nodes, racks, power and cooling; without watts where the power is not published.

    Nodes that are sold in racks are ordered in racks, with their power shelves. A rack of other nodes has two power
    distribution units, each of which can carry all of it. The power supply of the room includes the losses of supply
    and cooling (PUE); the cooling takes what nodes and switches use. Storage is not in these figures, and the column of
    watts has what uses power, not what supplies it.

    Args:
        cluster: its nodes.
        in_a_rack: nodes of a rack; as many as air cools when None.
        given: numbers that replace assumptions, by their names.
        network_w: power of all switches.
    """
    per_rack, nodes = in_a_rack or nodes_per_rack(cluster), cluster.num_nodes
    racks = -(-nodes // per_rack)
    try:
        facility, each_w = facility_of(cluster, given or {}), node_power(cluster, given).value
    except UsageError:
        return (
            OrderLine("compute", cluster.node_name, nodes),
            OrderLine("room", "rack", racks),
            OrderLine("room", "power distribution unit", 2 * racks),
        )
    rack = f"for {_kilowatts(min(per_rack, nodes) * each_w)}"
    by, losses = "liquid" if "liquid" in facility.cooling else "air", facility.power.value / facility.it_power.value
    it_w = facility.it_power.value + network_w
    shelves = (
        OrderLine("room", f"rack {rack}", racks),
        OrderLine("room", f"power distribution unit {rack}", 2 * racks),
    )
    return (
        *_node_lines(cluster, purchase(cluster, given).server_price, each_w),
        *(shelves if rack_of(cluster.node) is None else ()),
        OrderLine("room", f"power supply of {_kilowatts(it_w * losses)}", 1),
        OrderLine("room", f"cooling of {_kilowatts(it_w)} by {by}", 1),
    )


def purchase_of(cluster: ClusterDescription, given: Mapping[str, float] | None = None) -> Purchase | None:
    """Servers and network that are bought; None where the power of the nodes, which prices them, is not known."""
    try:
        return purchase(cluster, given)
    except UsageError:
        return None


def _node_lines(cluster: ClusterDescription, price: Traced, each_w: float) -> Iterator[OrderLine]:
    """Whole racks of nodes that are sold in racks, and nodes."""
    nodes, system = cluster.num_nodes, rack_of(cluster.node)
    if system is not None and (racks := nodes // system.nodes):
        each = fact("nodes of a rack", system.nodes, "", source=f"catalogue, {system.name}")
        of_rack = (price * each).named(f"price of a {system.name}", "USD", price=price, each=each)
        yield OrderLine("compute", f"{system.name} of {system.nodes} nodes", racks, of_rack, system.nodes * each_w)
        nodes -= racks * system.nodes
    if nodes:
        yield OrderLine("compute", cluster.node_name, nodes, price, each_w)


def _kilowatts(watts: float) -> str:
    return f"{watts / 1000:.1f} kW"


def _cooling(cluster: ClusterDescription, node_w: float, rack: Traced) -> str:
    each = f"{node_w / 1000:.3g} kW a node, {rack.value:g} kW a rack with air"
    if (sold_in := rack_of(cluster.node)) is not None:
        together = sold_in.nodes
        return f"a rack holds {together} of these nodes, {together * node_w / 1000:.0f} kW: it needs liquid cooling"
    if node_w > 1000 * rack.value:
        return f"{each}: one node is more than a rack takes with air, it needs liquid cooling"
    fit = int(1000 * rack.value // node_w)
    return f"{each}: {fit} node{'s' if fit > 1 else ''} a rack; air is enough"
