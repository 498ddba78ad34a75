"""Lint rules that recompute figures of an accelerator from its other figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainworks.catalog.catalog import Catalog
from trainworks.catalog.facts import Accelerator, AttentionKernel, Precision
from trainworks.catalog.problem import Check, Problem, giga, tera
from trainworks.catalog.rows import Kind

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
    """The fastest measured product is below the peak, and not far below."""
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
    """Every published rate of an attention kernel is below the peak of the accelerator that was measured."""
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
    """The tables that were published."""
    names = ("forward", "backward", "causal_forward", "causal_backward")
    tables = ((name, getattr(kernel, f"{name}_flops_per_s")) for name in names)
    yield from ((name.replace("_", " "), rates) for name, rates in tables if rates)


ACCELERATOR_CHECKS: dict[Kind, dict[str, Check]] = {
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
    "kernels": {"kernel-below-peak": _kernel_below_peak, "kernel-gains-with-length": _kernel_gains_with_length},
}
"""Rules by kind of row and by name."""
