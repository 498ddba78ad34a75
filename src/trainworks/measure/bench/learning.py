"""What verdicts teach the planner: one ratio of measured to expected rate for each physical rate and operation."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from trainworks.measure.bench.expected import is_scale_up, number_of
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BenchVerdict, Judged
from trainworks.record.measured.measurement import LearnedRate, MeasuredRate

_COLLECTIVES = (Quantity.BUS_BANDWIDTH, Quantity.ALGORITHM_BANDWIDTH)


def measured_rates(judged: Sequence[Judged]) -> tuple[MeasuredRate, ...]:
    """Rates that benchmarks measured against the planner's own, the median of each kind of measurement.

    Impossible figures teach nothing, nor do those that failed: the plan is for repaired hardware.
    """
    ratios: defaultdict[tuple[LearnedRate, str], list[float]] = defaultdict(list)
    for each in judged:
        rate = _rate_of(each.measurement)
        if rate and each.share and each.verdict in (BenchVerdict.PASS, BenchVerdict.WEAK):
            measurement = each.measurement
            kind = " ".join([measurement.quantity, str(measurement.conditions.get("operation", ""))]).strip()
            ratios[rate, kind].append(each.share)
    return tuple(
        MeasuredRate(rate=rate, kind=kind, of_expected=statistics.median(found))
        for (rate, kind), found in ratios.items()
    )


def _rate_of(measurement: Measurement) -> LearnedRate | None:
    """The planner's rate that a measurement tells of; None for one that no plan uses."""
    quantity = measurement.quantity
    if quantity is Quantity.GEMM and measurement.conditions.get("device") != "cpu":
        return "products"
    if quantity is Quantity.DEVICE_MEMORY_BANDWIDTH:
        return "memory"
    if quantity is Quantity.LINK_BANDWIDTH:
        return "scale_up" if is_scale_up(measurement) else "scale_out"
    if quantity in _COLLECTIVES:
        return "scale_out" if number_of(measurement, "nodes", 1) > 1 else "scale_up"
    return None
