"""Verdicts on the measurements of one benchmark, or of foreign ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainworks.catalog.catalog import accelerator, has, reference_node
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes
from trainworks.measure.bench.expected import Yardstick
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.verdict import BenchVerdict, Judged, judge
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
