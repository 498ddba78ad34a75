"""Verdicts on the measurements of one benchmark or of foreign ones, and what they teach the planner."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from trainworks.catalog.bounds import bus_factor
from trainworks.catalog.catalog import accelerator, has, reference_node
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes
from trainworks.measure.bench.expected import (
    Yardstick,
    is_by_processors,
    is_scale_up,
    number_of,
    operation_of,
    ranks_of,
)
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BenchVerdict, Judged, judge, verdict_on
from trainworks.record.measured.measurement import MOST_OFF, LearnedCollective, LearnedRate, MeasuredCurve, MeasuredRate
from trainworks.results import Result, ResultVerdict


@dataclass(frozen=True, slots=True)
class BenchVerdicts(Result):
    """Measurements with their verdicts."""

    judged: tuple[Judged, ...]
    expected: str = ""
    """Description of the hardware that they are held against; empty where each says its own."""
    learned: Path | None = None
    """File that plans of this kind of cluster learn from; None where nothing was stored."""

    @property
    def verdict(self) -> ResultVerdict:
        """What to repair first, what to measure again, or that nothing is wrong."""
        return verdict_on(self.judged)

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


_SOUND = (BenchVerdict.PASS, BenchVerdict.WEAK)


def measured_rates(judged: Sequence[Judged]) -> tuple[MeasuredRate, ...]:
    """Rates that benchmarks measured against the planner's own, the median of each kind of measurement.

    Impossible figures teach nothing, nor do those that failed: the plan is for repaired hardware. Collectives at
    several sizes are `measured_curves`.
    """
    ratios: defaultdict[tuple[LearnedRate, str], list[Judged]] = defaultdict(list)
    for each in judged:
        rate = _rate_of(each.measurement)
        is_near = each.share is not None and 1 / MOST_OFF <= each.share <= MOST_OFF
        if rate and is_near and each.verdict in _SOUND and _is_usual(each.measurement):
            measurement = each.measurement
            kind = " ".join([measurement.quantity, str(measurement.conditions.get("operation", ""))]).strip()
            ratios[rate, kind].append(each)
    return tuple(
        MeasuredRate(
            rate=rate,
            kind=kind,
            of_expected=statistics.median(each.share or 1.0 for each in found),
            tool=found[0].measurement.tool,
        )
        for (rate, kind), found in ratios.items()
    )


def measured_curves(judged: Sequence[Judged], cluster: ClusterDescription) -> tuple[MeasuredCurve, ...]:
    """Times of collectives between accelerators by message size, the median where a size was timed several times.

    The largest message of a curve that was judged decides on all of it, because latency decides small ones. A curve
    with an impossible figure teaches nothing: a slip of units is in its other figures, too.
    """
    curves: defaultdict[tuple[LearnedCollective, int, int], list[tuple[float, float, Judged]]] = defaultdict(list)
    for each in judged:
        measurement = each.measurement
        operation, (ranks, nodes) = operation_of(measurement), ranks_of(measurement, cluster)
        size, seconds = number_of(measurement, "bytes", 0.0), _seconds(measurement, ranks)
        is_timed = measurement.quantity in _COLLECTIVES and size > 0 and seconds > 0 and _is_usual(measurement)
        is_planned = not ranks % nodes and (nodes == 1 or cluster.node_bytes_per_s > 0)
        if operation in get_args(LearnedCollective) and is_timed and is_planned and not is_by_processors(measurement):
            curves[cast(LearnedCollective, operation), ranks, nodes].append((size, seconds, each))
    found = []
    for (operation, ranks, nodes), rows in curves.items():
        rows.sort(key=lambda row: row[0])
        verdicts = [each.verdict for _, _, each in rows if each.verdict is not BenchVerdict.NO_EXPECTATION]
        if BenchVerdict.IMPOSSIBLE in verdicts or (verdicts and verdicts[-1] not in _SOUND):
            continue
        sizes = dict.fromkeys(size for size, _, _ in rows)
        points = tuple((size, statistics.median(taken for at, taken, _ in rows if at == size)) for size in sizes)
        tool = rows[-1][2].measurement.tool
        found.append(MeasuredCurve(operation=operation, ranks=ranks, nodes=nodes, points=points, tool=tool))
    return tuple(found)


def _seconds(measurement: Measurement, ranks: int) -> float:
    """Time of a collective: as printed, or by its bandwidth; 0 where neither is known."""
    is_bus = measurement.quantity is Quantity.BUS_BANDWIDTH
    sent = number_of(measurement, "bytes", 0.0) * (bus_factor(operation_of(measurement), ranks) if is_bus else 1.0)
    return number_of(measurement, "seconds", sent / measurement.value if measurement.value > 0 else 0.0)


def _is_usual(measurement: Measurement) -> bool:
    """Whether the ranks had the variables of a job, and none that are compared side by side."""
    conditions = measurement.conditions
    return conditions.get("setting", "default") == "default" and conditions.get("nvls") != "off"


def _rate_of(measurement: Measurement) -> LearnedRate | None:
    """The planner's rate that a measurement tells of; None for one that no plan uses."""
    quantity = measurement.quantity
    if quantity is Quantity.GEMM and measurement.conditions.get("device") != "cpu":
        return "products"
    if quantity is Quantity.DEVICE_MEMORY_BANDWIDTH:
        return "memory"
    if quantity is Quantity.LINK_BANDWIDTH:
        return "scale_up" if is_scale_up(measurement) else "scale_out"
    if quantity in _COLLECTIVES and not number_of(measurement, "bytes", 0.0):
        return "scale_out" if number_of(measurement, "nodes", 1) > 1 else "scale_up"
    return None
