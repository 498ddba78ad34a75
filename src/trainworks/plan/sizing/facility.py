"""Requirements on the room: power with losses and cooling, racks, and whether air cooling suffices.

facility power = nodes * node power * PUE        nodes per rack = floor(rack power / node power)

The nodes of a rack-scale system stay in its racks at any power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainworks.catalog.catalog import system_of
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import System
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.cost.energy import node_count, node_power
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
    if (sold_in := _rack_of(cluster)) is not None:
        each = fact("nodes per rack", sold_in.nodes, "", source=f"catalogue, {sold_in.name}")
        racks = ceil(nodes / each).named("racks", "", each=each)
    return Facility(it_power, total, racks, _cooling(cluster, power.value, rack))


def nodes_per_rack(cluster: ClusterDescription) -> int:
    """Nodes of a rack-scale system, else those that air cools in one rack; four where their power is not published."""
    if (rack := _rack_of(cluster)) is not None:
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
    rack = _rack_of(cluster)
    return nodes if rack is None else -(-nodes // rack.nodes) * rack.nodes


def room_lines(
    cluster: ClusterDescription,
    in_a_rack: int | None = None,
    given: Mapping[str, float] | None = None,
    node_usd: float | None = None,
) -> tuple[OrderLine, ...]:
    """Lines of the order list for nodes, racks, power and cooling; without watts where the power is not published.

    A rack has two power distribution units, each of which can carry all of it. The power supply of the room includes
    the losses of supply and cooling (PUE); the cooling takes what the nodes use. Switches and storage are not in these
    figures, and the column of watts has what uses power, not what supplies it.

    Args:
        cluster: its nodes.
        in_a_rack: nodes of a rack; as many as air cools when None.
        given: numbers that replace assumptions, by their names.
        node_usd: price of a node.
    """
    per_rack, nodes = in_a_rack or nodes_per_rack(cluster), cluster.num_nodes
    racks = -(-nodes // per_rack)
    try:
        facility, each_w = facility_of(cluster, given or {}), node_power(cluster, given).value
    except UsageError:
        return (
            OrderLine("compute", cluster.node_name, nodes, node_usd),
            OrderLine("room", "rack", racks),
            OrderLine("room", "power distribution unit", 2 * racks),
        )
    rack = f"for {_kilowatts(min(per_rack, nodes) * each_w)}"
    by = "liquid" if "liquid" in facility.cooling else "air"
    return (
        OrderLine("compute", cluster.node_name, nodes, node_usd, each_w),
        OrderLine("room", f"rack {rack}", racks),
        OrderLine("room", f"power distribution unit {rack}", 2 * racks),
        OrderLine("room", f"power supply of {_kilowatts(facility.power.value)}", 1),
        OrderLine("room", f"cooling of {_kilowatts(facility.it_power.value)} by {by}", 1),
    )


def _kilowatts(watts: float) -> str:
    return f"{watts / 1000:.1f} kW"


def _rack_of(cluster: ClusterDescription) -> System | None:
    """The rack that the nodes are sold in; None for nodes that are sold alone."""
    system = None if cluster.node is None else system_of(cluster.node.name)
    return system if system is not None and system.form == "rack" else None


def _cooling(cluster: ClusterDescription, node_w: float, rack: Traced) -> str:
    each = f"{node_w / 1000:.3g} kW a node, {rack.value:g} kW a rack with air"
    if (sold_in := _rack_of(cluster)) is not None:
        together = sold_in.nodes
        return f"a rack holds {together} of these nodes, {together * node_w / 1000:.0f} kW: it needs liquid cooling"
    if node_w > 1000 * rack.value:
        return f"{each}: one node is more than a rack takes with air, it needs liquid cooling"
    fit = int(1000 * rack.value // node_w)
    return f"{each}: {fit} node{'s' if fit > 1 else ''} a rack; air is enough"
