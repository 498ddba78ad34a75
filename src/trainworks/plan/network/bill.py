"""Bill of materials of a network, and its cost if prices are given.

    switches * price + NICs * price + cables * (cable + 2 transceivers)

No citable source publishes the price or power of a switch, so both are inputs, and missing ones are not counted. The
usual share of a network in the capital cost serves as a check.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.network.cables import cable_plan
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.trace import Traced, fact, total


@dataclass(frozen=True, slots=True)
class NetworkPrices:
    """Price of one part in US dollars, and power of one switch in watts; None if not given."""

    switch_usd: float | None = None
    cable_usd: float | None = None
    transceiver_usd: float | None = None
    nic_usd: float | None = None
    switch_power_w: float | None = None


@dataclass(frozen=True, slots=True)
class LineItem:
    """Equal parts."""

    name: str
    count: int
    each_usd: float | None
    total_usd: Traced | None
    """Price of all; None without a unit price."""


def bill_of_materials(design: NetworkDesign, prices: NetworkPrices) -> list[LineItem]:
    """Switches, NICs, cables and the transceivers at both of their ends; the ones that the network has."""
    switch = design.switch
    items = [
        (switch.name if switch else "switch", "switches", design.num_switches, prices.switch_usd),
        ("NIC", "NICs", design.endpoints, prices.nic_usd),
        ("cable", "cables", design.num_cables, prices.cable_usd),
        ("transceiver", "transceivers", 2 * design.num_cables, prices.transceiver_usd),
    ]
    return [_item(name, plural, count, price) for name, plural, count, price in items if count]


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One line of the order list."""

    part: str
    """What it belongs to: `compute`, `storage`, `management` or `room`."""
    item: str
    count: int
    each_usd: float | None = None
    each_w: float | None = None
    """Largest power of one."""


def compute_lines(design: NetworkDesign, prices: NetworkPrices, *, nodes_per_rack: int) -> list[OrderLine]:
    """Switches, NICs, transceivers, and cables by length; the price of a cable holds for each length."""
    lines = []
    for item in bill_of_materials(design, prices):
        if item.name == "cable":
            plan = cable_plan(design, nodes_per_rack=nodes_per_rack)
            lengths = Counter({(each.tier, each.cable): each.length_m or 0 for each in plan}.values())
            lines += [
                OrderLine("compute", f"cable of {length} m", count, item.each_usd)
                for length, count in sorted(lengths.items())
            ]
            continue
        is_switch = design.switch is not None and item.name == design.switch.name
        lines.append(
            OrderLine("compute", item.name, item.count, item.each_usd, prices.switch_power_w if is_switch else None)
        )
    return lines


def support_lines(design: NetworkDesign, support: SupportNetworks) -> list[OrderLine]:
    """Switches and cables of the storage and management networks, whose lengths are not planned."""
    storage_switches = round(support.storage_leaves.value + support.storage_spines.value)
    storage_cables = round(support.storage_cables.value)
    return [
        OrderLine("storage", "switch with 64 ports", storage_switches),
        OrderLine("storage", "NIC with two ports", design.nodes),
        OrderLine("storage", "cable", storage_cables),
        OrderLine("storage", "transceiver", 2 * storage_cables),
        OrderLine("management", "switch with 48 ports", round(support.management_switches.value)),
        OrderLine("management", "cable", round(support.management_cables.value)),
    ]


def bill_as_csv(lines: Iterable[OrderLine]) -> str:
    """The order list as a table with a head.

    Columns are `part`, `item`, `count`, `each_usd`, `total_usd`, `each_w` and `total_w`; a price or a power that is not
    known is empty.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["part", "item", "count", "each_usd", "total_usd", "each_w", "total_w"])
    for line in lines:
        each_w = None if line.each_w is None else round(line.each_w)
        usd, watts = ((each, None if each is None else line.count * each) for each in (line.each_usd, each_w))
        table.writerow([line.part, line.item, line.count, *usd, *watts])
    return text.getvalue()


def _item(name: str, plural: str, count: int, each_usd: float | None) -> LineItem:
    if each_usd is None:
        return LineItem(name, count, None, None)
    pieces = fact(plural, count, "", source="the network's design")
    price = fact(f"price of a {name}", each_usd, "USD", source=GIVEN)
    return LineItem(name, count, each_usd, (pieces * price).named(f"{plural} price", "USD", count=pieces, each=price))


def bill_total(items: Sequence[LineItem]) -> Traced | None:
    """Price of all priced items; None if none has a price."""
    priced = {f"item{number}": item.total_usd for number, item in enumerate(items) if item.total_usd is not None}
    return total(*priced.values()).named("network price", "USD", **priced) if priced else None


def switch_power(design: NetworkDesign, prices: NetworkPrices) -> Traced | None:
    """All switches at the power that was given; None where none was."""
    if prices.switch_power_w is None:
        return None
    count = fact("switches", design.num_switches, "", source="the network's design")
    each = fact("power of a switch", prices.switch_power_w, "W", source=GIVEN)
    return (count * each).named("switch power", "W", count=count, each=each)


def usual_share() -> Traced:
    """Usual share of the network in the capital cost."""
    return assumed("network share of capex")
