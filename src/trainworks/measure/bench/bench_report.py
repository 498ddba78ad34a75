"""What a benchmark found on all nodes of its job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import EnvironmentProblem
from trainworks.measure.bench.expected import Yardstick
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.node_record import STORAGE, NodeRecord
from trainworks.measure.bench.outliers import BenchOutlier, find_outliers, with_cables
from trainworks.measure.bench.short_training import ShortTraining
from trainworks.measure.bench.verdict import BenchVerdict, Judged, clear_blame, judge, verdict_on
from trainworks.record.measured.bench import unique_names
from trainworks.record.usage import QUIET_SHARE
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_counted, format_duration

_NOT_THERE = ("no accelerator", "one node has no link")
"""Begin the reasons of parts that a healthy cluster may lack."""
_ON_ACCELERATORS = frozenset({"compute", "memory", "collectives"})
"""Kinds of measurements that use the accelerators of a node."""
_LOWEST_BY_LOAD = 0.05
"""Share of the rate of equally busy peers below which load does not explain a rate: an assumption."""


@dataclass(frozen=True, slots=True)
class BenchReport(Result):
    """Figures of a benchmark with their verdicts, and those that differ from their peers."""

    run: str
    """Id of the run."""
    expected: str
    """Description of the hardware that figures are held against; empty for what the nodes show of themselves."""
    records: tuple[NodeRecord, ...]
    judged: tuple[Judged, ...]
    outliers: tuple[BenchOutlier, ...] = ()
    """The worst first."""
    learned: Path | None = None
    """File with the rates that plans of this kind of cluster use from now on."""
    lacking: tuple[str, ...] = ()
    """Nodes with fewer accelerators than the hardware that figures are held against, where those were to measure."""
    training: ShortTraining | None = None
    """What a workload did on the nodes afterwards; None where none was to train."""

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The figures."""
        return tuple(each.measurement for each in self.judged)

    @property
    def wrong(self) -> list[Judged]:
        """Figures that are impossible, fail or are weak, in this order."""
        order = (BenchVerdict.IMPOSSIBLE, BenchVerdict.FAIL, BenchVerdict.WEAK)
        found = [each for each in self.judged if each.verdict in order]
        return sorted(found, key=lambda each: (order.index(each.verdict), each.share or 0.0))

    @property
    def is_accepted(self) -> bool:
        """Whether nothing is an outlier, lacks, fails or is impossible, and a training has not failed."""
        has_failed = self.training is not None and self.training.verdict is BenchVerdict.FAIL
        is_weak = all(each.verdict is BenchVerdict.WEAK for each in self.wrong)
        return is_weak and not (self.outliers or self.lacking or has_failed)

    @property
    def verdict(self) -> ResultVerdict:
        """The node, device or link to repair first, what to measure again, or that the nodes are fit to train."""
        if self.outliers:
            worst = self.outliers[0]
            subjects = len({each.subject for each in self.outliers})
            figure = f"{worst.measurement.name} is {worst.share:.0%} of the median of its peers"
            cables = f"its cables are {', '.join(worst.cables)}" if worst.cables else ""
            unless = f"{format_counted(subjects, 'subject')} differ from their peers" if subjects > 1 else cables
            return ResultVerdict(f"Repair {worst.subject} before you train", figure, unless, "stop")
        if self.lacking:
            return ResultVerdict("Bring back the missing accelerators", "; ".join(self.lacking), signal="stop")
        found = verdict_on(self.judged)
        if found.signal == "stop":
            return found
        if self.training is not None and self.training.verdict is BenchVerdict.FAIL:
            slow = "" if self.training.step_s is None else f"{format_duration(self.training.step_s)} a step measured, "
            action = "Find out why training is slow, although the parts are not"
            return ResultVerdict(action, f"{slow}{self.training.reason}", signal="stop")
        if not self.is_complete:
            done = sum(record.is_complete for record in self.records)
            action = f"Continue it with `trainworks bench --resume {self.run}`"
            return ResultVerdict(
                action, f"{done} of {format_counted(len(self.records), 'node')} measured", signal="check"
            )
        return found

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
    def unmeasured(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Parts of `skipped` that every cluster has: neither MPI, nor what needs an accelerator or a second node.

        Nodes that lack an accelerator which the hardware has are in `lacking`.
        """
        return [each for each in self.skipped if each[0] != "mpi" and not each[1].startswith(_NOT_THERE)]

    def check_measured(self) -> None:
        """Refuse a report without a figure: its nodes lack what measures.

        Raises:
            EnvironmentProblem: with what they lack.
        """
        if self.judged or not self.skipped:
            return
        missing = "; ".join(f"{part}: {reason} ({', '.join(names)})" for part, reason, names in self.skipped)
        has_no_torch = "torch is not installed" in missing
        hint = "pip install 'trainworks[train]'" if has_no_torch else "provide it, and measure again"
        raise EnvironmentProblem(f"nothing was measured: {missing}", place=self.run, hint=hint)

    @property
    def is_complete(self) -> bool:
        """Whether every node has measured everything."""
        return bool(self.records) and all(record.is_complete for record in self.records)


def build_bench_report(
    run: str,
    records: Sequence[NodeRecord],
    cluster: ClusterDescription | None = None,
    needs: Mapping[str, Mapping[Quantity, float]] | None = None,
    cables: Mapping[tuple[str, str], str] | None = None,
    *,
    accelerators: int | None = None,
) -> BenchReport:
    """The report of the records of all nodes.

    The records are in the order of the nodes. Figures are held against the hardware of `cluster`; what the nodes show
    of themselves when None. `needs` has what a run needs of each node by the path of its storage, and `cables` those of
    the cable plan by node and port; see `read_cables`. The job asked for `accelerators` of each node; all that
    `cluster` has when None.
    """
    named = unique_names([record.name for record in records])
    records = [replace(record, name=name) for record, name in zip(records, named, strict=True)]
    busy = frozenset(record.name for record in records if record.is_busy)
    judged = tuple(
        clear_blame(found) if _is_lowered(each, each.subject, named, busy) else found
        for each, yardstick in _measurements(records, cluster, needs or {})
        for found in [judge(each, yardstick)]
    )
    outliers = tuple(
        with_cables(each, named, cables or {})
        for each in find_outliers(each.measurement for each in judged)
        if not _is_lowered(each.measurement, each.subject, named, busy) or _is_beyond_load(each, records)
    )
    if cluster is None:
        return BenchReport(run, "", tuple(records), judged, outliers)
    most = min(accelerators or cluster.accelerators_per_node, cluster.accelerators_per_node)
    lacking = tuple(
        f"{record.name} shows {len(record.host.accelerators)} of {most} accelerators"
        for record in records
        if _ON_ACCELERATORS.intersection(record.request.kinds) and len(record.host.accelerators) < most
    )
    return BenchReport(run, cluster.name, tuple(records), judged, outliers, lacking=lacking)


def _is_lowered(measurement: Measurement, subject: str, nodes: Sequence[str], busy: frozenset[str]) -> bool:
    """Whether other programs on a node that the subject names may have lowered a figure; on any if it names none."""
    on_device = measurement.quantity is Quantity.GEMM and measurement.conditions.get("device", "cpu") != "cpu"
    if on_device or measurement.quantity is Quantity.DEVICE_MEMORY_BANDWIDTH:
        return False  # what an accelerator does by itself needs no cores
    concerned = {*nodes} & {*subject.replace(",", " ").split()} or {*nodes}
    return not busy.isdisjoint(concerned)


def _is_beyond_load(outlier: BenchOutlier, records: Sequence[NodeRecord]) -> bool:
    """Whether a rate is so far below those of nodes that were as busy that their load does not explain it."""
    named = {*outlier.subject.split()}
    own, others = ([r.others_share or 0.0 for r in records if (r.name in named) is inside] for inside in (True, False))
    is_rate = outlier.measurement.quantity is not Quantity.LINK_LATENCY  # a wait for a core makes latency a hundredfold
    is_alike = bool(own and others) and max(own) <= median(others) + QUIET_SHARE
    return is_rate and is_alike and outlier.share < _LOWEST_BY_LOAD


def _measurements(
    records: Sequence[NodeRecord], cluster: ClusterDescription | None, needs: Mapping[str, Mapping[Quantity, float]]
) -> Iterator[tuple[Measurement, Yardstick]]:
    """All figures with what they are held against; of several nodes the name begins the subject of a figure of one."""
    for record in records:
        shown = Yardstick(cluster, record.processors, record.host.num_cores)
        for part, result in record.parts.items():
            is_shared = "@" in part or part == "mpi" or len(records) == 1
            yardstick = replace(shown, needs=needs.get(part.removeprefix(STORAGE), {}))
            for each in result.figures:
                figure = each if is_shared else replace(each, subject=f"{record.name} {each.subject}")
                yield figure, yardstick


def measured_paths(records: Sequence[NodeRecord]) -> list[str]:
    """Paths whose storage was measured."""
    parts = dict.fromkeys(part for record in records for part in record.parts)
    return [part.removeprefix(STORAGE) for part in parts if part.startswith(STORAGE)]
