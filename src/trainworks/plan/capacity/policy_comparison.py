"""Many policies on one trace: what each costs, how long jobs wait, and the front that nothing beats in both.

cost per week = fixed nodes * accelerators of a node * 168 h * fixed price
              + sum over elastic classes of (accelerator-hours bought / span of the trace * 168 h * price)

A price is what the user gives, else the median of what the catalogue has seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.facts import Node, Offer
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.capacity.answer import CapacityAnswer, Service, Target, service_of
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.policy import FIXED, ON_DEMAND, SPOT, Elastic, Policy, Spot
from trainworks.plan.capacity.simulation import replay
from trainworks.plan.pareto import pareto
from trainworks.plan.trace import Traced, computed, fact, total
from trainworks.queueing.node_pool import pool_need
from trainworks.units import HOUR_S, WEEK_S

_FIXED_SHARES = (0.0, 0.5, 0.75, 1.0, 1.25)
"""Fixed nodes beside elastic ones, over the mean load."""
_BACKLOGS_S = (0.0, HOUR_S, 4 * HOUR_S)
"""Backlogs from which on nodes are ordered."""
_FIXED_ALONE = 8
"""Sizes without elastic nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPrices:
    """Prices of one accelerator hour, USD/h."""

    fixed: Traced
    spot: Traced
    on_demand: Traced

    def of(self, name: str) -> Traced:
        """Price of a class of nodes."""
        return {FIXED: self.fixed, SPOT: self.spot, ON_DEMAND: self.on_demand}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLimits:
    """Limits on what may be bought."""

    node_accelerators: int
    fixed_nodes: int | None = None
    """None: any number."""
    on_demand: Elastic
    spot: Spot
    seed: int = 1


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """One policy, replayed."""

    policy: Policy
    service: Service
    bought_h_per_week: dict[str, float]
    """Accelerator-hours paid, by class of nodes."""
    utilisation: float
    """Accelerator-hours that jobs held over those paid."""
    wasted_share: float
    """Share of used accelerator-hours spent on restarts, lost work and checkpoints taken because of spot nodes."""
    interruptions: int
    cost_usd_per_week: float


def policies(trace: JobTrace, limits: CapacityLimits, answer: CapacityAnswer) -> list[Policy]:
    """A grid of fixed nodes, classes of elastic nodes, and rules for when to order them.

    Every policy can run every job and carry at least the mean load, so that no queue grows without end.
    """
    base = Policy(node_accelerators=limits.node_accelerators, fixed_nodes=0, seed=limits.seed)
    mean, enough = answer.load.mean.value / limits.node_accelerators, round(answer.nodes.value)
    alone = [replace(base, fixed_nodes=nodes) for nodes in _alone(limits, mean, enough)]
    sizes = sorted({round(share * mean) for share in _FIXED_SHARES})
    if limits.fixed_nodes is not None:
        sizes = [limits.fixed_nodes]
    # Backlog and patience from which on nodes are ordered: in time for the target.
    rules = [(backlog_s, math.inf) for backlog_s in _BACKLOGS_S]
    if answer.target.unit == "s":
        rules.append((math.inf, max(0.0, answer.target.value - limits.on_demand.start_latency_s)))
    mixed = [
        replace(base, fixed_nodes=nodes, on_demand=on_demand, spot=spot, backlog_s=backlog_s, patience_s=patience_s)
        for nodes in sizes
        for on_demand, spot in _elastic(limits, mean)
        for backlog_s, patience_s in (rules if nodes else [(0.0, math.inf)])
    ]
    return [policy for policy in dict.fromkeys([*alone, *mixed]) if _carries(trace, policy)]


def _alone(limits: CapacityLimits, mean: float, enough: int) -> list[int]:
    """Sizes without elastic nodes, from the mean load to a quarter more than what meets the target."""
    if limits.fixed_nodes is not None:
        return [limits.fixed_nodes]
    least, most = math.ceil(mean - 1e-9), math.ceil(1.25 * enough)
    steps = {round(least + (most - least) * step / (_FIXED_ALONE - 1)) for step in range(_FIXED_ALONE)}
    return sorted({*steps, enough})


def _elastic(limits: CapacityLimits, mean: float) -> Iterator[tuple[Elastic, Spot]]:
    """On-demand nodes, few or many; spot nodes; and both, as far as they may be bought."""
    on_demand, spot = limits.on_demand, limits.spot
    few = replace(on_demand, max_nodes=min(on_demand.max_nodes, math.ceil(mean / 2)))
    no_spot, no_on_demand = replace(spot, max_nodes=0), replace(on_demand, max_nodes=0)
    pairs = ((few, no_spot), (on_demand, no_spot), (no_on_demand, spot), (on_demand, spot))
    yield from dict.fromkeys(pair for pair in pairs if pair[0].max_nodes or pair[1].max_nodes)


def _carries(trace: JobTrace, policy: Policy) -> bool:
    """True if the nodes can hold the largest job and the mean load, without and with the preemptible jobs."""
    nodes = policy.fixed_nodes + policy.on_demand.max_nodes
    largest = max(policy.fixed_nodes, policy.on_demand.max_nodes)
    work_s = trace.accelerators * trace.duration_s / trace.span_s / policy.node_accelerators
    steady = ~trace.preemptible
    most = [int(trace.accelerators[jobs].max(initial=0)) for jobs in (steady, trace.preemptible)]
    needs = [pool_need(count, policy.node_accelerators)[0] if count else 0 for count in most]
    return (
        needs[0] <= largest
        and needs[1] <= max(largest, policy.spot.max_nodes)
        and float(work_s[steady].sum()) <= nodes
        and float(work_s.sum()) <= nodes + policy.spot.max_nodes
    )


def point_of(trace: JobTrace, policy: Policy, prices: CapacityPrices) -> PolicyReplay:
    """Replay a trace under a policy, and price it."""
    done = replay(trace, policy)
    weeks = trace.span_s / WEEK_S
    hours_by_class = {name: value / HOUR_S / weeks for name, value in done.bought_accelerator_s.items()}
    hours_by_class[FIXED] = policy.fixed_nodes * policy.node_accelerators * WEEK_S / HOUR_S
    used_accelerator_s = sum(
        (run.end_s - run.start_s) * run.accelerators for run in done.runs if run.end_s > run.start_s
    )
    return PolicyReplay(
        policy=policy,
        service=service_of(trace, done),
        bought_h_per_week=hours_by_class,
        utilisation=used_accelerator_s / sum(done.bought_accelerator_s.values()),
        wasted_share=done.wasted_accelerator_s / used_accelerator_s,
        interruptions=done.interruptions,
        cost_usd_per_week=sum(hours * prices.of(name).value for name, hours in hours_by_class.items()),
    )


def front(points: Sequence[PolicyReplay]) -> list[PolicyReplay]:
    """Points that none beats in cost and in the p90 wait of the team that waits longest, cheapest first."""
    return pareto(points, at=lambda point: (point.cost_usd_per_week, point.service.worst_wait_s))


def cheapest(points: Sequence[PolicyReplay], target: Target) -> PolicyReplay | None:
    """The one that meets the target for the least; None if none does."""
    meeting = [point for point in points if target.is_met(point.service)]
    return min(meeting, key=lambda point: (point.cost_usd_per_week, point.service.worst_wait_s), default=None)


def cost_of(point: PolicyReplay, prices: CapacityPrices) -> Traced:
    """Traced cost of a point."""
    parts: dict[str, Traced] = {}
    for name, hours in point.bought_h_per_week.items():
        if name == FIXED:
            nodes = fact("fixed nodes", point.policy.fixed_nodes, "", source="the policy")
            each = fact("accelerators per node", point.policy.node_accelerators, "", source="the policy")
            paid_hours = (nodes * each * 168).named("fixed hours per week", "accelerator-h", nodes=nodes, each=each)
        else:
            by = f"replay of the trace, seed {point.policy.seed}"
            paid_hours = computed(f"{name} hours per week", hours, "accelerator-h", by=by)
        key = name.replace("-", "_")
        price = prices.of(name)
        parts[key] = (paid_hours * price).named(f"{name} cost per week", "USD", hours=paid_hours, price=price)
    return total(*parts.values()).named("cost per week", "USD", **parts)


_SHOWN = 3


def prices_for(
    node: Node | None, *, on_demand: float | None = None, spot: float | None = None, fixed: float | None = None
) -> CapacityPrices:
    """USD per accelerator hour of each class of nodes; spot falls back to the on-demand price.

    Uses offers of that node, else of its accelerator, and the median of several zones. The fixed price is
    on demand * (1 - committed-use discount).

    Args:
        node: of the catalogue; None where only its number of accelerators is known, so that prices must be given.
        on_demand: replaces the catalogue's.
        spot: replaces the catalogue's.
        fixed: of own or reserved nodes.

    Raises:
        UsageError: a required price is unknown.
    """
    offers: list[Offer] = []
    if node is not None:
        known = load_catalog().offers.values()
        offers = [offer for offer in known if offer.node == node.name]
        offers = offers or [offer for offer in known if offer.accelerator == node.accelerator]
    on_demand_offers = {o.name: o.usd_per_hour / o.accelerators for o in offers if o.usd_per_hour is not None}
    price = _price("on-demand price", on_demand, on_demand_offers)
    if price is None:
        unknown = f"no on-demand price of `{node.name}` is known" if node else "without `--node` no price is known"
        raise UsageError(unknown, place="--price", hint="give USD per accelerator hour: `--price 3.50`")
    spot_offers = {
        offer.name: median(each) / offer.accelerators for offer in offers if (each := offer.spot_usd_per_hour)
    }
    interruptible = _price("spot price", spot, spot_offers)
    discount = assumed("committed-use discount")
    committed = (price * (1 - discount)).named("fixed price", "USD/h", asked=price, discount=discount)
    return CapacityPrices(
        fixed=_price("fixed price", fixed, {}) or committed,
        spot=interruptible or price.named("spot price", "USD/h", asked=price),
        on_demand=price,
    )


def _price(name: str, given: float | None, offers: Mapping[str, float]) -> Traced | None:
    if given is not None:
        return fact(name, given, "USD/h", source=GIVEN)
    if not offers:
        return None
    prices = list(offers.values())
    return fact(name, median(prices), "USD/h", source=_source(list(offers)), low=min(prices), high=max(prices))


def _source(names: list[str]) -> str:
    dates = sorted({figure.date for name in names for figure in find_row(name, "offers").figures})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    if len(names) == 1:
        return f"offer {names[0]}, {when}"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"median of {len(names)} offers, {when}: {', '.join(names[:_SHOWN])}{more}"
