"""Compatibility of the parts of a node: each rule compares one part with the part that limits it.

A NIC cannot send faster than its PCIe slot, an accelerator's slot has the slower of the two generations that meet in
it, and the accelerators of a node share its NICs. Figures are one direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainworks.catalog.catalog import reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Node, Processor
from trainworks.units import format_bytes

Verdict = Literal["fits", "wasteful", "too little", "mismatch", "note"]

_PCIE_BYTES_PER_S = {3: 15.754e9, 4: 31.508e9, 5: 63.015e9, 6: 121e9}
"""Bandwidth of a slot with 16 lanes, by generation. Source: PCI-SIG."""
_SLOT_LANES = 16
_POOR_SHARE = 0.5
"""NIC bandwidth per accelerator relative to the reference node below which a node counts as poor. Assumed."""


@dataclass(frozen=True, slots=True)
class HardwareFinding:
    """One rule's answer."""

    part: str
    verdict: Verdict
    value: str
    limit: str
    meaning: str


def check_hardware(cluster: ClusterDescription, *, processor: Processor | None = None) -> list[HardwareFinding]:
    """Findings of every applicable rule.

    Args:
        cluster: described in words, so that it has a node.
        processor: of the node; by default the catalogue's.
    """
    base = cluster.node
    if base is None:
        return []
    return [
        *_nic_and_slot(cluster, base),
        *_nics_per_accelerator(cluster, base),
        *([] if processor is None else _processor(cluster, base, processor)),
        *_scale_up(cluster, base),
    ]


def starvation_note(cluster: ClusterDescription) -> str | None:
    """The shortfall of a network between nodes that starves the accelerators; None where it does not, or for one node.

    The rule is that of `check_hardware`: less than half of the bandwidth per accelerator of its reference node.
    """
    if cluster.node is None or cluster.num_nodes == 1:
        return None
    poor = [each for each in _nics_per_accelerator(cluster, cluster.node) if each.verdict == "too little"]
    return next((f"the network starves the accelerators: {each.value}, and {each.limit}" for each in poor), None)


def oversubscription_note(cluster: ClusterDescription) -> str | None:
    """The bandwidth that a described oversubscription leaves to each node; None where none is described."""
    if cluster.oversubscription <= 1:
        return None
    ratio = f"oversubscription {cluster.oversubscription:g}:1"
    if cluster.num_nodes == 1:
        return f"{ratio} changes nothing: a single node has no network"
    left, whole = (_rate(cluster.node_bytes_per_s * share) for share in (cluster.spread_share, 1))
    return (
        f"{ratio}: counts with {left} of the {whole} of each node, its share across the worst cut of the network; "
        "ranks in the order of the network may have more"
    )


def pcie_generation(bytes_per_s: float) -> int | None:
    """PCIe generation of a 16-lane slot of that bandwidth; None for anything else.

    >>> pcie_generation(31.508e9), pcie_generation(450e9)
    (4, None)
    """
    return next((gen for gen, rate in _PCIE_BYTES_PER_S.items() if abs(rate / bytes_per_s - 1) < 0.05), None)


def _nic_and_slot(cluster: ClusterDescription, base: Node) -> Iterator[HardwareFinding]:
    slot = base.nic_slot_bytes_per_s or cluster.accelerator.host_bytes_per_s
    if not base.nics:
        return
    value, limit = f"NIC of {_rate(base.nic_bytes_per_s)}", f"its slot takes {_rate(slot)}"
    if base.nic_bytes_per_s > slot:
        wasted = 1 - slot / base.nic_bytes_per_s
        yield HardwareFinding("NIC", "wasteful", value, limit, f"the slot cannot feed {wasted:.0%} of the NIC")
    else:
        yield HardwareFinding("NIC", "fits", value, limit, "the slot feeds the NIC")


def _nics_per_accelerator(cluster: ClusterDescription, base: Node) -> Iterator[HardwareFinding]:
    """NIC bandwidth per accelerator, against the node that this accelerator is usually sold in."""
    part = cluster.accelerator
    if not base.nics or part.reference_node is None:
        return
    usual = reference_node(part.name)
    each = cluster.node_bytes_per_s / cluster.accelerators_per_node
    usual_each = usual.nics * usual.nic_bytes_per_s / usual.accelerators
    value = f"{base.nics} NIC{'s' if base.nics > 1 else ''} for {base.accelerators}: {_rate(each)} per accelerator"
    limit = f"{_rate(usual_each)} in {usual.name}"
    if each < _POOR_SHARE * usual_each:
        meaning = f"{usual_each / each:.0f} times less than this accelerator usually has"
        yield HardwareFinding("NICs per accelerator", "too little", value, limit, meaning)
    else:
        yield HardwareFinding("NICs per accelerator", "fits", value, limit, "as this accelerator usually has, or more")


def _processor(cluster: ClusterDescription, base: Node, processor: Processor) -> Iterator[HardwareFinding]:
    """The generation of PCIe that processor and accelerator share, and the lanes for accelerators and NICs."""
    generation = pcie_generation(cluster.accelerator.host_bytes_per_s)
    if generation is None:  # the two are one superchip, or nothing is known
        if processor.name == base.processor:
            what = f"{cluster.accelerator.name}: a link between the chips"
            yield HardwareFinding("processor", "fits", processor.name, what, "sold as one")
        return
    value, limit = (
        f"{processor.name}: PCIe {processor.pcie_generation}",
        f"{cluster.accelerator.name}: PCIe {generation}",
    )
    bad: Verdict = "note" if processor.name == base.processor else "mismatch"  # it is sold like that
    if processor.pcie_generation < generation:
        meaning = "every slot runs at the processor's generation, half as fast per step"
        yield HardwareFinding("processor", bad, value, limit, meaning)
    elif processor.pcie_generation > generation:
        meaning = (
            f"a board of the previous generation: its slots stay PCIe {generation}, "
            f"and servers pair it with PCIe {generation}"
        )
        yield HardwareFinding("processor", bad, value, limit, meaning)
    else:
        yield HardwareFinding("processor", "fits", value, limit, "one generation")
    sockets = base.processors or 2
    lanes, needed = sockets * processor.pcie_lanes, _SLOT_LANES * (base.accelerators + base.nics)
    if needed > lanes:
        of = f"{base.accelerators} accelerators and {base.nics} NICs want {needed}"
        meaning = "they share lanes behind PCIe switches, NIC beside accelerator"
        yield HardwareFinding("PCIe lanes", "note", of, f"{sockets} x {processor.name} has {lanes}", meaning)


def _scale_up(cluster: ClusterDescription, base: Node) -> Iterator[HardwareFinding]:
    if base.accelerators == 1:
        return
    if cluster.scale_up_domain >= base.accelerators:
        value = f"{cluster.accelerator.scale_up}, {_rate(cluster.scale_up_bytes_per_s)}"
        limit = f"joins {cluster.scale_up_domain} accelerators"
        yield HardwareFinding(
            "scale-up link", "fits", value, limit, f"tensor parallelism up to {cluster.scale_up_domain}"
        )
        return
    link = cluster.accelerator.scale_up
    value = "no link" if link == "none" else f"{link} joins {cluster.scale_up_domain} of {base.accelerators}"
    slot = _rate(cluster.accelerator.host_bytes_per_s)
    meaning = "data parallelism is what such a node is good at; tensor parallelism crosses the slot"
    yield HardwareFinding("scale-up link", "note", value, f"the others are reached over PCIe, {slot}", meaning)


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"
