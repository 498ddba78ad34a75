"""Bill of materials of a network, its cost and power, and the order list of a cluster.

    switches * price + NICs * price + cables * price + transceivers * price

A price is the user's, else the catalogue's with its source and date; a part without one has to be asked for, and is not
in the sum. One transceiver serves a whole cage: an OSFP cage of a QM9700 has two ports, one of a DGX H100 two NICs,
and a port that is split has both of its links on one. A node is priced with its NICs.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainworks.catalog.catalog import find_row, has
from trainworks.catalog.exchange import DOLLAR, Exchange
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.cost.owning import Purchase
from trainworks.plan.network.cables import Cable, cable_plan
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.trace import Traced, fact, leaves, total
from trainworks.units import plural

SWITCHES_OF_A_RACK = 16
"""Switches in one rack (DGX SuperPOD: 80 in six racks with DGX H100, 82 in five with DGX B200)."""
_GBPS = 8 / 1e9


@dataclass(frozen=True, slots=True)
class NetworkPrices:
    """Price of one part in US dollars, and power of one switch in watts; None for that of the catalogue."""

    switch_usd: float | None = None
    cable_usd: float | None = None
    transceiver_usd: float | None = None
    nic_usd: float | None = None
    switch_power_w: float | None = None
    exchange: Exchange = DOLLAR
    """Currency of the answer: that of the first price which is given."""


@dataclass(frozen=True, slots=True)
class LineItem:
    """Equal parts."""

    kind: str
    """`switch`, `NIC`, `cable` or `transceiver`."""
    name: str
    count: int
    each: Traced | None
    """Price of one; None where it has to be asked for."""
    total_usd: Traced | None
    """Price of all; None without a price of one."""

    @property
    def each_usd(self) -> float | None:
        """Price of one, USD."""
        return None if self.each is None else self.each.value


def bill_of_materials(design: NetworkDesign, prices: NetworkPrices) -> list[LineItem]:
    """Switches, NICs, cables and the transceivers at both of their ends; the ones that the network has."""
    return _items(design, prices, list(cable_plan(design)))


def _items(design: NetworkDesign, prices: NetworkPrices, plan: Sequence[Cable]) -> list[LineItem]:
    switch = design.switch
    name = switch.name if switch else "switch"
    known = None if switch is None or switch.price_usd is None else switch.price_usd
    nic_gbps = design.endpoint_bytes_per_s * _GBPS
    nic = _price("NIC", prices.nic_usd)
    nic = fact("price of a NIC", 0.0, "USD", source="in the price of the node") if nic is None else nic
    rows = [
        ("switch", name, design.num_switches, _price("switch", prices.switch_usd, known, name)),
        ("NIC", f"NIC of {nic_gbps:g} Gb/s", design.endpoints, nic),
        ("cable", "cable", design.num_cables, _price("cable", prices.cable_usd)),
    ]
    for (links, gbps), count in sorted(_transceivers(design, plan).items()):
        several = f"{links} x {gbps / links:g}" if links > 1 else f"{gbps:g}"
        price = _listed("transceiver", prices.transceiver_usd, gbps)
        rows.append(("transceiver", f"transceiver of {several} Gb/s", count, price))
    return [_item(*row) for row in rows if row[2]]


def _transceivers(design: NetworkDesign, plan: Iterable[Cable]) -> Counter[tuple[int, float]]:
    """Occupied cages by the links of a full one and by its rate in Gb/s."""
    switch, node = design.switch, design.cluster.node
    nic_gbps = design.endpoint_bytes_per_s * _GBPS
    of_node = node.cage_nics if node is not None and design.cluster.fabric is None else 1
    of_switch = switch.cage_ports if switch is not None else 1
    occupied: set[tuple[str, int, int, float]] = set()
    for cable in plan:
        for device, port in ((cable.from_device, cable.from_port), (cable.to_device, cable.to_port)):
            number = int(port.removeprefix("nic").partition("/")[0]) - 1
            if not port.startswith("nic"):
                assert switch is not None, "a port without a NIC is that of a switch"
                gbps = of_switch * switch.port_bytes_per_s * _GBPS
                occupied.add((device, number // of_switch, of_switch * design.split, gbps))
            elif device.startswith("spare"):
                occupied.add((device, number, 1, nic_gbps))
            else:
                occupied.add((device, number // of_node, of_node, of_node * nic_gbps))
    return Counter((links, gbps) for _, _, links, gbps in occupied)


def _listed(part: str, given: float | None, gbps: float) -> Traced | None:
    """The user's price, else that of the catalogue for this rate; None where it has none."""
    name = f"{gbps:g} Gb/s {part} price"
    if given is None and has("assumptions", name):
        return fact(name, assumed(name).value, "USD", source=str(assumed(name).source))
    return _price(part, given)


def _price(part: str, given: float | None, known: float | None = None, row: str = "") -> Traced | None:
    if given is not None:
        return fact(f"price of a {part}", given, "USD", source=GIVEN)
    if known is None:
        return None
    return fact(f"price of a {part}", known, "USD", source=find_row(row, "switches").figure("price").cited)


def _item(kind: str, name: str, count: int, each: Traced | None) -> LineItem:
    if each is None:
        return LineItem(kind, name, count, None, None)
    several = f"{name.replace(kind, f'{kind}s', 1)}" if kind == "transceiver" else plural(kind)
    pieces = fact(several, count, "", source="the network's design")
    return LineItem(kind, name, count, each, (pieces * each).named(f"{several} price", "USD", count=pieces, each=each))


def bill_total(items: Sequence[LineItem]) -> Traced | None:
    """Price of all priced items; None if none has a price."""
    priced = {f"item{number}": item.total_usd for number, item in enumerate(items) if item.total_usd is not None}
    return total(*priced.values()).named("network price", "USD", **priced) if priced else None


def switch_power(design: NetworkDesign, prices: NetworkPrices) -> Traced | None:
    """All switches at the power that was given, else at that of the catalogue; None where neither is known."""
    each = _switch_power(design, prices)
    if each is None:
        return None
    count = fact("switches", design.num_switches, "", source="the network's design")
    return (count * each).named("switch power", "W", count=count, each=each)


def _switch_power(design: NetworkDesign, prices: NetworkPrices) -> Traced | None:
    if prices.switch_power_w is not None:
        return fact("power of a switch", prices.switch_power_w, "W", source=GIVEN)
    switch = design.switch
    if switch is None or switch.power_w is None:
        return None
    return fact(
        "power of a switch", switch.power_w, "W", source=find_row(switch.name, "switches").figure("power").cited
    )


def usual_share() -> Traced:
    """Usual share of the network in the capital cost."""
    return assumed("network share of capex")


# The order list


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One line of the order list."""

    part: str
    """What it belongs to: `compute`, `storage`, `management`, `spares`, `room` or `total`."""
    item: str
    count: int
    each: Traced | None = None
    """Price of one, USD; None without one."""
    each_w: float | None = None
    """Largest power of one."""
    unpriced: str = "ask"
    """Reason why it has no price: it has to be asked for, or it is `rented`."""


def compute_lines(design: NetworkDesign, prices: NetworkPrices, *, nodes_per_rack: int) -> list[OrderLine]:
    """Switches, NICs, transceivers, cables by length, and spares; the price of a cable holds for each length."""
    plan = list(cable_plan(design, nodes_per_rack=nodes_per_rack))
    items, power = _items(design, prices, plan), _switch_power(design, prices)
    lines = []
    for item in items:
        if item.kind != "cable":
            each_w = power.value if power is not None and item.kind == "switch" else None
            lines.append(OrderLine("compute", item.name, item.count, item.each, each_w))
            continue
        lengths = Counter({(each.tier, each.cable): each.length_m or 0 for each in plan}.values())
        named = ((f"cable of {length} m", count) for length, count in sorted(lengths.items()))
        lines += [OrderLine("compute", name, count, item.each) for name, count in named]
    share = assumed("spare network parts").value
    kept = (item for item in items if item.kind != "NIC")
    return lines + [OrderLine("spares", item.name, math.ceil(share * item.count), item.each) for item in kept]


def support_lines(design: NetworkDesign, support: SupportNetworks) -> list[OrderLine]:
    """Switches and cables of the storage and management networks, without lengths, and racks of switches."""
    storage_switches = round(support.storage_leaves.value + support.storage_spines.value)
    management_switches = round(support.management_switches.value)
    storage_cables = round(support.storage_cables.value)
    racks = math.ceil((design.num_switches + storage_switches + management_switches) / SWITCHES_OF_A_RACK)
    return [
        OrderLine("storage", "switch with 64 ports", storage_switches),
        OrderLine("storage", "NIC with two ports", design.nodes),
        OrderLine("storage", "cable", storage_cables),
        OrderLine("storage", "transceiver", 2 * storage_cables),
        OrderLine("management", "switch with 48 ports", management_switches),
        OrderLine("management", "cable", round(support.management_cables.value)),
        OrderLine("room", "rack for switches", racks),
        OrderLine("room", "power distribution unit for switches", 2 * racks),
    ]


def bill_as_csv(lines: Sequence[OrderLine], purchase: Purchase | None = None) -> str:
    """The order list as a table with a head, and with its sums.

    Columns are `part`, `item`, `count`, `each_usd`, `total_usd`, `each_w`, `total_w` and `price`: source and date of a
    price, `ask` or `rented`. A price or a power that is not known is empty. The sums are those of the rows with a
    price, and the purchase that `size` counts: servers, and a network at its usual share, whose rest is for the rows
    to ask for.

    Args:
        lines: of the list.
        purchase: of the same nodes; None where nothing is bought, or where their power is not published.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["part", "item", "count", "each_usd", "total_usd", "each_w", "total_w", "price"])
    for line in lines:
        usd = None if line.each is None else round(line.each.value)
        each_w = None if line.each_w is None else round(line.each_w)
        total_usd, total_w = (None if each is None else line.count * each for each in (usd, each_w))
        source = (
            line.unpriced if line.each is None else "; ".join(filter(None, (each.source for each in leaves(line.each))))
        )
        table.writerow([line.part, line.item, line.count, usd, total_usd, each_w, total_w, source])
    if purchase is not None:
        table.writerows(_sums(lines, purchase))
    return text.getvalue()


def _sums(lines: Sequence[OrderLine], purchase: Purchase) -> Iterable[Sequence[object]]:
    priced = sum(line.count * round(line.each.value) for line in lines if line.each is not None)
    watts = sum(line.count * round(line.each_w) for line in lines if line.each_w is not None)
    bought = [line for line in lines if line.part != "room"]
    missing = Counter(line.part for line in bought if line.each is None)
    named = ", ".join(f"{count} of {part}" for part, count in missing.items())
    capex, rows = round(purchase.capex.value), len(bought) - missing.total()
    rest = capex - priced
    why = "what the purchase leaves for them" if rest >= 0 else "the rows with a price cost more than a usual network"
    yield "total", "rows with a price", rows, None, priced, None, watts, "sum"
    yield "total", f"rows to ask for: {named}", missing.total(), None, rest, None, None, why
    counted = "as `size` counts it: servers and a network at its usual share"
    yield "total", "purchase", 1, None, capex, None, None, counted
