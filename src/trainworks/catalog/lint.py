"""What can be recomputed from other figures of the catalogue, is.

Each rule looks at one fact and yields findings with the value, the limit and what is probably wrong. A row may explain
a finding (`explained` in the data); an explanation that no longer explains anything is a finding itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainworks.catalog.catalog import Catalog
from trainworks.catalog.facts import (
    Accelerator,
    Assumption,
    Fleet,
    Grid,
    Link,
    Node,
    Offer,
    Precision,
    Processor,
    Storage,
    Switch,
)
from trainworks.catalog.rows import KINDS, Kind

__all__ = ["RULES", "Finding", "lint"]

FLOPS_PER_CLOCK = {
    "Volta": 1024,
    "Turing": 1024,
    "Ampere": 2048,
    "Ampere GA10x": 1024,
    "Ada": 1024,
    "Hopper": 4096,
    "Blackwell": 8192,
    "CDNA2": 1024,
    "CDNA3": 2048,
    "CDNA4": 4096,
}
"""Dense 16-bit matrix FLOPs of one multiprocessor per clock, from the white papers of the architectures."""

CLOCK_HZ = (1.05e9, 2.6e9)
"""Clocks at which accelerators of the last ten years are rated."""

STACK_BYTES_PER_S = {
    "HBM2": (180e9, 345e9),
    "HBM2e": (345e9, 500e9),
    "HBM3": (550e9, 840e9),
    "HBM3e": (700e9, 1.28e12),
    "HBM4": (1.6e12, 3.0e12),
}
"""Bandwidth of one HBM stack: 1024 pins (HBM4: 2048) at the pin rates that were shipped."""

BOARD_BYTES_PER_S = {"GDDR5": (150e9, 500e9), "GDDR6": (250e9, 1.0e12), "GDDR6X": (700e9, 1.1e12)}
"""Bandwidth of a board with GDDR memory."""

PORT_GBIT_PER_S = {
    "InfiniBand": (100, 200, 400, 800),
    "RoCE": (10, 25, 40, 50, 100, 200, 400, 800),
    "Omni-Path": (100, 400),
    "Slingshot": (200, 400),
    "EFA": (100, 200, 400),
}
"""Speeds that a port of the fabric can have."""

CLIENT_BYTES_PER_S = 100e9
"""More than one node has been seen to read from shared storage (two ports of 400 Gb/s)."""

GRID_KG_PER_KWH = (0.005, 1.2)
"""Greenhouse gases of a kilowatt-hour: hydropower and nuclear alone, and lignite alone."""

ACCELERATOR_USD_PER_HOUR = (0.05, 30.0)
"""Prices of one accelerator that were seen; some lists print 700 where they mean "not offered"."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure that does not agree with the others."""

    kind: Kind
    row: str
    rule: str
    value: str
    limit: str
    meaning: str
    explained: str | None = None


Problem = tuple[str, str, str]
"""Value, limit, and what it probably means."""


def lint(catalog: Catalog) -> list[Finding]:
    """All findings, explained ones too, in the order of the catalogue."""
    findings = [
        Finding(kind, name, rule, *problem)
        for kind in KINDS
        for name, fact in getattr(catalog, kind).items()
        for rule, check in CHECKS[kind].items()
        for problem in check(fact, catalog)
    ]
    explained = [replace(found, explained=catalog.explained.get(found.row, {}).get(found.rule)) for found in findings]
    return [*explained, *_stale_explanations(catalog, explained)]


def _stale_explanations(catalog: Catalog, findings: list[Finding]) -> Iterator[Finding]:
    found = {(finding.row, finding.rule) for finding in findings}
    for row, rules in catalog.explained.items():
        for rule, why in rules.items():
            if (row, rule) not in found:
                kind: Kind = "accelerators" if row in catalog.accelerators else "nodes"
                meaning = "it explains a finding that the figures no longer give"
                yield Finding(kind, row, "stale-explanation", f"`{rule}`: {why}", "a finding of that rule", meaning)


# Accelerators


def _ratio(part: Accelerator, of: Precision, to: Precision, expected: float, *, meaning: str) -> Iterator[Problem]:
    """A rate that should be a multiple of another, where both are given."""
    rates = part.peak_flops_per_s
    if of in rates and to in rates and abs(rates[of] / rates[to] / expected - 1) > 0.02:
        yield f"{of} is {rates[of] / rates[to]:.2f} x {to}", f"{expected:g} x", meaning


def _fp8_is_twice_bf16(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    return _ratio(part, "fp8", "bf16", 2.0, meaning="one of the two may be a sparse rate")


def _fp4_is_twice_fp8(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    return _ratio(part, "fp4", "fp8", 2.0, meaning="one of the two may be a sparse rate")


def _tf32_is_half_bf16(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    return _ratio(part, "tf32", "bf16", 0.5, meaning="one of the two may be a sparse rate")


def _matmul_below_peak(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    """The fastest measured product lies below the peak, and not far below."""
    peak = part.peak_flops_per_s.get("bf16")
    if part.matmul_flops_per_s is None or peak is None:
        return
    value = f"matmul {_tera(part.matmul_flops_per_s)}"
    if part.matmul_flops_per_s > peak:
        yield value, f"peak {_tera(peak)}", "the peak may be that of half a package"
    elif part.matmul_flops_per_s < 0.45 * peak:
        yield value, f"at least 45% of {_tera(peak)}", "the peak may be a sparse rate"


def _implied_clock(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    """The clock at which the multiprocessors would reach the peak: sparse rates double it, half a package halves it."""
    per_clock = FLOPS_PER_CLOCK.get(part.architecture or "")
    rate = part.peak_flops_per_s.get("bf16", part.peak_flops_per_s.get("fp16"))
    if per_clock is None or part.multiprocessors is None or rate is None:
        return
    clock = rate / per_clock / part.multiprocessors
    low, high = CLOCK_HZ
    if not low <= clock <= high:
        meaning = "the peak may be a sparse rate" if clock > high else "the peak may be that of half a package"
        yield f"{clock / 1e9:.2f} GHz to reach {_tera(rate)}", f"{low / 1e9:g} to {high / 1e9:g} GHz", meaning


def _memory_bandwidth(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    """Bandwidth by stack of HBM, or of a board with GDDR."""
    stacked = STACK_BYTES_PER_S.get(part.memory_type or "")
    limits = stacked or BOARD_BYTES_PER_S.get(part.memory_type or "")
    if limits is None or (stacked and part.memory_stacks is None):
        return
    each = part.memory_bytes_per_s / ((part.memory_stacks or 1) if stacked else 1)
    if not limits[0] <= each <= limits[1]:
        of = f"{part.memory_type}{' per stack' if stacked else ''}"
        meaning = "another type of memory, half a package, or bits for bytes"
        yield f"{_giga(each)} {of}", f"{_giga(limits[0])} to {_giga(limits[1])}", meaning


def _bytes_per_flop(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    """Memory bandwidth for each dense 16-bit matrix FLOP."""
    rate = part.peak_flops_per_s.get("bf16", part.peak_flops_per_s.get("fp16"))
    if rate is None:
        return
    low, high = (4.0, 8.0) if part.launched < 2021 else (1.7, 9.0)
    value = part.memory_bytes_per_s / rate * 1e3
    if not low <= value <= high:
        yield f"{value:.2f} GB/s per TFLOP/s", f"{low:g} to {high:g}", "a sparse rate, or bits for bytes"


def _memory_as_named(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    """The GB in the name are GB or GiB of the memory; a few packages sell a little less than they hold."""
    written = part.name.rpartition("-")[2].removesuffix("GB")
    if not part.name.endswith("GB") or not written.isdigit():
        return
    low, high = 0.99 * int(written) * 1e9, 1.005 * int(written) * 2**30
    if not low <= part.memory_bytes <= high:
        yield f"{part.memory_bytes / 1e9:.1f} GB", f"{written} GB or GiB", "memory of half a package, or another part"


def _usable_memory(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    if part.usable_bytes is None:
        return
    share = part.usable_bytes / part.memory_bytes
    if not 0.975 <= share <= 1.0:
        yield f"{share:.1%} of the memory is usable", "97.5% to 100%", "GB for GiB, or memory that ECC takes"


def _power(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    if part.power_w is not None and not 50 <= part.power_w <= 3000:
        yield f"{part.power_w:g} W", "50 to 3000 W", "power of a node, or in kW"


def _scale_up_is_its_link(part: Accelerator, catalog: Catalog) -> Iterator[Problem]:
    """The bandwidth into the scale-up domain is that of the link it names: one direction."""
    if part.scale_up == "none":
        if part.scale_up_bytes_per_s:
            yield _giga(part.scale_up_bytes_per_s), "0: it names no link", "a link has to be named"
        return
    own = catalog.links.get(part.scale_up)
    if own is None:
        yield f"link `{part.scale_up}`", "a link of the catalogue", "a name that is written differently"
    elif abs(part.scale_up_bytes_per_s / own.bytes_per_s - 1) > 0.01:
        twice = abs(part.scale_up_bytes_per_s / own.bytes_per_s - 2) < 0.05
        meaning = "both directions were counted" if twice else "another generation of the link"
        yield _giga(part.scale_up_bytes_per_s), f"{_giga(own.bytes_per_s)} of {own.name}, one direction", meaning


# Nodes, links and switches


def _accelerator_is_known(node: Node, catalog: Catalog) -> Iterator[Problem]:
    if node.accelerator not in catalog.accelerators and node.accelerator != "any PCIe card":
        yield f"`{node.accelerator}`", "an accelerator of the catalogue", "a name that is written differently"


def _domain_fits(node: Node, catalog: Catalog) -> Iterator[Problem]:
    """A scale-up domain is part of a node, a node, or several whole ones, and needs a link."""
    small, large = sorted((node.scale_up_domain, node.accelerators))
    if large % small:
        yield f"domain of {node.scale_up_domain}", f"parts or multiples of {node.accelerators}", "another node's domain"
    part = catalog.accelerators.get(node.accelerator)
    if part is not None and node.scale_up_domain > (part.scale_up_group or (1 if part.scale_up == "none" else large)):
        joined = f"{part.name} joins {part.scale_up_group or 1}"
        yield f"domain of {node.scale_up_domain}", joined, "a card in a PCIe slot is taken for an SXM part"


def _nic_fits_its_slot(node: Node, catalog: Catalog) -> Iterator[Problem]:
    """A NIC is no faster than its PCIe slot."""
    part = catalog.accelerators.get(node.accelerator)
    slot = node.nic_slot_bytes_per_s or (part.host_bytes_per_s if part else None)
    if slot is not None and node.nic_bytes_per_s > slot:
        yield f"NIC of {_giga(node.nic_bytes_per_s)}", f"{_giga(slot)} of its slot", "Gb/s were written as GB/s"


def _network_below_scale_up(node: Node, catalog: Catalog) -> Iterator[Problem]:
    """What a node's NICs bring to each accelerator is less than its scale-up link brings."""
    part = catalog.accelerators.get(node.accelerator)
    if part is None or node.scale_up_domain == 1 or not part.scale_up_bytes_per_s:
        return
    each = node.nics * node.nic_bytes_per_s / node.accelerators
    if each > part.scale_up_bytes_per_s:
        limit = f"{_giga(part.scale_up_bytes_per_s)} of {part.scale_up}"
        yield f"{_giga(each)} of network per accelerator", limit, "Gb/s were written as GB/s, or too many NICs"


def _nic_speed(node: Node, _: Catalog) -> Iterator[Problem]:
    if node.kind != "instance" and node.nics:
        yield from _port_speed(node.network, node.nic_bytes_per_s)


def _network_is_said(node: Node, _: Catalog) -> Iterator[Problem]:
    if (node.nics == 0) != (node.network == "not published"):
        yield f"{node.nics} NICs, network `{node.network}`", "NICs and their network, or neither", "half was filled in"


def _sum_of_lanes(link: Link, _: Catalog) -> Iterator[Problem]:
    """A port is the sum of its lanes in one direction."""
    if link.lanes is None or link.lane_bytes_per_s is None:
        return
    total = link.lanes * link.lane_bytes_per_s
    if abs(link.bytes_per_s / total - 1) > 0.01:
        twice = abs(link.bytes_per_s / total - 2) < 0.05
        meaning = "both directions were counted" if twice else "bits for bytes, or another width"
        yield _giga(link.bytes_per_s), f"{link.lanes} lanes of {_giga(link.lane_bytes_per_s)}", meaning


def _link_speed(link: Link, _: Catalog) -> Iterator[Problem]:
    return _port_speed(link.network, link.bytes_per_s)


def _switch_port_speed(switch: Switch, _: Catalog) -> Iterator[Problem]:
    return _port_speed(switch.network, switch.port_bytes_per_s)


def _port_speed(network: str, bytes_per_s: float) -> Iterator[Problem]:
    """A port has one of the speeds that its fabric comes in."""
    speeds = PORT_GBIT_PER_S.get(network)
    written = bytes_per_s * 8 / 1e9
    if speeds is not None and not any(abs(written / speed - 1) < 0.01 for speed in speeds):
        meaning = "GB/s and Gb/s were mixed up, or both directions were counted"
        yield f"port of {written:g} Gb/s", f"{network}: {', '.join(map(str, speeds))} Gb/s", meaning


def _memory_of_its_time(processor: Processor, _: Catalog) -> Iterator[Problem]:
    """DDR5 came with PCIe 5, DDR4 with the generations before."""
    if processor.memory_type.startswith("DDR") and (processor.memory_type >= "DDR5") != (
        processor.pcie_generation >= 5
    ):
        value = f"{processor.memory_type} with PCIe {processor.pcie_generation}"
        yield value, "DDR5 with PCIe 5, DDR4 with PCIe 4", "one of the two belongs to another processor"


def _offer_is_of_its_node(offer: Offer, catalog: Catalog) -> Iterator[Problem]:
    """An offer of a node has that node's accelerators, and an accelerator that there is."""
    if offer.accelerator not in catalog.accelerators:
        yield offer.accelerator, "an accelerator of the catalogue", "a typing error, or an alias"
    if offer.node is None:
        return
    if offer.node not in catalog.nodes:
        yield offer.node, "a node of the catalogue", "a typing error, or an alias"
        return
    node = catalog.nodes[offer.node]
    sold, built = (offer.accelerator, offer.accelerators), (node.accelerator, node.accelerators)
    if sold != built:
        meaning = "the offer is of another size or part"
        yield f"{sold[1]} x {sold[0]}", f"{offer.node} has {built[1]} x {built[0]}", meaning


def _offer_price(offer: Offer, _: Catalog) -> Iterator[Problem]:
    """A price per accelerator hour that somebody could ask for; spot in order, and below on demand."""
    low, high = ACCELERATOR_USD_PER_HOUR
    prices = [*offer.spot_usd_per_hour, *filter(None, [offer.usd_per_hour])]
    for price in prices:
        if not low <= price / offer.accelerators <= high:
            each = f"{price / offer.accelerators:g} USD per accelerator hour"
            yield each, f"{low:g} to {high:g}", "a placeholder for `not offered`, or the price of another size"
    if prices != sorted(prices):
        written = ", ".join(f"{price:g}" for price in prices)
        yield written, "cheapest, median and dearest spot, on demand", "spot is dearer than on demand"


def _storage_rates(system: Storage, _: Catalog) -> Iterator[Problem]:
    """A server writes no faster than it reads, and a bottleneck of the network is written in bytes."""
    read, write = system.server_read_bytes_per_s, system.server_write_bytes_per_s
    if read is not None and write is not None and write > read:
        yield f"writes {_giga(write)}", f"reads {_giga(read)}", "read and write were swapped"
    client = system.client_bytes_per_s
    if client is not None and client > CLIENT_BYTES_PER_S:
        yield f"client of {_giga(client)}", f"{_giga(CLIENT_BYTES_PER_S)}", "Gb/s were written as GB/s"


def _fleet_rate(fleet: Fleet, catalog: Catalog) -> Iterator[Problem]:
    """Failures over nodes and days are the rate, causes add up to the failures, the accelerator is known."""
    if fleet.accelerator is not None and fleet.accelerator not in catalog.accelerators:
        yield fleet.accelerator, "an accelerator of the catalogue", "a typing error, or an alias"
    if fleet.causes is not None and sum(fleet.causes.values()) != fleet.failures:
        yield f"causes of {sum(fleet.causes.values())}", f"{fleet.failures} failures", "a cause is missing"
    if fleet.failures is None or fleet.nodes is None or fleet.days is None:
        return
    counted = fleet.failures / fleet.nodes / fleet.days
    rate = fleet.failures_per_node_s * 86400
    if abs(rate / counted - 1) > 0.02:
        yield f"{1000 * rate:.2f} per 1000 node-days", f"{1000 * counted:.2f}", "GPUs were counted for nodes"


def _fleet_stands_alone(fleet: Fleet, catalog: Catalog) -> Iterator[Problem]:
    """One fleet stands for an architecture, and the architecture is that of some accelerator."""
    known = {part.architecture for part in catalog.accelerators.values()}
    for architecture in fleet.stands_for:
        others = [name for name, other in catalog.fleets.items() if architecture in other.stands_for]
        if len(others) > 1:
            yield f"{architecture}: {', '.join(others)}", "one fleet", "which one a plan takes is left to chance"
        if architecture not in known:
            yield architecture, "an architecture of some accelerator", "a typing error"


def _assumption_in_range(assumption: Assumption, _: Catalog) -> Iterator[Problem]:
    """The usual value lies between the ends."""
    values = [assumption.low, assumption.typical, assumption.high]
    if values != sorted(values):
        yield f"{assumption.typical:g}", f"{assumption.low:g} to {assumption.high:g}", "two columns were swapped"


def _grid_intensity(grid: Grid, _: Catalog) -> Iterator[Problem]:
    """Between hydropower alone and lignite alone."""
    low, high = GRID_KG_PER_KWH
    if not low <= grid.kg_co2e_per_kwh <= high:
        limit = f"{low * 1e3:g} to {high * 1e3:g} g/kWh"
        yield f"{grid.kg_co2e_per_kwh * 1e3:g} g/kWh", limit, "kg for g, or a figure per MWh"


def _tera(rate: float) -> str:
    return f"{rate / 1e12:g} TFLOP/s"


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"


CHECKS: dict[Kind, dict[str, Callable[[Any, Catalog], Iterator[Problem]]]] = {
    "accelerators": {
        "fp8-is-twice-bf16": _fp8_is_twice_bf16,
        "fp4-is-twice-fp8": _fp4_is_twice_fp8,
        "tf32-is-half-bf16": _tf32_is_half_bf16,
        "matmul-below-peak": _matmul_below_peak,
        "implied-clock": _implied_clock,
        "memory-bandwidth": _memory_bandwidth,
        "bytes-per-flop": _bytes_per_flop,
        "memory-as-named": _memory_as_named,
        "usable-memory": _usable_memory,
        "power": _power,
        "scale-up-is-its-link": _scale_up_is_its_link,
    },
    "nodes": {
        "accelerator-is-known": _accelerator_is_known,
        "domain-fits": _domain_fits,
        "nic-fits-its-slot": _nic_fits_its_slot,
        "network-below-scale-up": _network_below_scale_up,
        "nic-speed": _nic_speed,
        "network-is-said": _network_is_said,
    },
    "links": {"sum-of-lanes": _sum_of_lanes, "port-speed": _link_speed},
    "switches": {"port-speed": _switch_port_speed},
    "processors": {"memory-of-its-time": _memory_of_its_time},
    "storage": {"storage-rates": _storage_rates},
    "offers": {"offer-is-of-its-node": _offer_is_of_its_node, "offer-price": _offer_price},
    "fleets": {"fleet-rate": _fleet_rate, "fleet-stands-alone": _fleet_stands_alone},
    "assumptions": {"in-range": _assumption_in_range},
    "grids": {"grid-intensity": _grid_intensity},
}
RULES = (*(rule for checks in CHECKS.values() for rule in checks), "stale-explanation")
"""Names that `explained` in the data may use, and those of the findings."""
