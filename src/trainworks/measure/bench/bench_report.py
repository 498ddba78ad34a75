"""What a benchmark found on all nodes of its job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.node_record import NodeRecord
from trainworks.measure.bench.outliers import BenchOutlier, find_outliers, with_cables
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class BenchReport(Result):
    """Figures of a benchmark, and those that differ from their peers."""

    run: str
    """Id of the run."""
    records: tuple[NodeRecord, ...]
    measurements: tuple[Measurement, ...]
    outliers: tuple[BenchOutlier, ...] = ()
    """The worst first."""

    @property
    def skipped(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Parts without figures, the reason, and the nodes."""
        found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for record in self.records:
            for part, result in record.parts.items():
                if result.skipped:
                    found[part, result.skipped].append(record.name)
        return [(part, reason, tuple(names)) for (part, reason), names in found.items()]

    @property
    def is_complete(self) -> bool:
        """Whether every node has measured everything."""
        return bool(self.records) and all(record.is_complete for record in self.records)


def build_bench_report(run: str, records: Sequence[NodeRecord], cables: Mapping[tuple[str, str], str]) -> BenchReport:
    """The report of the records of all nodes.

    Args:
        run: id of the run.
        records: of the nodes, in order.
        cables: of the cable plan, by node and port; see `read_cables`.
    """
    measurements = tuple(_measurements(records))
    names = [record.name for record in records]
    outliers = tuple(with_cables(each, names, cables) for each in find_outliers(measurements))
    return BenchReport(run, tuple(records), measurements, outliers)


def _measurements(records: Sequence[NodeRecord]) -> Iterator[Measurement]:
    """All figures; the subject of a figure of one node begins with its name where there are several."""
    for record in records:
        for part, result in record.parts.items():
            is_shared = "@" in part or part == "mpi" or len(records) == 1
            for each in result.figures:
                yield each if is_shared else replace(each, subject=f"{record.name} {each.subject}")
