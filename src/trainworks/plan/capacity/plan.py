"""Replay a trace of jobs under every policy: waiting time against cost of fixed, on-demand and spot nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainworks.errors import UsageError
from trainworks.plan.capacity.answer import CapacityAnswer, Target, capacity_for, most_nodes, num_deadlines
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.policy import Elastic, Spot
from trainworks.plan.capacity.policy_comparison import (
    CapacityLimits,
    CapacityPrices,
    PolicyReplay,
    cheapest,
    cost_of,
    front,
    point_of,
    policies,
)
from trainworks.plan.trace import Traced
from trainworks.results import Result
from trainworks.units import WEEK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTerms:
    """Terms of on-demand and spot nodes."""

    start_latency_s: float
    idle_timeout_s: float
    spot_life_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class CapacityPlan(Result):
    """The capacity that meets a target, and every policy that was replayed."""

    name: str
    trace: JobTrace
    target: Target
    limits: CapacityLimits
    prices: CapacityPrices
    answer: CapacityAnswer
    points: list[PolicyReplay]
    front: list[PolicyReplay]
    best: PolicyReplay | None
    """The cheapest that meets the target."""
    notes: list[str]
    sampled_trace: str | None = None
    """Sampled jobs as a CSV trace; None where the jobs are those of a trace."""

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        costs = [] if self.best is None else [cost_of(self.best, self.prices)]
        return [*self.answer.roots, *costs, self.prices.on_demand, self.prices.spot, self.prices.fixed]


def limits_for(
    trace: JobTrace,
    node_accelerators: int,
    terms: ElasticTerms,
    *,
    fixed: int | None,
    on_demand: int | None,
    spot: int | None,
) -> CapacityLimits:
    """Limits on what may be bought; without one, as many elastic nodes as the trace ever needs at once."""
    most = most_nodes(trace, node_accelerators)
    most_spot = most if trace.preemptible.any() else 0
    times = {"start_latency_s": terms.start_latency_s, "idle_timeout_s": terms.idle_timeout_s}
    return CapacityLimits(
        node_accelerators=node_accelerators,
        fixed_nodes=fixed,
        on_demand=Elastic(max_nodes=most if on_demand is None else on_demand, **times),
        spot=Spot(max_nodes=most_spot if spot is None else spot, mean_life_s=terms.spot_life_s, **times),
        seed=terms.seed,
    )


def plan_capacity(
    name: str,
    trace: JobTrace,
    target: Target,
    limits: CapacityLimits,
    prices: CapacityPrices,
    progress: Callable[[float, str], None],
) -> CapacityPlan:
    """Find the smallest fixed capacity for the target, replay every policy of the grid, and keep the front.

    Args:
        name: of the trace.
        trace: jobs to replay.
        target: wait or deadlines to meet.
        limits: on what may be bought.
        prices: of each kind of node.
        progress: called with the share of the work that is done, and its name.

    Raises:
        UsageError: the target cannot be met, or no policy can run every job.
    """
    progress(0.0, "searching for the smallest capacity")
    answer = capacity_for(
        trace, node_accelerators=limits.node_accelerators, wait_s=target.wait_s, deadlines=target.deadlines, name=name
    )
    grid = policies(trace, limits, answer)
    if not grid:
        mean, largest = answer.load.mean.value, int(trace.accelerators.max())
        raise UsageError(
            "the limits leave too few nodes for every job and the mean load: "
            f"the largest job needs {largest:,} accelerators, the mean load {mean:,.0f}",
            place="--fixed, --on-demand-max, --spot-max",
            hint=f"{answer.nodes.value:,.0f} fixed nodes meet the target",
        )
    points = []
    for index, policy in enumerate(grid):
        progress(index / len(grid), "replaying policies")
        points.append(point_of(trace, policy, prices))
    return CapacityPlan(
        name=name,
        trace=trace,
        target=target,
        limits=limits,
        prices=prices,
        answer=answer,
        points=points,
        front=front(points),
        best=cheapest(points, target),
        notes=list(_notes(trace, limits, prices, answer)),
    )


def _notes(trace: JobTrace, limits: CapacityLimits, prices: CapacityPrices, answer: CapacityAnswer) -> Iterator[str]:
    asked, hopeless = num_deadlines(trace)
    if hopeless:
        yield f"{hopeless:,} of {asked:,} deadlines are shorter than their job; they are left out"
    if trace.span_s < WEEK_S:
        yield "the trace is shorter than a week: costs per week are extrapolated"
    if limits.spot.max_nodes and not trace.preemptible.any():
        yield "no job is marked `preemptible`, so that none runs on spot nodes"
    if limits.spot.max_nodes and prices.spot.inputs:
        yield "no spot price is known: the on-demand price stands for it"
    if limits.fixed_nodes is not None and limits.fixed_nodes < answer.nodes.value:
        yield f"{limits.fixed_nodes:,} fixed nodes alone do not meet the target; {answer.nodes.value:,.0f} do"
    if limits.on_demand.max_nodes or limits.spot.max_nodes:
        yield "elastic nodes are taken to come whenever they are ordered; scarce ones do not"
