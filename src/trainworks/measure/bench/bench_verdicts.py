"""Verdicts on the measurements of one benchmark or of foreign ones, and what they teach the planner."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainworks.catalog.catalog import accelerator, has, reference_node
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes
from trainworks.measure.bench.expected import Yardstick, is_scale_up, number_of
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BenchVerdict, Judged, judge
from trainworks.record.measured.measurement import LearnedRate, MeasuredRate
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class BenchVerdicts(Result):
    """Measurements with their verdicts."""

    judged: tuple[Judged, ...]
    expected: str = ""
    """Description of the hardware that they are held against; empty where each says its own."""
    learned: Path | None = None
    """File that plans of this kind of cluster learn from; None where nothing was stored."""

    @property
    def bad(self) -> tuple[Judged, ...]:
        """Measurements that failed or are impossible."""
        return tuple(each for each in self.judged if each.verdict in (BenchVerdict.FAIL, BenchVerdict.IMPOSSIBLE))


def judge_all(measurements: Iterable[Measurement], yardstick: Yardstick) -> tuple[Judged, ...]:
    """Verdicts in the order of the measurements; without a cluster by the device that a measurement names."""
    return tuple(judge(each, yardstick if yardstick.cluster else _own(each, yardstick)) for each in measurements)


def _own(measurement: Measurement, yardstick: Yardstick) -> Yardstick:
    """The yardstick of the node that a device is usually sold in, for a measurement inside one node."""
    device = str(measurement.conditions.get("device", ""))
    if measurement.conditions.get("nodes", 1) != 1 or not has("accelerators", device):
        return yardstick
    part = accelerator(device)
    if part.reference_node is None:
        return yardstick
    cluster: ClusterDescription = cluster_of_nodes(reference_node(part.name))
    return Yardstick(cluster, yardstick.processors, yardstick.cores, yardstick.needs)


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
