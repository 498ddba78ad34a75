"""Figures that differ from those of their peers: nodes, devices and links that should be alike."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import median

from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement, Quantity

_CUTOFF = 3.5
"""A modified z-score above 3.5 is an outlier: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993, by
https://jeffreyevans.github.io/spatialEco/reference/outliers.html."""
_NORMAL = 0.6745
"""The median absolute deviation of a normal distribution in standard deviations."""
_LEAST_DIFFERENCE = 0.1
"""A figure within a tenth of the median is not an outlier, however alike its peers are: an assumption."""
_FEWEST = 3
"""Fewest peers: nothing says which of two figures is wrong."""
_LINKS = (Quantity.LINK_BANDWIDTH, Quantity.LINK_LATENCY)
_ARROW = " <-> "
_ALIKE = ("operation", "precision", "setting", "block", "bytes", "transport", "direction")
"""Conditions that figures have to share to be compared."""


@dataclass(frozen=True, slots=True)
class BenchOutlier:
    """A figure that is worse than those of its peers."""

    measurement: Measurement
    subject: str
    """The node, device or link; the node alone if all its links are slow."""
    usual: float
    """Median of the peers."""
    score: float
    """Modified z-score of the logarithms, positive for worse; infinite if the peers are all alike."""
    cables: tuple[str, ...] = ()
    """Cables of the link by the cable plan."""

    @property
    def share(self) -> float:
        """Share of the peers' rate."""
        measured = self.measurement.value
        return self.usual / measured if self.measurement.quantity is Quantity.LINK_LATENCY else measured / self.usual


def find_outliers(measurements: Iterable[Measurement]) -> list[BenchOutlier]:
    """Outliers of each group of figures that should be alike, the worst first."""
    groups: defaultdict[Hashable, list[Measurement]] = defaultdict(list)
    for each in measurements:
        if each.value > 0:
            alike = [name for name in _ALIKE if not (name == "direction" and each.quantity in _LINKS)]
            words = each.subject.split()
            path = words[-1] if words[-1].startswith("/") else ""
            groups[(each.quantity, path, *((name, each.conditions.get(name)) for name in alike))].append(each)
    found = [outlier for group in groups.values() if len(group) >= _FEWEST for outlier in _outliers(group)]
    # a slow port makes all links of its node slow, and one of several links of every other node: where most links of a
    # node are slow, the node stands in their place
    peers: defaultdict[tuple[str, Quantity], set[str]] = defaultdict(set)
    slow: defaultdict[tuple[str, Quantity], list[BenchOutlier]] = defaultdict(list)
    for each in (each for group in groups.values() for each in group):
        for end in _ends(each):
            peers[end].add(each.subject)
    for outlier in found:
        for end in _ends(outlier.measurement):
            slow[end].append(outlier)
    bad = {end for end, links in slow.items() if 1 < len(peers[end]) < 2 * len({one.subject for one in links})}
    named = [replace(min(slow[end], key=lambda one: one.share), subject=end[0]) for end in bad]
    named += [each for each in found if not bad & set(_ends(each.measurement))]
    return sorted(named, key=lambda outlier: outlier.share)


def modified_z_scores(values: Sequence[float]) -> list[float]:
    """0.6745 (x - median) / MAD of each value; infinite for a value that differs where most are the same."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    differences = [value - middle for value in values]
    if deviation:
        return [_NORMAL * difference / deviation for difference in differences]
    return [difference * float("inf") if difference else 0.0 for difference in differences]


def _outliers(group: list[Measurement]) -> list[BenchOutlier]:
    """Outliers by logarithms: on a linear scale no rate is further below the median than the median itself."""
    values = [each.value for each in group]
    usual, worse = median(values), 1 if group[0].quantity is Quantity.LINK_LATENCY else -1
    candidates = [
        BenchOutlier(each, each.subject, usual, worse * score)
        for each, score in zip(group, modified_z_scores([log(value) for value in values]), strict=True)
        if worse * score > _CUTOFF
    ]
    return [each for each in candidates if each.share < 1 - _LEAST_DIFFERENCE]


def _ends(measurement: Measurement) -> list[tuple[str, Quantity]]:
    """Both nodes of a link, each with what was measured."""
    if measurement.quantity not in _LINKS or _ARROW not in measurement.subject:
        return []
    return [(name, measurement.quantity) for name in measurement.subject.split(_ARROW)]


def read_cables(path: Path) -> dict[tuple[str, str], str]:
    """Cables of a cable plan by node and port, as `trainworks network --cables` writes it.

    Raises:
        UsageError: the file is not a cable plan.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return {
            (row[f"{end}_device"], row[f"{end}_port"].partition("/")[0]): "{tier} cable {cable}: {from_device} port "
            "{from_port} to {to_device} port {to_port}".format(**row)
            for row in rows
            for end in ("from", "to")
        }
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the cable plan `{path}`: {error}",
            hint="write one: trainworks network ... --cables cables.csv",
        ) from None


def with_cables(outlier: BenchOutlier, nodes: Sequence[str], cables: Mapping[tuple[str, str], str]) -> BenchOutlier:
    """The outlier with the cables of its rail; the plan's `node1` is the first node."""
    ends = [outlier.subject] if outlier.subject in nodes else [name for name, _ in _ends(outlier.measurement)]
    port = f"nic{int(outlier.measurement.conditions.get('rail', 0)) + 1}"
    keys = [(f"node{nodes.index(name) + 1}", port) for name in ends if name in nodes]
    return replace(outlier, cables=tuple(cables[key] for key in keys if key in cables))
