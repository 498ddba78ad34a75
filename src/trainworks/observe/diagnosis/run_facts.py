"""What a diagnosis reads of a run: its record, the lines of NCCL, and how the time of its steps divides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.record.history import History, RecordedLaunch
from trainworks.record.ledger import Ledger
from trainworks.record.measured.step_anchor import StepAnchor
from trainworks.record.metric_columns import CALLBACK_COLUMNS, SLOWEST_COLUMNS, Floats, Mask, Steps
from trainworks.record.metrics import warmup_steps
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.step_time import StepTimeGroups, StepTimeTerms

_LINE = re.compile(r"NCCL (?:INFO|WARN) (.*)")
_CHOSEN = re.compile(r"Using network (.+?)\s*$")
_ADAPTERS = re.compile(r"NET/IB : Using (.*)")
_ADAPTER = re.compile(r"\[(\d+)\]([^\s:]+):\d+/\S+")
_CHANNEL = re.compile(r"via NET/([^/\s]+(?: [^/\s]+)*)/(\d+)(\S*)")
_DISABLED = re.compile(r"(NCCL_(?:IB|P2P|SHM)_DISABLE) set by environment to (?!0)(\d+)")


@dataclass(frozen=True, slots=True)
class NcclTransport:
    """What NCCL said of the network between the nodes."""

    network: str | None = None
    """Transport that it chose: `IB`, `Socket`, or that of a plugin; None without such a line."""
    adapters: tuple[str, ...] = ()
    """InfiniBand and RoCE adapters that it found."""
    unused: tuple[str, ...] = ()
    """Adapters that no channel uses; empty where no channel to another node was logged."""
    found_no_adapter: bool = False
    without_gpu_direct: bool = False
    """Channels go through an adapter, and none has GPUDirect RDMA (`GDRDMA`)."""
    disabled: tuple[str, ...] = ()
    """Variables that switch off InfiniBand or a path within the node: `NCCL_IB_DISABLE=1`."""

    @property
    def is_on_sockets(self) -> bool:
        """True if traffic between nodes goes through kernel TCP."""
        return (self.network or "").startswith("Socket")


def read_transport(lines: Iterable[str]) -> NcclTransport:
    """What the lines of the ranks of whole nodes say; lines that are not NCCL's are skipped."""
    network: str | None = None
    adapters: dict[str, str] = {}
    used: set[str] = set()
    direct: list[bool] = []
    disabled: dict[str, None] = {}
    found_none = False
    for said in (match[1] for line in lines if (match := _LINE.search(line))):
        if chosen := _CHOSEN.search(said):
            network = chosen[1]
        elif found := _ADAPTERS.search(said):
            adapters.update(_ADAPTER.findall(found[1]))
        elif channel := _CHANNEL.search(said):
            used |= {channel[2]} if channel[1] == "IB" else set()
            direct += ["GDR" in channel[3]] if channel[1] == "IB" else []
        elif off := _DISABLED.search(said):
            disabled[f"{off[1]}={off[2]}"] = None
        found_none = found_none or "NET/IB : No device found" in said
    return NcclTransport(
        network=network,
        adapters=tuple(adapters.values()),
        unused=tuple(name for number, name in adapters.items() if used and number not in used),
        found_no_adapter=found_none,
        without_gpu_direct=bool(direct) and not any(direct),
        disabled=tuple(disabled),
    )


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
    """Time of the effective steps: that of the ledger, with what single ranks cost taken out of every category.

        slow_ranks + callback_waits + data + compute + communication + gaps
            = data + compute + communication + other of the ledger

    A rank that works x seconds longer than the other n - 1 raises the mean work by x / n, and the mean wait of the
    ranks for each other by x (n - 1) / n. The same holds for a rank that is x seconds longer in callbacks; the others
    wait for it in the next step, or in the collective that ends a logging interval.
    """

    slow_ranks_s: float
    callback_waits_s: float
    """Waits of the other ranks for the one that spends longest in callbacks."""
    data_s: float
    compute_s: float
    communication_s: float
    gaps_s: float


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The record of one run."""

    resolved: ResolvedRun
    history: History
    ledger: Ledger
    nccl: NcclTransport = field(default_factory=NcclTransport)
    prices: LayoutPrices | None = None
    """None where the planner has no measured rates of these ranks."""
    others_share: float | None = None
    """Share of the cores that other programs used on the busiest node; None where it is unknown."""
    anchor: StepAnchor | None = None
    """The plan as the first quiet steps anchored it; None in records of older versions."""

    @property
    def plan(self) -> Plan | None:
        """The prediction; None for a command."""
        return self.resolved.plan

    @cached_property
    def rows(self) -> Steps:
        """Effective steps that updated the weights."""
        return self.history.effective.where(_updates(self.history.effective))

    @cached_property
    def steady(self) -> Steps:
        """The same without the first ones."""
        return self.rows.where(slice(warmup_steps(len(self.rows)), None))

    @property
    def steps_s(self) -> float:
        """Time of the effective steps without checkpoints, as in the ledger."""
        ledger = self.ledger
        return ledger.data_s + ledger.compute_s + ledger.communication_s + ledger.optimizer_s

    def median_of(self, term: str) -> float:
        """Median seconds of one term over the steady steps; 0 without any, and where the record does not have it."""
        return float(np.nan_to_num(np.median(self.steady[term]))) if len(self.steady) else 0.0

    @property
    def planned(self) -> StepTimeGroups | None:
        """Planned time of a step in the groups that a worker measures."""
        return self.plan.groups if self.plan else None

    @property
    def planned_terms(self) -> StepTimeTerms | None:
        """Planned time of a step by term; None where the model was measured, or the record has no terms."""
        terms = self.plan.step_time if self.plan and not self.plan.of_command else None
        return terms if isinstance(terms, StepTimeTerms) else None

    @cached_property
    def _slowest(self) -> Floats:
        """Rank, extra_s and extra_data_s of the slowest rank, a column for each of `rows`; NaN where none is named."""
        return self._interval_columns(SLOWEST_COLUMNS)

    @cached_property
    def callbacks(self) -> Floats:
        """CALLBACK_COLUMNS of the interval of each of `rows`; NaN in a run without callbacks."""
        return self._interval_columns(CALLBACK_COLUMNS)

    def callback_times(self, count: int) -> tuple[Floats, Floats]:
        """Seconds of each callback: in the intervals in which it was the longest, and after the last step."""
        longest, longest_s, _ = self.callbacks[:, self.callbacks[0] < count]
        in_steps = np.zeros(count)
        np.add.at(in_steps, longest.astype(int), longest_s)
        at_end = np.zeros(count)
        for launch in self.history.launches:
            last_s = launch.last_callbacks_s[:count]
            at_end[: len(last_s)] += last_s
        return in_steps, at_end

    def _interval_columns(self, fields: Sequence[str]) -> Floats:
        return np.concatenate([_launch_columns(launch, fields) for launch in self.history.launches], axis=1)

    @cached_property
    def slow_ranks(self) -> Sequence[SlowRank]:
        """Ranks that were the slowest of an interval, the costliest first."""
        ranks, extra_s, data_s = self._slowest[:, self._slowest[1] > 0]
        known, nth, num_steps = np.unique(ranks, return_inverse=True, return_counts=True)
        data_s = np.minimum(extra_s, np.fmax(data_s, 0.0))
        sums = (np.bincount(nth, weights=seconds).tolist() for seconds in (extra_s, data_s))
        return sorted(map(SlowRank, map(int, known), *sums, num_steps.tolist()), key=lambda one: -one.extra_s)

    @cached_property
    def usual_compute_s(self) -> Floats:
        """Compute of every steady step, without what its slow rank added to the mean over the ranks."""
        _, extra_s, data_s = self._slowest[:, len(self.rows) - len(self.steady) :]
        added_s = np.fmax(extra_s - np.fmax(data_s, 0.0), 0.0) / self.resolved.processes.world_size
        usual_s: Floats = np.fmax(self.steady["compute_s"] - added_s, 0.0)
        return usual_s

    @property
    def expected_compute_s(self) -> float:
        """Compute of all steps as planned, at most as measured; as measured without a plan."""
        if self.planned is None:
            return self.shares.compute_s
        bubble_s = self.planned_terms.bubble_s if self.planned_terms else 0.0
        return min(self.shares.compute_s, (self.planned.compute_s - bubble_s) * float(self.rows.num_steps.sum()))

    @cached_property
    def shares(self) -> StepShares:
        """Time of the effective steps, by what it was spent on."""
        ledger, world = self.ledger, self.resolved.processes.world_size
        data = min(ledger.data_s, sum(one.extra_data_s for one in self.slow_ranks) / world)
        extra = sum(one.extra_s for one in self.slow_ranks)
        compute = min(ledger.compute_s, extra / world - data) if extra / world > data else 0.0
        waited = min(ledger.communication_s, extra * (world - 1) / world)
        # Waits for the callbacks of another rank, mean over the ranks, fall into steps, or into gaps between intervals.
        waits_s = np.nan_to_num(np.fmax(self.callbacks[-1] - self.rows["callback_s"], 0.0))
        is_end = np.isfinite(self.rows[CALLBACK_COLUMNS[0]])
        called = min(ledger.communication_s - waited, float(waits_s[~is_end].sum()))
        gaps = min(ledger.other_s, float(waits_s[is_end].sum()))
        return StepShares(
            slow_ranks_s=data + compute + waited,
            callback_waits_s=called + gaps,
            data_s=ledger.data_s - data,
            compute_s=ledger.compute_s - compute,
            communication_s=ledger.communication_s - waited - called,
            gaps_s=ledger.other_s - gaps,
        )


def _updates(steps: Steps) -> Mask:
    return ~steps.is_fault() & (steps.num_steps > 0)


def _launch_columns(launch: RecordedLaunch, fields: Sequence[str]) -> Floats:
    """What the last row of its logging interval says of every effective step without a fault."""
    ends = np.flatnonzero(np.isfinite(launch.steps[fields[0]]))
    nth = np.searchsorted(ends, np.flatnonzero(~launch.lost & _updates(launch.steps)))
    named = np.array([np.append(launch.steps[field][ends], np.nan) for field in fields])
    return np.take(named, nth, axis=1)


Cause = Callable[[RunFacts], LostTime | None]
"""A cause of lost time: what it cost this run; None if it did not occur."""
