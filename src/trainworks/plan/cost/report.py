"""Costs of a run or a year with the notes that a reader needs beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainworks.catalog.age import own_rows_note, price_note
from trainworks.catalog.exchange import DOLLAR, Exchange
from trainworks.catalog.facts import Offer
from trainworks.plan.assumptions import assumed
from trainworks.plan.cost.comparison import CostComparison, usd_per_million
from trainworks.plan.cost.renting import notice_s
from trainworks.plan.trace import Traced, walk
from trainworks.results import Result
from trainworks.units import format_duration

_MUCH_CHEAPER = 0.4


@dataclass(frozen=True, slots=True)
class CostReport(Result):
    """A cost comparison and its notes."""

    title: str
    comparison: CostComparison
    grid: str
    count: Traced | None = None
    """Tokens or images of a run; None for a year."""
    noun: str = "tokens"
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exchange: Exchange = DOLLAR
    """Currency of the budget, else that of a price which was given."""

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        count = self.count
        if count is None:
            return self.comparison.roots
        return [
            *self.comparison.roots,
            *(usd_per_million(line.first, count, self.noun) for line in self.comparison.lines),
        ]


def sentences_of(comparison: CostComparison, budget_usd: float | None, money: Exchange = DOLLAR) -> Iterator[str]:
    """Sentences on how many offers are cheaper than owning, and how many contracts a budget pays for."""
    rented = [line.costs["on-demand"].value for line in comparison.lines if "on-demand" in line.costs]
    if comparison.owned is not None and rented:
        cheaper = sum(cost < comparison.owned.value for cost in rented)
        much = sum(cost <= (1 - _MUCH_CHEAPER) * comparison.owned.value for cost in rented)
        least = f", {much} of them at least {_MUCH_CHEAPER:.0%} less" if cheaper else ""
        yield f"On demand, {cheaper} of {len(rented)} offers cost less than owning{least}."
    if budget_usd is not None and comparison.lines:
        costs = sorted((cost.value, cost.name) for line in comparison.lines for cost in line.costs.values())
        kept = sum(cost <= budget_usd for cost, _ in costs)
        yield (
            f"The budget of {money.format(budget_usd)} pays for {kept} of {len(costs)} contracts; the cheapest is "
            f"{costs[0][1]} for {money.format(costs[0][0])}."
        )


def notes_of(
    comparison: CostComparison,
    offers: Sequence[Offer],
    given: Mapping[str, float],
    *,
    is_run: bool,
    money: Exchange = DOLLAR,
) -> Iterator[str]:
    """Notes on the costs, in the order of the columns."""
    part = comparison.cluster.accelerator.name
    if comparison.owning is None:
        hint = '`--assume "node power=WATTS"` prices owning and energy'
        yield f"the power of {part} and its node is not published; {hint}"
    elif "server price" not in given:
        price = next(figure for figure in walk(comparison.owning.capex) if figure.name == "server price")
        yield f"a node's price is estimated from its power, {money.format(price.value)}; --server-price replaces it"
    if not comparison.lines:
        yield f"no offer of {part} fits; `--prices FILE` takes your own"
    yield from _node_notes(comparison, offers)
    shown = [line.offer for line in comparison.lines]
    yield from filter(None, (price_note(shown), own_rows_note(("offers", offer.name) for offer in shown)))
    if any("reserved" in line.costs for line in comparison.lines):
        yield from _reservation_notes(comparison, given)
    if any("spot" in line.costs for line in comparison.lines):
        yield from _spot_notes(comparison, given)
    if is_run:
        yield "a run's time is planned without failures, checkpoints and waiting; `trainworks goodput` adds them"
    yield "storage, traffic, tax, interest and the building are left out; carbon is that of electricity alone"


def _node_notes(comparison: CostComparison, offers: Sequence[Offer]) -> Iterator[str]:
    cluster = comparison.cluster
    joined = cluster.accelerators_per_node
    if any(line.may_not_join for line in comparison.lines) and joined > 1:
        yield f"* is priced per accelerator; offers do not state that {joined} come as one node"
    shown = {line.offer.name for line in comparison.lines}
    smaller = [
        offer.name
        for offer in offers
        if offer.accelerator == cluster.accelerator.name
        and offer.accelerators < cluster.accelerators_per_node
        and offer.name not in shown
    ]
    if smaller:
        yield f"smaller instances make no such node and are left out: {', '.join(smaller)}"
    if cluster.num_nodes > 1:
        yield "nodes of different offers have different networks; the plan counts with that of the cluster it was given"


def _reservation_notes(comparison: CostComparison, given: Mapping[str, float]) -> Iterator[str]:
    term = assumed("committed term", given).value
    discount = assumed("committed-use discount", given).value
    text = f"reserved is {discount:.0%} below on demand, an assumption, and paid for the whole term of {term:,.0f} h"
    idle = term - comparison.hours.value
    yield f"{text}; {idle:,.0f} h of it are idle here" if idle > 0 else text


def _spot_notes(comparison: CostComparison, given: Mapping[str, float]) -> Iterator[str]:
    life, save = (assumed(name, given).value for name in ("spot life", "spot save"))
    waste = next(line.costs["spot"] for line in comparison.lines if "spot" in line.costs)
    share = waste.inputs["price"].inputs["waste"].value
    yield f"spot counts {share:.0%} waste: a job lives {format_duration(life)} between preemptions (--spot-life)"
    nodes = comparison.cluster.num_nodes
    if nodes > 1:
        alone = format_duration(life / nodes)
        yield f"that is the life of a job; {nodes} nodes that are preempted one by one would live {alone}"
    short = [
        f"{provider} {format_duration(notice)}"
        for provider in dict.fromkeys(line.offer.provider for line in comparison.lines if "spot" in line.costs)
        if (notice := notice_s(provider)) is not None and notice < save
    ]
    if short:
        yield f"a save of {format_duration(save)} does not fit into the notice of {', '.join(short)}"
