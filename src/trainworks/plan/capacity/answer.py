"""Service quality of a replay, and the smallest fixed capacity that meets a target, with what it leaves spare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.policy import Policy
from trainworks.plan.capacity.simulation import Replay, replay
from trainworks.plan.trace import Traced, computed, fact
from trainworks.queueing.node_pool import pool_need

_MOST_NODES = 100_000
_LOOKED_BELOW = 4
"""Smaller capacities that are tried after the search: with backfilling one more node can make a queue longer."""


_ROUNDING = 1e-12
"""Relative rounding error of sums of seconds; a job that ends at its deadline is in time."""


@dataclass(frozen=True, slots=True)
class Service:
    """Waiting times of some jobs, each that of an actual job, and their deadlines."""

    jobs: int
    wait_p50_s: float
    wait_p90_s: float
    wait_max_s: float
    deadlines_met: float | None
    """Share of the deadlines that could be met at all; None without any."""
    teams: Mapping[str, Service] = field(default_factory=dict)
    """Service by team name; empty for a team itself."""

    @property
    def worst_wait_s(self) -> float:
        """Wait that 90 % of the jobs of every team do not exceed."""
        return max((team.wait_p90_s for team in self.teams.values()), default=self.wait_p90_s)

    @property
    def worst_deadlines_met(self) -> float | None:
        """Share of deadlines met by the team with the lowest share."""
        shares = [team.deadlines_met for team in self.teams.values() if team.deadlines_met is not None]
        return min(shares, default=self.deadlines_met)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Service target of every team; exactly one of the two is set."""

    wait_s: float | None = None
    """Longest wait of 90 % of a team's jobs."""
    deadlines: float | None = None
    """Share to meet of a team's deadlines, as far as they can be met at all."""

    def is_met(self, service: Service) -> bool:
        """True if this service meets the target.

        Raises:
            UsageError: deadlines are promised and no job has one that it can meet.
        """
        if self.deadlines is None:
            return self.wait_s is not None and service.worst_wait_s <= self.wait_s
        if service.worst_deadlines_met is None:
            hint = "set a target for the wait instead"
            raise UsageError("no job of the trace has a deadline that it can meet", hint=hint)
        return service.worst_deadlines_met >= self.deadlines


def service_of(trace: JobTrace, replay: Replay) -> Service:
    """Service of all jobs, and of each team's."""
    wait_s, took_s = np.array(replay.wait_s), np.array(replay.end_s) - trace.submit_s
    in_time = took_s <= trace.deadline_s * (1 + _ROUNDING)
    possible, names = _possible(trace), np.array(trace.team)

    def of(jobs: NDArray[np.bool_]) -> Service:
        p50, p90, most = np.quantile(wait_s[jobs], [0.5, 0.9, 1.0], method="higher")
        with_deadline = possible & jobs
        met = float(np.mean(in_time[with_deadline])) if with_deadline.any() else None
        return Service(int(jobs.sum()), float(p50), float(p90), float(most), met)

    teams = {team: of(names == team) for team in dict.fromkeys(trace.team)}
    return replace(of(np.ones(len(trace), dtype=np.bool_)), teams=teams)


def num_deadlines(trace: JobTrace) -> tuple[int, int]:
    """Jobs with a deadline, and those of them that run longer than it even without a wait."""
    count = int(np.isfinite(trace.deadline_s).sum())
    return count, count - int(_possible(trace).sum())


def _possible(trace: JobTrace) -> NDArray[np.bool_]:
    return np.isfinite(trace.deadline_s) & (trace.duration_s <= trace.deadline_s)


@dataclass(frozen=True, slots=True)
class Load:
    """Demand of the jobs of a trace."""

    work: Traced
    span: Traced
    mean: Traced
    """Accelerators in use on average, if no job had to wait."""
    peak: Traced


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """Fixed nodes that meet a target."""

    load: Load
    target: Traced
    nodes: Traced
    capacity: Traced
    """Accelerators of these nodes."""
    utilisation: Traced
    spare_share: Traced
    """Capacity beyond the mean load, over the mean load."""
    wait: Traced
    """Wait that 90 % of the jobs of every team do not exceed."""
    service: Service

    @property
    def roots(self) -> tuple[Traced, ...]:
        """All figures."""
        return self.spare_share, self.utilisation, self.wait, self.load.peak


def load_of(trace: JobTrace, *, name: str = "the trace") -> Load:
    """Mean load = work / span; the peak is the most in use at once, if no job had to wait."""
    jobs = f"{len(trace):,} jobs of {name}"
    work = computed("work", trace.work_accelerator_s / 3600, "accelerator-h", by=f"accelerators x run time, {jobs}")
    span = computed("trace span", trace.span_s, "s", by=f"first submission to last end without any wait, {jobs}")
    mean = (work * 3600 / span).named("mean load", "accelerators")
    peak = computed("peak load", trace.peak(), "accelerators", by=f"most in use at once without any wait, {jobs}")
    return Load(work, span, mean, peak)


def most_nodes(trace: JobTrace, node_accelerators: int) -> int:
    """Nodes on which no job ever waits: each has its own, and starts at once.

    Raises:
        UsageError: there are more of them than can be replayed.
    """
    most = trace.peak(np.array([pool_need(int(count), node_accelerators)[0] for count in trace.accelerators]))
    if most > _MOST_NODES:
        raise UsageError(f"the jobs would need {most:,} nodes at once; at most {_MOST_NODES:,} can be replayed")
    return most


def capacity_for(
    trace: JobTrace,
    *,
    node_accelerators: int,
    wait_s: float | None = None,
    deadlines: float | None = None,
    name: str = "the trace",
) -> CapacityAnswer:
    """The smallest number of fixed nodes on which a trace meets its target, found by replaying it.

    The trace samples a continuing load, so the answer is at least the mean load: below it the queue grows without
    bound. The search bisects; because more nodes can, rarely, mean more waiting, it also tries some smaller capacities.

    Args:
        trace: of the jobs.
        node_accelerators: of each node.
        wait_s: longest wait of 90 % of every team's jobs. Exclusive with `deadlines`.
        deadlines: share of every team's deadlines to meet, of those that are longer than their job.
        name: of the trace, for the sources of the figures.

    Raises:
        UsageError: no deadline can be met, or more than 100,000 nodes would be needed.
    """
    target = Target(wait_s=wait_s, deadlines=deadlines)
    load = load_of(trace, name=name)
    most = most_nodes(trace, node_accelerators)
    largest = -(-int(trace.accelerators.max()) // node_accelerators)
    least = max(largest, int(np.ceil(load.mean.value / node_accelerators - 1e-9)))

    @cache
    def served(nodes: int) -> Service:
        return service_of(trace, replay(trace, Policy(node_accelerators=node_accelerators, fixed_nodes=nodes)))

    nodes = _smallest(lambda nodes: target.is_met(served(nodes)), least, max(least, most))
    if target.deadlines is not None:
        wanted = fact("deadlines to meet", target.deadlines, "", source="asked for")
    else:
        wanted = fact("wait target", target.wait_s or 0.0, "s", source="asked for")
    num_nodes = computed(
        "nodes for the target",
        nodes,
        "",
        by="smallest capacity whose replay meets the target: gangs in whole nodes, EASY backfilling",
        target=wanted,
        mean_load=load.mean,
    )
    each = fact("accelerators per node", node_accelerators, "", source="asked for")
    capacity = (num_nodes * each).named("capacity", "accelerators", nodes=num_nodes, each=each)
    return CapacityAnswer(
        load=load,
        target=wanted,
        nodes=num_nodes,
        capacity=capacity,
        utilisation=(load.mean / capacity).named("utilisation", ""),
        spare_share=(capacity / load.mean - 1).named("spare share", ""),
        wait=computed(
            "p90 wait",
            served(nodes).worst_wait_s,
            "s",
            by="replay of the trace on these nodes, team that waits longest",
            nodes=num_nodes,
        ),
        service=served(nodes),
    )


def _smallest(meets: Callable[[int], bool], least: int, most: int) -> int:
    """The smallest number of nodes found that meets the target, as the largest one does: there no job waits."""
    if meets(least):
        return least
    fails, enough = least, most
    while enough - fails > 1:
        middle = (fails + enough) // 2
        fails, enough = (fails, middle) if meets(middle) else (middle, enough)
    below = range(max(least + 1, enough - 1 - _LOOKED_BELOW), enough - 1)
    return next((nodes for nodes in below if meets(nodes)), enough)
