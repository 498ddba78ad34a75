"""Cost of an owned cluster, per year and per accelerator hour.

    servers = N * p                                network = servers * f / (1 - f) * b
    capital = (servers * (1 - v) + network) / y    maintenance = (servers + network) * m
    staff = max(few, many * N) * salary            colocation = N * P * 12 * c
    fixed = capital + maintenance + staff + colocation + N * P * idle * PUE * 8760 * e
    year = fixed + N * P * (training - idle) * PUE * e * h

Symbols:
    N   nodes                          y  years of use
    p   price of a server, USD         m  maintenance per year, of what was bought
    f   network's share of capex       P  largest power of a node, kW
    v   residual value of the servers  e  electricity, USD/kWh
    c   rent of a kW and month, USD    h  hours of training in the year
    b   NIC bandwidth per accelerator over that of the node that it is usually sold in

The cost of a network is proportional to its bandwidth: half of the NICs, half of the price. It has no residual value.
Idle hours cost electricity too, at the idle share of the power. Staff is at least that of the first node, and grows
with the nodes once one person is fully occupied.

Left out: interest, storage, an owned building, taxes, insurance, and the months until it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainworks.catalog.catalog import reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.cost.energy import node_count, node_power
from trainworks.plan.trace import Traced, fact, maximum

HOURS_OF_A_YEAR = 8760
MOST_HOURS_OF_A_YEAR = 8784
SERVER_PRICE = "server price"


@dataclass(frozen=True, slots=True)
class Purchase:
    """What is bought once, USD."""

    server_price: Traced
    """Price of one node."""
    servers: Traced
    network: Traced
    capex: Traced
    """Servers and network."""


def purchase(cluster: ClusterDescription, given: Mapping[str, float] | None = None) -> Purchase:
    """Servers and network of a cluster.

    Args:
        cluster: with its spares.
        given: numbers that replace assumptions, by their names; also `server price` in USD and `node power` in W.

    Raises:
        UsageError: the power is not published.
    """
    given = given or {}
    nodes, price = node_count(cluster), _server_price(node_power(cluster, given), given)
    servers = (nodes * price).named("servers", "USD", price=price)
    share = assumed("network share of capex", given)
    width = _network_width(cluster)
    network = (servers * share / (1 - share) * width).named("network", "USD", share=share, width=width)
    return Purchase(price, servers, network, (servers + network).named("capex", "USD"))


@dataclass(frozen=True, slots=True)
class OwnershipCost:
    """Costs of an owned cluster."""

    capex: Traced
    """Servers and network, USD."""
    fixed: Traced
    """USD per year, however little it trains."""
    running: Traced
    """Additional cost of an hour of training, USD/h."""
    per_year: Traced
    """USD per year at the given hours."""
    per_accelerator_hour: Traced
    """USD per accelerator and hour of training."""


def own(
    cluster: ClusterDescription,
    *,
    hours_per_year: Traced,
    given: Mapping[str, float] | None = None,
    colocated: bool = False,
) -> OwnershipCost:
    """Price a cluster that is bought.

    Args:
        cluster: nodes and accelerators.
        hours_per_year: hours of training, above 0 and at most 8,784.
        given: numbers that replace assumptions, by their names; also `server price` in USD and `node power` in W.
        colocated: it is in a colocation data centre, with rent per kW in addition to the electricity.

    Raises:
        UsageError: the power is not published.
    """
    given = given or {}
    nodes, power = node_count(cluster), node_power(cluster, given)
    bought = purchase(cluster, given)
    servers, network, capex = bought.servers, bought.network, bought.capex
    residual, years = assumed("residual value", given), assumed("years of use", given)
    capital = ((servers * (1 - residual) + network) / years).named(
        "capital per year", "USD/year", residual=residual, years=years
    )
    maintenance = (capex * assumed("maintenance", given)).named("maintenance per year", "USD/year")
    few, many = assumed("staff, few nodes", given), assumed("staff, many nodes", given)
    salary = assumed("salary", given)
    staff = (maximum(few, many * nodes) * salary).named("staff per year", "USD/year", few=few, many=many)
    place = _place(nodes, power, given, colocated=colocated)
    idle = _electricity(nodes, power, given, idle=True)
    fixed = (capital + maintenance + staff + place + idle).named(
        "fixed costs", "USD/year", capital=capital, maintenance=maintenance, staff=staff, place=place, idle=idle
    )
    running = _electricity(nodes, power, given, idle=False)
    year = (fixed + running * hours_per_year).named(
        "owning per year", "USD/year", fixed=fixed, running=running, hours=hours_per_year
    )
    accelerators = fact("accelerators", cluster.num_accelerators, "", source=f"`{cluster.name}`")
    hour = (year / (hours_per_year * accelerators)).named(
        "owning per accelerator hour", "USD/h", year=year, hours=hours_per_year
    )
    return OwnershipCost(capex, fixed, running, year, hour)


def _network_width(cluster: ClusterDescription) -> Traced:
    """NIC bandwidth per accelerator over that of the node that the accelerator is usually sold in; 1 where unknown."""
    name, part = "network width", cluster.accelerator
    usual = reference_node(part.name) if part.reference_node else None
    if cluster.node is None or not cluster.node.nics or usual is None or not usual.nics:
        return fact(name, 1.0, "", source="taken for the usual one: its NICs are not published")
    own_rate, usual_rate = (node.nics * node.nic_bytes_per_s / node.accelerators for node in (cluster.node, usual))
    return fact(name, own_rate / usual_rate, "", source=f"NICs of a node over those of {usual.name}, per accelerator")


def _server_price(power: Traced, given: Mapping[str, float]) -> Traced:
    if SERVER_PRICE in given:
        return fact(SERVER_PRICE, given[SERVER_PRICE], "USD", source=GIVEN)
    per_watt = assumed("server price per power", given)
    return (power * per_watt).named(SERVER_PRICE, "USD", power=power, per_watt=per_watt)


def _place(nodes: Traced, power: Traced, given: Mapping[str, float], *, colocated: bool) -> Traced:
    if not colocated:
        return fact("place per year", 0.0, "USD/year", source="your own room, whose price is left out")
    rent = assumed("colocation", given)
    return (nodes * power / 1000 * rent * 12).named("place per year", "USD/year", power=power, colocation=rent)


def _electricity(nodes: Traced, power: Traced, given: Mapping[str, float], *, idle: bool) -> Traced:
    """Electricity of an idle year, or the additional electricity of an hour of training."""
    resting, training = assumed("power while idle", given), assumed("power while training", given)
    pue, electricity = assumed("PUE", given), assumed("electricity", given)
    kilowatts = nodes * power / 1000
    if idle:
        yearly = kilowatts * resting * pue * HOURS_OF_A_YEAR * electricity
        return yearly.named("idle electricity", "USD/year", power=power, idle=resting)
    hourly = kilowatts * (training - resting) * pue * electricity
    return hourly.named("electricity of an hour", "USD/h", power=power, idle=resting, training=training)


def break_even_hours(owning: OwnershipCost, rent: Traced) -> Traced | None:
    """Hours h of training a year at which owning costs as much as renting.

    fixed + running * h = rent * h, so that h = fixed / (rent - running).

    Args:
        owning: costs of the cluster when owned.
        rent: of the same cluster, USD/h.

    Returns:
        The hours, possibly more than a year has; None if an hour's electricity alone costs more than its rent.
    """
    if rent.value <= owning.running.value:
        return None
    name = f"break-even hours against {rent.name.removesuffix(' per hour')}"
    hours = owning.fixed / (rent - owning.running)
    return hours.named(name, "h", fixed=owning.fixed, rent=rent, running=owning.running)


def fits_in_year(hours: Traced | None) -> bool:
    """True if a year has that many hours; otherwise owning never pays."""
    return hours is not None and hours.value <= HOURS_OF_A_YEAR
