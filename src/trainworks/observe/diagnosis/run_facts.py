"""What a diagnosis reads of a run, and how the time of its steps divides among slow ranks and everything else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from trainworks.observe.diagnosis.nccl import NcclTransport
from trainworks.record.faults import is_fault
from trainworks.record.history import History
from trainworks.record.ledger import Ledger
from trainworks.record.metrics import MetricsRow, SlowestRank, warmup_steps
from trainworks.record.resolved import Plan, ResolvedRun, StepTimeGroups, StepTimeTerms

if TYPE_CHECKING:
    from trainworks.observe.diagnosis.layout_prices import LayoutPrices


@dataclass(frozen=True, slots=True)
class SlowRank:
    """What one rank cost while it was the slowest."""

    rank: int
    extra_s: float
    """Seconds of its own work beyond the median of the other ranks, over all steps."""
    extra_data_s: float
    """Part of it that the rank waited for data."""
    num_steps: int


@dataclass(frozen=True, slots=True)
class StepShares:
    """Time of the effective steps: that of the ledger, with what slow ranks cost taken out of every category.

        slow_ranks + data + compute + communication = data + compute + communication of the ledger

    A rank that works x seconds longer than the other n - 1 raises the mean work by x / n, and the mean wait of the
    ranks for each other by x (n - 1) / n.
    """

    slow_ranks_s: float
    data_s: float
    compute_s: float
    communication_s: float


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The record of one run."""

    resolved: ResolvedRun
    history: History
    ledger: Ledger
    nccl: NcclTransport = field(default_factory=NcclTransport)
    prices: LayoutPrices | None = None
    """None where the planner has no measured rates of these ranks."""

    @property
    def plan(self) -> Plan | None:
        """The prediction; None for a command."""
        return self.resolved.plan

    @cached_property
    def rows(self) -> Sequence[MetricsRow]:
        """Effective steps that updated the weights."""
        return [row for row in self.history.effective if not is_fault(row)]

    @cached_property
    def steady(self) -> Sequence[MetricsRow]:
        """The same without the first ones."""
        return self.rows[warmup_steps(len(self.rows)) :]

    @property
    def steps_s(self) -> float:
        """Time of the effective steps without checkpoints, as in the ledger."""
        ledger = self.ledger
        return ledger.data_s + ledger.compute_s + ledger.communication_s + ledger.optimizer_s

    def median_of(self, term: str) -> float:
        """Median seconds of one term over the steady steps; 0 without any."""
        return median(float(row[term]) for row in self.steady) if self.steady else 0.0  # type: ignore[literal-required]

    @property
    def planned(self) -> StepTimeGroups | None:
        """Planned time of a step in the groups that a worker measures."""
        return self.plan.step_time.groups if self.plan else None

    @property
    def planned_terms(self) -> StepTimeTerms | None:
        """Planned time of a step by term; None where the model was measured instead of described."""
        terms = self.plan.step_time if self.plan else None
        return terms if isinstance(terms, StepTimeTerms) else None

    @cached_property
    def slow_ranks(self) -> Sequence[SlowRank]:
        """Ranks that were the slowest of an interval, the costliest first."""
        found: defaultdict[int, list[SlowRank]] = defaultdict(list)
        for slowest, rows in _intervals(self.history):
            extra_s, data_s = slowest["extra_s"], max(0.0, slowest["extra_data_s"])
            if rows and extra_s > 0:
                seen = SlowRank(slowest["rank"], extra_s * len(rows), min(extra_s, data_s) * len(rows), len(rows))
                found[seen.rank].append(seen)
        ranks = [
            SlowRank(
                rank,
                sum(one.extra_s for one in seen),
                sum(one.extra_data_s for one in seen),
                sum(one.num_steps for one in seen),
            )
            for rank, seen in found.items()
        ]
        return sorted(ranks, key=lambda one: -one.extra_s)

    @cached_property
    def usual_compute_s(self) -> Sequence[float]:
        """Compute of every steady step, without what its slow rank added to the mean over the ranks."""
        world = self.resolved.processes.world_size
        added = {
            (row["attempt"], row["step"]): (slowest["extra_s"] - max(0.0, slowest["extra_data_s"])) / world
            for slowest, rows in _intervals(self.history)
            for row in rows
        }
        steps = ((row["compute_s"], added.get((row["attempt"], row["step"]), 0.0)) for row in self.steady)
        return [max(0.0, compute_s - max(0.0, extra_s)) for compute_s, extra_s in steps]

    @property
    def expected_compute_s(self) -> float:
        """Compute of all steps as planned, at most as measured; as measured without a plan."""
        if self.planned is None:
            return self.shares.compute_s
        bubble_s = self.planned_terms.bubble_s if self.planned_terms else 0.0
        return min(self.shares.compute_s, (self.planned.compute_s - bubble_s) * len(self.rows))

    @cached_property
    def shares(self) -> StepShares:
        """Time of the effective steps, by what it was spent on."""
        ledger, world = self.ledger, self.resolved.processes.world_size
        data = min(ledger.data_s, sum(one.extra_data_s for one in self.slow_ranks) / world)
        extra = sum(one.extra_s for one in self.slow_ranks)
        compute = min(ledger.compute_s, extra / world - data) if extra / world > data else 0.0
        waited = min(ledger.communication_s, extra * (world - 1) / world)
        return StepShares(
            slow_ranks_s=data + compute + waited,
            data_s=ledger.data_s - data,
            compute_s=ledger.compute_s - compute,
            communication_s=ledger.communication_s - waited,
        )


def _intervals(history: History) -> Iterator[tuple[SlowestRank, Sequence[MetricsRow]]]:
    """The slowest rank of every logging interval, and the effective steps in the interval."""
    for launch in history.launches:
        rows: list[MetricsRow] = []
        for step in launch.steps:
            if not step.lost and not is_fault(step.row):
                rows.append(step.row)
            if "slowest" in step.row:
                yield step.row["slowest"], rows
                rows = []
