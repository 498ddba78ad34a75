"""The verdict on a measurement: held against what healthy hardware reaches and against what physics allows.

impossible       above the bound (a latency: below it)
pass             at least `passes` of the expected value
weak             at least `fails` of it
fail             less
busy             would be weak or fail, but other programs used the cores meanwhile: no verdict
no expectation   nothing says what to expect

A value above the bound is explained by the slip of units or counting that is nearest to it.

`BOUNDS` has a rule for the physical bound of each quantity; the docstring of a rule is its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from trainworks.catalog.bounds import Bound, bus_factor, busbw_bound, group_of
from trainworks.catalog.catalog import has, link
from trainworks.measure.bench import expected
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.results import ResultVerdict
from trainworks.units import format_counted, format_quantity


class BenchVerdict(StrEnum):
    """What a measurement says of the hardware."""

    PASS = "pass"  # noqa: S105, a verdict
    WEAK = "weak"
    FAIL = "fail"
    IMPOSSIBLE = "impossible"
    BUSY = "busy: no verdict"
    NO_EXPECTATION = "no expectation"


@dataclass(frozen=True, slots=True)
class Band:
    """Shares of the expected value that separate the verdicts."""

    passes: float
    fails: float
    why: str


_AZURE = "https://github.com/Azure/azurehpc-health-checks/tree/main/conf"
_LINKS = "below half, a direction, a generation of PCIe or half of the lanes is lost (assumption)"
_COLLECTIVES = Band(
    0.85,
    0.5,
    "the best published runs of A100, H200, B200 and MI300X reach 0.87 to 1.03 of the planner's rate, and operators "
    f"ask 0.77 of it and more (`trainworks catalog list anchors`); {_LINKS}",
)
_NEED = Band(1.0, 0.8, "what the run needs; up to a fifth less is made up by overlap (assumption)")
_GEMM = Band(
    0.9,
    0.75,
    "healthy devices of one node differ by more than 5 % "
    "(https://github.com/stas00/ml-engineering/tree/master/compute/accelerator); a fail is an assumption",
)
BANDS: dict[Quantity, Band] = {
    Quantity.GEMM: _GEMM,
    Quantity.HPL: _GEMM,
    Quantity.MEMORY_BANDWIDTH: Band(0.85, 0.6, "a missing DIMM of eight takes an eighth, half of the channels half"),
    Quantity.DEVICE_MEMORY_BANDWIDTH: Band(0.9, 0.75, "as products: nothing else uses the memory (assumption)"),
    Quantity.HOST_LINK: Band(
        0.8,
        0.55,
        f"Azure asked 21 to 24 GB/s of PCIe 4.0 x16, 0.83 to 0.95 of the planner's rate ({_AZURE}); {_LINKS}",
    ),
    Quantity.LINK_BANDWIDTH: Band(
        0.9, 0.7, f"Azure asked 180 to 185 of 200 Gb/s and 375 to 380 of 400 ({_AZURE}); a fail is an assumption"
    ),
    Quantity.LINK_LATENCY: _NEED,
    Quantity.ALGORITHM_BANDWIDTH: _COLLECTIVES,
    Quantity.BUS_BANDWIDTH: _COLLECTIVES,
    Quantity.STORAGE_READ: _NEED,
    Quantity.STORAGE_WRITE: _NEED,
    Quantity.STORAGE_OPERATIONS: _NEED,
    Quantity.METADATA_OPERATIONS: _NEED,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A measurement with its verdict."""

    measurement: Measurement
    verdict: BenchVerdict
    reason: str
    """One sentence: the share of what, or the bound and the slip."""
    expected: float | None = None
    """What healthy hardware reaches, or the run needs."""
    share: float | None = None
    """Measured over expected value; for a latency expected over measured: more is better."""
    bound: Bound | None = None
    slip: str | None = None
    """The mistake that explains a value above the bound."""


def verdict_on(judged: Sequence[Judged]) -> ResultVerdict:
    """What several figures come down to: the worst one where one is bad, or how many are as expected."""
    by: dict[BenchVerdict, list[Judged]] = {}
    for each in judged:
        by.setdefault(each.verdict, []).append(each)
    count = {verdict: len(found) for verdict, found in by.items()}
    counted = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in BenchVerdict if verdict in count)
    if found := by.get(BenchVerdict.IMPOSSIBLE):
        action = f"Measure {found[0].measurement.subject} again with another tool or unit"
        return ResultVerdict(action, f"its {found[0].measurement.name} is {found[0].reason}", counted, "stop")
    if found := by.get(BenchVerdict.FAIL):
        worst = min(found, key=lambda each: each.share or 0.0)
        action = f"Repair {worst.measurement.subject} before you train"
        return ResultVerdict(action, f"its {worst.measurement.name} is {worst.reason}", counted, "stop")
    if BenchVerdict.BUSY in by:
        action = "Measure again without other programs on the nodes"
        return ResultVerdict(
            action, f"{format_counted(count[BenchVerdict.BUSY], 'figure')} have no verdict", counted, "check"
        )
    if found := by.get(BenchVerdict.WEAK):
        worst = min(found, key=lambda each: each.share or 0.0)
        action = f"Train, and keep an eye on {worst.measurement.subject}"
        return ResultVerdict(action, f"its {worst.measurement.name} is {worst.reason}", counted, "check")
    if BenchVerdict.PASS in by:
        held = count[BenchVerdict.PASS]
        unjudged = count.get(BenchVerdict.NO_EXPECTATION, 0)
        unless = f"{format_counted(unjudged, 'figure')} have nothing to be held against" if unjudged else ""
        return ResultVerdict("Train on them", f"{format_counted(held, 'figure')} as expected, none below", unless)
    action = "Name the hardware with `--expect` to have the figures judged"
    return ResultVerdict(action, f"{format_counted(len(judged), 'figure')}, and no expectation of any", signal="check")


def judge(measurement: Measurement, yardstick: expected.Yardstick) -> Judged:
    """Hold a measurement against the bound and the expected value of its hardware.

    >>> from trainworks.catalog.cluster import parse_cluster
    >>> tuned = Measurement(Quantity.BUS_BANDWIDTH, 510e9, "8x A100", "all_reduce_perf", {"ranks": 8, "nodes": 1})
    >>> judge(tuned, Yardstick(parse_cluster("8x A100-SXM-80GB"))).verdict.value
    'impossible'
    """
    lower_is_better = measurement.quantity is Quantity.LINK_LATENCY
    bound, healthy = physical_bound(measurement, yardstick), expected.expected_value(measurement, yardstick)
    unit = unit_of(measurement.quantity)
    if bound is not None and (
        measurement.value * ROUNDING < bound.value if lower_is_better else measurement.value > bound.value * ROUNDING
    ):
        slip = _explain(measurement, yardstick, bound, healthy)
        side = "below" if lower_is_better else "above"
        reason = f"{side} the bound of {format_quantity(bound.value, unit)} ({bound.formula})"
        why = f"{reason}; {slip}" if slip else reason
        share = measurement.value / healthy if healthy else None
        return Judged(measurement, BenchVerdict.IMPOSSIBLE, why, healthy, share, bound, slip)
    if not healthy or measurement.value <= 0:
        reason = "nothing says what to expect of this hardware"
        return Judged(measurement, BenchVerdict.NO_EXPECTATION, reason, bound=bound)
    share = healthy / measurement.value if lower_is_better else measurement.value / healthy
    is_need = measurement.quantity in yardstick.needs
    band = _NEED if is_need else BANDS[measurement.quantity]
    passed, failed = share >= band.passes, share < band.fails
    verdict = BenchVerdict.PASS if passed else BenchVerdict.FAIL if failed else BenchVerdict.WEAK
    of_what = f"the {format_quantity(healthy, unit)} that {'the run needs' if is_need else 'is expected'}"
    return Judged(measurement, verdict, f"{share:.0%} of {of_what}", healthy, share, bound)


def clear_blame(judged: Judged) -> Judged:
    """The judgement where other programs lowered the figure: what is weak or fails blames no hardware then."""
    if judged.verdict not in (BenchVerdict.WEAK, BenchVerdict.FAIL):
        return judged
    return replace(judged, verdict=BenchVerdict.BUSY, reason=f"{judged.reason}, while other programs used the cores")


def unit_of(quantity: Quantity) -> str:
    """Unit of a quantity, as `format_quantity` takes it."""
    if quantity in (Quantity.GEMM, Quantity.HPL):
        return "FLOP/s"
    if quantity is Quantity.LINK_LATENCY:
        return "s"
    return "/s" if quantity in (Quantity.STORAGE_OPERATIONS, Quantity.METADATA_OPERATIONS) else "bytes/s"


_ONE_NODE = "`all_reduce_perf -g N` without MPI measures N GPUs of one node, on any number of nodes"
_ONE_MEMORY = "both ranks on one node use its memory and not the network"
_RATES_OF_COLLECTIVES = (Quantity.BUS_BANDWIDTH, Quantity.ALGORITHM_BANDWIDTH)


ROUNDING = 1.005
"""Values are printed with three figures, so that one at the bound may round to above it."""


@dataclass(frozen=True, slots=True)
class Slip:
    """One way in which a figure becomes too large."""

    factor: float
    """Stated over true value."""
    text: str


def _explain(
    measurement: Measurement, yardstick: expected.Yardstick, bound: Bound, healthy: float | None
) -> str | None:
    """The slip after whose correction the value is possible, and nearest to what is expected; None if none is.

    A collective over several nodes is first held against the bound of one node: a program that was started without MPI
    measures one node each time.
    """
    if measurement.quantity is Quantity.LINK_LATENCY:
        if measurement.conditions.get("transport") == "mpi":
            return _ONE_MEMORY
        return "milliseconds or microseconds were mistaken for a smaller unit"
    alone = _node_slip(measurement, yardstick)
    slips = _slips(measurement, yardstick)
    possible = [slip for slip in slips if measurement.value / slip.factor <= bound.value * ROUNDING]
    if alone is not None or not possible:
        return alone
    usual = healthy or bound.value
    best = max(possible, key=lambda slip: -abs(measurement.value / slip.factor / usual - 1))
    if best.factor == float("inf"):
        return best.text
    return f"{best.text}: it would be {format_quantity(measurement.value / best.factor, unit_of(measurement.quantity))}"


def _node_slip(measurement: Measurement, yardstick: expected.Yardstick) -> str | None:
    if measurement.quantity not in _RATES_OF_COLLECTIVES or yardstick.cluster is None:
        return None
    ranks, nodes = expected.ranks_of(measurement, yardstick.cluster)
    if nodes == 1:
        return None
    conditions = {**measurement.conditions, "nodes": 1, "ranks": ranks // nodes}
    local = Measurement(measurement.quantity, measurement.value, measurement.subject, measurement.tool, conditions)
    bound = physical_bound(local, yardstick)
    if bound is None or ranks // nodes < 2:
        return None
    if measurement.value <= bound.value:
        return _ONE_NODE
    if measurement.value <= 2 * bound.value:
        return f"{_ONE_NODE}, and both directions were added"
    return None


def _slips(measurement: Measurement, yardstick: expected.Yardstick) -> Iterator[Slip]:
    quantity, cluster = measurement.quantity, yardstick.cluster
    if quantity in (Quantity.GEMM, Quantity.HPL):
        yield Slip(2.0, "the peak with sparsity, or a multiply-add counted as two, doubles the rate")
    else:
        yield Slip(8.0, "Gb/s written as GB/s is a factor of 8")
        yield Slip(1.024**3, "GiB/s read as GB/s is a factor of 1.07")
        if expected.directions(measurement) == 1:
            yield Slip(2.0, "both directions added together are a factor of 2")
    if cluster is None:
        return
    if quantity in (Quantity.GEMM, Quantity.BUS_BANDWIDTH):
        yield _slip(cluster.accelerators_per_node, "GPUs")
    elif quantity is Quantity.LINK_BANDWIDTH:
        yield _slip(cluster.nics, "NICs")
        if measurement.conditions.get("transport") == "mpi":
            yield Slip(float("inf"), _ONE_MEMORY)
    if quantity in _RATES_OF_COLLECTIVES:
        factor = bus_factor(expected.operation_of(measurement), expected.ranks_of(measurement, cluster)[0])
        yield Slip(max(factor, 1 / factor), f"busbw and algbw, a factor of {factor:.3g}, were mistaken for each other")


def _slip(count: int, noun: str) -> Slip:
    return Slip(float(max(count, 1)), f"all {count} {noun} of a node were counted as one")


_CYCLES = "https://stackoverflow.com/questions/15655835/flops-per-cycle-for-sandy-bridge-and-haswell-sse2-avx-avx2"
_CATALOGUED_LINKS = "trainworks catalog list links"


def physical_bound(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """The bound of a measured value, in base units; None where no data sheet sets one."""
    rule = BOUNDS.get(measurement.quantity)
    bound = rule(measurement, yardstick) if rule else None
    return bound if bound and bound.value else None


def _gemm(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Dense peak of the data sheet in that precision; on processors as HPL."""
    cluster = yardstick.cluster
    if cluster is None or expected.is_on_host(measurement, yardstick):
        return _processors(measurement, yardstick)
    peaks = {str(name): rate for name, rate in cluster.accelerator.peak_flops_per_s.items()}
    peak = peaks.get(str(measurement.conditions.get("precision")), 0.0)
    return Bound(peak, "dense peak of the data sheet", f"trainworks catalog show {cluster.accelerator.name}")


def _processors(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Cores x highest clock x operations a cycle, where Linux says the clock."""
    shown = yardstick.processors
    if shown is None or not shown.highest_clock_hz:
        return None
    cycle = expected.host_flops_per_cycle(shown, str(measurement.conditions.get("precision", "fp64")))
    peak = cycle * shown.highest_clock_hz * expected.number_of(measurement, "cores", yardstick.cores)
    return Bound(peak, "cores x highest clock x operations a cycle", _CYCLES)


def _host_memory(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Sockets x channels x transfers a second x 8 B, of a processor of the catalogue."""
    peak = expected.memory_bytes_per_s(yardstick)
    return Bound(peak, "sockets x channels x transfers/s x 8 B", "trainworks catalog list processors") if peak else None


def _device_memory(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Memory bandwidth of the data sheet."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    if part is None:
        return None
    return Bound(part.memory_bytes_per_s, "memory bandwidth", f"trainworks catalog show {part.name}")


def _host_link(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Rate of the link in one direction, twice that for both."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    if part is None:
        return None
    rate = part.host_bytes_per_s * expected.directions(measurement)
    return Bound(rate, _port("host link", measurement), f"trainworks catalog show {part.name}")


def _link(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """Rate of the ports in one direction, twice that for both; of two accelerators that of their scale-up link."""
    cluster = yardstick.cluster
    if cluster is None:
        return None
    if expected.is_scale_up(measurement):
        part = cluster.accelerator
        rate = max(part.pair_bytes_per_s or part.scale_up_bytes_per_s, part.host_bytes_per_s)
        name = _port(f"{part.scale_up} between two", measurement)
        return Bound(rate * expected.directions(measurement), name, f"trainworks catalog show {part.name}")
    if not expected.is_of_cluster(measurement, cluster):
        return None
    if measurement.conditions.get("transport") == "mpi":  # it may use all ports at once
        return Bound(
            cluster.node_bytes_per_s * expected.directions(measurement),
            _port("all ports of a node", measurement),
            _CATALOGUED_LINKS,
        )
    rate = expected.ports_bytes_per_s(measurement, cluster) * expected.directions(measurement)
    return Bound(rate, _port(f"port of {cluster.network}", measurement), _CATALOGUED_LINKS)


def _port(name: str, measurement: Measurement) -> str:
    return f"{name}, {'both directions' if expected.directions(measurement) == 2 else 'one direction'}"


def _latency(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """A lower bound: latency of the link through one switch, where the vendor publishes it."""
    cluster = yardstick.cluster
    fabric = cluster.fabric if cluster and expected.is_of_cluster(measurement, cluster) else None
    if fabric is None or fabric.network == "TCP" or not has("links", fabric.port):  # that of TCP is an assumption
        return None
    return Bound(link(fabric.port).latency_s or 0.0, "latency of the link through one switch", _CATALOGUED_LINKS)


def _collective(measurement: Measurement, yardstick: expected.Yardstick) -> Bound | None:
    """The links of the ranks and of their domains, `trainworks.catalog.bounds`; algbw is busbw over its factor."""
    cluster, operation = yardstick.cluster, expected.operation_of(measurement)
    if cluster is None or expected.is_by_processors(measurement):
        return None
    ranks, nodes = expected.ranks_of(measurement, cluster)
    if ranks % nodes or (nodes > 1 and not cluster.node_bytes_per_s):
        return None
    bound = busbw_bound(operation, group_of(cluster, ranks, nodes))
    if measurement.quantity is Quantity.BUS_BANDWIDTH:
        return bound
    factor = bus_factor(operation, ranks)
    return Bound(bound.value / factor, bound.formula.replace("busbw", f"{factor:.3g} algbw"), bound.source)


BOUNDS: Mapping[Quantity, Callable[[Measurement, expected.Yardstick], Bound | None]] = {
    Quantity.GEMM: _gemm,
    Quantity.HPL: _processors,
    Quantity.MEMORY_BANDWIDTH: _host_memory,
    Quantity.DEVICE_MEMORY_BANDWIDTH: _device_memory,
    Quantity.HOST_LINK: _host_link,
    Quantity.LINK_BANDWIDTH: _link,
    Quantity.LINK_LATENCY: _latency,
    Quantity.ALGORITHM_BANDWIDTH: _collective,
    Quantity.BUS_BANDWIDTH: _collective,
}
"""Rules; storage has no bound that a data sheet of the catalogue sets."""
