"""Lint rules that recompute figures of accelerators, nodes, links, switches and processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainworks.catalog.catalog import Catalog
from trainworks.catalog.facts import Accelerator, AttentionKernel, Link, Node, Precision, Processor
from trainworks.catalog.rows import Kind

Problem = tuple[str, str, str]
"""Value, limit and probable cause."""
Check = Callable[[Any, Catalog], Iterator[Problem]]
"""A rule: yields the problems of one fact, given the catalogue."""

FLOPS_PER_CLOCK = {
    "Volta": 1024,
    "Turing": 1024,
    "Ampere": 2048,
    "Ampere GA10x": 1024,
    "Ada": 1024,
    "Hopper": 4096,
    "Blackwell": 8192,
    "Blackwell Ultra": 8192,
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


def tera(rate: float) -> str:
    """Format a FLOP rate."""
    return f"{rate / 1e12:g} TFLOP/s"


def giga(rate: float) -> str:
    """Format a bandwidth."""
    return f"{rate / 1e9:.4g} GB/s"


def _ratio(of: Precision, to: Precision, expected: float) -> Check:
    """A rate that should be a multiple of another, where both are given."""

    def check(part: Accelerator, _: Catalog) -> Iterator[Problem]:
        rates = part.peak_flops_per_s
        if of in rates and to in rates and abs(rates[of] / rates[to] / expected - 1) > 0.02:
            meaning = "one of the two may be a sparse rate"
            yield f"{of} is {rates[of] / rates[to]:.2f} x {to}", f"{expected:g} x", meaning

    return check


def _matmul_below_peak(part: Accelerator, _: Catalog) -> Iterator[Problem]:
    peak = part.peak_flops_per_s.get("bf16")
    if part.matmul_flops_per_s is None or peak is None:
        return
    value = f"matmul {tera(part.matmul_flops_per_s)}"
    if part.matmul_flops_per_s > peak:
        yield value, f"peak {tera(peak)}", "the peak may be that of half a package"
    elif part.matmul_flops_per_s < 0.45 * peak:
        yield value, f"at least 45% of {tera(peak)}", "the peak may be a sparse rate"


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
        yield f"{clock / 1e9:.2f} GHz to reach {tera(rate)}", f"{low / 1e9:g} to {high / 1e9:g} GHz", meaning


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
        yield f"{giga(each)} {of}", f"{giga(limits[0])} to {giga(limits[1])}", meaning


def _bytes_per_flop(part: Accelerator, _: Catalog) -> Iterator[Problem]:
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
    if part.scale_up == "none":
        if part.scale_up_bytes_per_s:
            yield giga(part.scale_up_bytes_per_s), "0: it names no link", "a link has to be named"
        return
    own = catalog.links.get(part.scale_up)
    if own is None:
        yield f"link `{part.scale_up}`", "a link of the catalogue", "a name that is written differently"
    elif abs(part.scale_up_bytes_per_s / own.bytes_per_s - 1) > 0.01:
        twice = abs(part.scale_up_bytes_per_s / own.bytes_per_s - 2) < 0.05
        meaning = "both directions were counted" if twice else "another generation of the link"
        yield giga(part.scale_up_bytes_per_s), f"{giga(own.bytes_per_s)} of {own.name}, one direction", meaning


def _kernel_below_peak(kernel: AttentionKernel, catalog: Catalog) -> Iterator[Problem]:
    part = catalog.accelerators.get(kernel.accelerator)
    if part is None:
        yield f"`{kernel.accelerator}`", "an accelerator of the catalogue", "a name that is written differently"
        return
    peak = part.peak_flops_per_s["bf16"]
    for name, rates in _series(kernel):
        for length, rate in rates.items():
            if not 0 < rate < peak:
                yield f"{name} {tera(rate)} at {length} tokens", f"below {tera(peak)}", "FLOPs of masked pairs counted"


def _kernel_gains_with_length(kernel: AttentionKernel, _: Catalog) -> Iterator[Problem]:
    """A table has at least two lengths, and the longest sequences are not slower than the shortest."""
    for name, rates in _series(kernel):
        first, last = rates[min(rates)], rates[max(rates)]
        if len(rates) < 2 or last < 0.85 * first:
            value = f"{name} {tera(first)} to {tera(last)} over {len(rates)} lengths"
            yield value, "two lengths, and no loss of 15 % with length", "two columns were swapped"


def _series(kernel: AttentionKernel) -> Iterator[tuple[str, Mapping[int, float]]]:
    names = ("forward", "backward", "causal_forward", "causal_backward")
    tables = ((name, getattr(kernel, f"{name}_flops_per_s")) for name in names)
    yield from ((name.replace("_", " "), rates) for name, rates in tables if rates)


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
    part = catalog.accelerators.get(node.accelerator)
    slot = node.nic_slot_bytes_per_s or (part.host_bytes_per_s if part else None)
    if slot is not None and node.nic_bytes_per_s > slot:
        yield f"NIC of {giga(node.nic_bytes_per_s)}", f"{giga(slot)} of its slot", "Gb/s were written as GB/s"


def _network_below_scale_up(node: Node, catalog: Catalog) -> Iterator[Problem]:
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
    if link.lanes is None or link.lane_bytes_per_s is None:
        return
    total = link.lanes * link.lane_bytes_per_s
    if abs(link.bytes_per_s / total - 1) > 0.01:
        twice = abs(link.bytes_per_s / total - 2) < 0.05
        meaning = "both directions were counted" if twice else "bits for bytes, or another width"
        yield giga(link.bytes_per_s), f"{link.lanes} lanes of {giga(link.lane_bytes_per_s)}", meaning


def _port_speed(network: str, bytes_per_s: float) -> Iterator[Problem]:
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


HARDWARE_CHECKS: dict[Kind, dict[str, Check]] = {
    "accelerators": {
        "fp8-is-twice-bf16": _ratio("fp8", "bf16", 2.0),
        "fp4-is-twice-fp8": _ratio("fp4", "fp8", 2.0),
        "tf32-is-half-bf16": _ratio("tf32", "bf16", 0.5),
        "matmul-below-peak": _matmul_below_peak,
        "implied-clock": _implied_clock,
        "memory-bandwidth": _memory_bandwidth,
        "bytes-per-flop": _bytes_per_flop,
        "memory-as-named": _memory_as_named,
        "usable-memory": _usable_memory,
        "power": _power,
        "scale-up-is-its-link": _scale_up_is_its_link,
    },
    "kernels": {"kernel-below-peak": _kernel_below_peak, "kernel-gains-with-length": _kernel_gains_with_length},
    "nodes": {
        "accelerator-is-known": _accelerator_is_known,
        "domain-fits": _domain_fits,
        "nic-fits-its-slot": _nic_fits_its_slot,
        "network-below-scale-up": _network_below_scale_up,
        "nic-speed": _nic_speed,
        "network-is-said": _network_is_said,
    },
    "links": {"sum-of-lanes": _sum_of_lanes, "port-speed": lambda link, _: _port_speed(link.network, link.bytes_per_s)},
    "switches": {"port-speed": lambda switch, _: _port_speed(switch.network, switch.port_bytes_per_s)},
    "processors": {"memory-of-its-time": _memory_of_its_time},
}
"""Rules by kind of row and by name."""
