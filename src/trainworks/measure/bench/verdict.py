"""The verdict on a measurement: held against what healthy hardware reaches and against what physics allows.

impossible       above the bound (a latency: below it)
pass             at least `passes` of the expected value
weak             at least `fails` of it
fail             less
busy             would be weak or fail, but other programs used the cores meanwhile: no verdict
no expectation   nothing says what to expect
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from trainworks.catalog.bounds import Bound
from trainworks.measure.bench.bound import physical_bound
from trainworks.measure.bench.expected import Yardstick, expected_value
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.slips import ROUNDING, explain
from trainworks.units import format_quantity


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


def judge(measurement: Measurement, yardstick: Yardstick) -> Judged:
    """Hold a measurement against the bound and the expected value of its hardware.

    >>> from trainworks.catalog.cluster import parse_cluster
    >>> tuned = Measurement(Quantity.BUS_BANDWIDTH, 510e9, "8x A100", "all_reduce_perf", {"ranks": 8, "nodes": 1})
    >>> judge(tuned, Yardstick(parse_cluster("8x A100-SXM-80GB"))).verdict.value
    'impossible'
    """
    lower_is_better = measurement.quantity is Quantity.LINK_LATENCY
    bound, expected = physical_bound(measurement, yardstick), expected_value(measurement, yardstick)
    unit = unit_of(measurement.quantity)
    if bound is not None and _is_beyond(measurement.value, bound.value, lower_is_better=lower_is_better):
        slip = explain(measurement, yardstick, bound, expected)
        side = "below" if lower_is_better else "above"
        reason = f"{side} the bound of {format_quantity(bound.value, unit)} ({bound.formula})"
        why = f"{reason}; {slip}" if slip else reason
        share = measurement.value / expected if expected else None
        return Judged(measurement, BenchVerdict.IMPOSSIBLE, why, expected, share, bound, slip)
    if not expected or measurement.value <= 0:
        reason = "nothing says what to expect of this hardware"
        return Judged(measurement, BenchVerdict.NO_EXPECTATION, reason, bound=bound)
    share = expected / measurement.value if lower_is_better else measurement.value / expected
    is_need = measurement.quantity in yardstick.needs
    band = _NEED if is_need else BANDS[measurement.quantity]
    passed, failed = share >= band.passes, share < band.fails
    verdict = BenchVerdict.PASS if passed else BenchVerdict.FAIL if failed else BenchVerdict.WEAK
    of_what = f"the {format_quantity(expected, unit)} that {'the run needs' if is_need else 'is expected'}"
    return Judged(measurement, verdict, f"{share:.0%} of {of_what}", expected, share, bound)


def without_blame(judged: Judged) -> Judged:
    """The judgement where other programs lowered the figure: what is weak or fails blames no hardware then."""
    if judged.verdict not in (BenchVerdict.WEAK, BenchVerdict.FAIL):
        return judged
    reason = f"{judged.reason}, while other programs used the cores"
    return replace(judged, verdict=BenchVerdict.BUSY, reason=reason)


def unit_of(quantity: Quantity) -> str:
    """Unit of a quantity, as `format_quantity` takes it."""
    if quantity in (Quantity.GEMM, Quantity.HPL):
        return "FLOP/s"
    if quantity is Quantity.LINK_LATENCY:
        return "s"
    return "/s" if quantity in (Quantity.STORAGE_OPERATIONS, Quantity.METADATA_OPERATIONS) else "bytes/s"


def _is_beyond(value: float, bound: float, *, lower_is_better: bool) -> bool:
    return value * ROUNDING < bound if lower_is_better else value > bound * ROUNDING
