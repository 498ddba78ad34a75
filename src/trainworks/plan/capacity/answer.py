"""The smallest fixed capacity that meets a target on a trace, and what it leaves spare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.policy import Policy
from trainworks.plan.capacity.service import Service, Target, service_of
from trainworks.plan.capacity.simulation import replay
from trainworks.plan.trace import Traced, computed, fact
from trainworks.queueing.node_pool import pool_need

_MOST_NODES = 100_000
_LOOKED_BELOW = 4
"""Smaller capacities that are tried after the search: with backfilling one more node can make a queue longer."""


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
        policy = Policy(node_accelerators=node_accelerators, fixed_nodes=nodes)
        return service_of(trace, replay(trace, policy))

    nodes = _smallest(lambda nodes: target.is_met(served(nodes)), least, max(least, most))
    return _answer(load, _traced(target), nodes, node_accelerators, served(nodes))


def _traced(target: Target) -> Traced:
    if target.deadlines is not None:
        return fact("deadlines to meet", target.deadlines, "", source="asked for")
    return fact("wait target", target.wait_s or 0.0, "s", source="asked for")


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


def _answer(load: Load, target: Traced, nodes: int, node_accelerators: int, service: Service) -> CapacityAnswer:
    num_nodes = computed(
        "nodes for the target",
        nodes,
        "",
        by="smallest capacity whose replay meets the target: gangs in whole nodes, EASY backfilling",
        target=target,
        mean_load=load.mean,
    )
    each = fact("accelerators per node", node_accelerators, "", source="asked for")
    capacity = (num_nodes * each).named("capacity", "accelerators", nodes=num_nodes, each=each)
    return CapacityAnswer(
        load=load,
        target=target,
        nodes=num_nodes,
        capacity=capacity,
        utilisation=(load.mean / capacity).named("utilisation", ""),
        spare_share=(capacity / load.mean - 1).named("spare share", ""),
        wait=computed(
            "p90 wait",
            service.worst_wait_s,
            "s",
            by="replay of the trace on these nodes, team that waits longest",
            nodes=num_nodes,
        ),
        service=service,
    )
