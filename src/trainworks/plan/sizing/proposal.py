"""Proposal to buy or rent: alternatives, the Pareto front, and the proposed one.

The proposal is the cheapest alternative that meets the deadline with the required chance and costs no more than the
budget. Spot capacity is proposed on request, or if nothing else meets the goal, because its life is an assumption.
With a budget alone it is the fastest that the budget pays for. Without a goal it is the cheapest, at any duration, so
the front of cost and time is shown with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from trainworks.catalog.exchange import DOLLAR, Exchange
from trainworks.plan.pareto import pareto
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.plan.sizing.candidates import Candidate
from trainworks.plan.trace import Traced
from trainworks.record.step_time import TIE
from trainworks.units import format_duration


@dataclass(frozen=True, slots=True)
class SizingGoal:
    """Goal of a proposal: deadline, chance and budget."""

    deadline_s: float | None
    budget_usd: float | None
    confidence: float
    """Smallest acceptable chance of meeting the deadline."""
    spot: bool = False
    """True if preemptible capacity may be proposed."""
    to_buy: bool = False
    """True if the nodes are bought for this goal: the purchase counts, not the share of it that one run uses."""
    exchange: Exchange = DOLLAR
    """Currency of the answer: that of the budget, else that of the price in the run file."""

    @property
    def is_budget_alone(self) -> bool:
        """Whether money is the only limit, so that the fastest run it pays for is proposed."""
        return self.budget_usd is not None and self.deadline_s is None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A number of nodes of one kind under one contract."""

    candidate: Candidate
    num_nodes: int
    """Nodes that train, without spares."""
    spares: int
    contract: str
    """`on-demand`, `spot`, `reserved` or `own`; `existing` for nodes of the cluster that the run file describes."""
    seller: str
    cost: Traced
    """Cost of the run, USD."""
    outcome: SimulationOutcome
    interval_s: float
    """Work between two checkpoints, in seconds."""
    life_s: float | None = None
    """Mean life of spot capacity; None for capacity that is not preempted."""
    purchase: Traced | None = None
    """Servers, spares and network, USD; None for rented capacity."""

    @property
    def held_nodes(self) -> int:
        """Nodes of the cluster: those that train and the spares, or all that are there."""
        return self.candidate.there or self.num_nodes + self.spares

    @property
    def accelerators(self) -> int:
        """Accelerators that train."""
        return self.num_nodes * self.candidate.base.accelerators

    @property
    def p50_s(self) -> float:
        """Half of the simulated runs are done by then."""
        return self.outcome.quantile_s(0.5)

    @property
    def p90_s(self) -> float:
        """Nine of ten are."""
        return self.outcome.quantile_s(0.9)

    @property
    def name(self) -> str:
        """Description in one line."""
        return f"{self.num_nodes} x {self.offer}, {self.contract}"

    @property
    def offer(self) -> str:
        """The node and who sells it."""
        node = self.candidate.node
        return self.seller if node in self.seller else f"{node} ({self.seller})"

    def price_usd(self, goal: SizingGoal) -> float:
        """What a proposal minimises: the purchase of nodes that are bought for the goal, else the cost of the run."""
        return self.purchase.value if goal.to_buy and self.purchase else self.cost.value

    def chance(self, goal: SizingGoal) -> float:
        """Chance to finish by the deadline; 1 without one."""
        return 1.0 if goal.deadline_s is None else self.outcome.chance(goal.deadline_s)

    def meets(self, goal: SizingGoal) -> bool:
        """True if deadline and budget are met."""
        affordable = goal.budget_usd is None or self.price_usd(goal) <= goal.budget_usd
        return affordable and self.chance(goal) >= goal.confidence


def choose(alternatives: Sequence[Alternative], goal: SizingGoal) -> Alternative | None:
    """The alternative that meets the goal for the least money; None if none does."""
    meeting = [item for item in alternatives if item.meets(goal)]
    lasting = [item for item in meeting if goal.spot or item.life_s is None]
    if goal.is_budget_alone:
        return min(lasting or meeting, key=lambda item: (item.p90_s, item.price_usd(goal)), default=None)
    return min(lasting or meeting, key=lambda item: (item.price_usd(goal), item.p90_s), default=None)


def front(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """Pareto front of cost and the 90 % quantile of time, the cheapest first."""
    return pareto(alternatives, at=lambda each: (each.cost.value, each.p90_s))


def reasons(chosen: Alternative, alternatives: Sequence[Alternative], goal: SizingGoal) -> list[str]:
    """Reasons for this alternative and against the others, each in a sentence."""
    meeting = [item for item in alternatives if item.meets(goal) and item is not chosen]
    price = partial(Alternative.price_usd, goal=goal)
    cheaper = [item for item in alternatives if price(item) < price(chosen)]
    spot = [item for item in cheaper if item.meets(goal)]
    lasting = " that is not preempted" if spot else ""
    to_buy = " to buy" if goal.to_buy else ""
    count = f"{len(meeting) + 1} of {len(alternatives)} alternatives meet the goal"
    best = "fastest" if goal.is_budget_alone else "cheapest"
    said = [f"{count}; this is the {best}{to_buy}{lasting}"]
    if spot:
        item = min(spot, key=price)
        life = f"if a job lives {format_duration(item.life_s or 0.0)} there, which is assumed"
        said.append(f"{_difference_text('on spot', item, chosen, goal)}, {life}: `--contract spot` proposes it")
    other = [item for item in meeting if item.candidate.base.accelerator != chosen.candidate.base.accelerator]
    other = [item for item in other if item not in spot]
    if other:
        said.append(_difference_text("the cheapest with another accelerator", min(other, key=price), chosen, goal))
    fastest = min(meeting, key=lambda item: item.p50_s, default=chosen)
    if fastest.p50_s < chosen.p50_s:
        said.append(_difference_text("the fastest that was tried", fastest, chosen, goal))
    missing = [item for item in cheaper if not item.meets(goal)]
    if missing:
        item = min(missing, key=price)
        late = f"it meets the deadline with a chance of {item.chance(goal):.0%} only"
        but = late if item.chance(goal) < goal.confidence else f"it costs {goal.exchange.format(item.cost.value)}"
        said.append(f"{_difference_text('cheaper would be', item, chosen, goal)}, but {but}")
    return said


def tie(chosen: Alternative, alternatives: Sequence[Alternative], goal: SizingGoal, *, spread: float) -> str:
    """The next alternative, where predictions are less certain than its distance; empty for a clear choice.

    Alternatives of one accelerator share the errors of its rates, those of two do not: there the ratio `spread` of the
    slow end of the 80 % interval to the prediction counts. The same training on nodes of two sellers shares every
    error, and a purchase has a price that no step time changes: both are clear.
    """
    lasting = (each for each in alternatives if each.life_s is None or chosen.life_s is not None)
    accelerator = chosen.candidate.base.accelerator
    others = [
        each
        for each in lasting
        if each.meets(goal)
        and (
            each.candidate.base.accelerator != accelerator or not math.isclose(each.p50_s, chosen.p50_s, rel_tol=0.001)
        )
    ]
    if not others or (goal.to_buy and chosen.purchase is not None):
        return ""
    by_time = goal.is_budget_alone
    near = min(others, key=lambda each: each.p90_s if by_time else each.cost.value)
    more = near.p90_s / chosen.p90_s if by_time else near.cost.value / chosen.cost.value
    is_same = near.candidate.base.accelerator == accelerator
    certain = TIE if is_same else spread
    if more > certain:
        return ""
    figure = format_duration(near.p90_s) if by_time else goal.exchange.format(near.cost.value)
    sure = f"a prediction is sure to {100 * (certain - 1):.0f} %"
    done = f"half of its runs are done in {format_duration(near.p50_s)}, not {format_duration(chosen.p50_s)}"
    return f"no clear winner, {near.name} takes {figure}, and {sure}; {done}"


def _difference_text(what: str, item: Alternative, chosen: Alternative, goal: SizingGoal) -> str:
    more = item.price_usd(goal) / chosen.price_usd(goal) - 1
    cost = f"{abs(more):.0%} {'dearer' if more >= 0 else 'cheaper'}"
    return f"{what}: {item.name}, {cost}, half of the runs done in {format_duration(item.p50_s)}"
