"""Lint rules that recompute figures of nodes, links, switches and processors."""

from __future__ import annotations

from collections.abc import Iterator

from trainworks.catalog.catalog import Catalog
from trainworks.catalog.facts import Link, Node, Processor, Switch
from trainworks.catalog.problem import Check, Problem, giga
from trainworks.catalog.rows import Kind

PORT_GBIT_PER_S = {
    "InfiniBand": (100, 200, 400, 800),
    "RoCE": (10, 25, 40, 50, 100, 200, 400, 800),
    "Omni-Path": (100, 400),
    "Slingshot": (200, 400),
    "EFA": (100, 200, 400),
}
"""Speeds that a port of the fabric can have."""


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
    """A NIC is at most as fast as its PCIe slot."""
    part = catalog.accelerators.get(node.accelerator)
    slot = node.nic_slot_bytes_per_s or (part.host_bytes_per_s if part else None)
    if slot is not None and node.nic_bytes_per_s > slot:
        yield f"NIC of {giga(node.nic_bytes_per_s)}", f"{giga(slot)} of its slot", "Gb/s were written as GB/s"


def _network_below_scale_up(node: Node, catalog: Catalog) -> Iterator[Problem]:
    """The NICs of a node give each accelerator less than its scale-up link."""
    part = catalog.accelerators.get(node.accelerator)
    if part is None or node.scale_up_domain == 1 or not part.scale_up_bytes_per_s:
        return
    each = node.nics * node.nic_bytes_per_s / node.accelerators
    if each > part.scale_up_bytes_per_s:
        limit = f"{giga(part.scale_up_bytes_per_s)} of {part.scale_up}"
        yield f"{giga(each)} of network per accelerator", limit, "Gb/s were written as GB/s, or too many NICs"


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
        yield giga(link.bytes_per_s), f"{link.lanes} lanes of {giga(link.lane_bytes_per_s)}", meaning


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


NODE_CHECKS: dict[Kind, dict[str, Check]] = {
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
}
"""Rules by kind of row and by name."""
