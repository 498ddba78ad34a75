"""Every way to pay for the same hours on the same cluster: each offer by each contract, and owning.

rented at the market price = market price * accelerators * hours
owned, of a run            = owning per accelerator hour * accelerators * hours
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError
from trainworks.plan.cost import renting
from trainworks.plan.cost.energy import carbon, energy
from trainworks.plan.cost.owning import OwnershipCost, break_even_hours, own
from trainworks.plan.trace import Swing, Traced, fact, tornado, with_changed

YOU = "you"
"""Provider of a price that the user gives for the cluster."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One offer."""

    offer: Offer
    costs: Mapping[renting.Contract, Traced]
    """USD for the hours, by contract."""
    discount: Traced | None
    """Discount of spot after its waste; None without a spot or an on-demand price."""
    break_even: Traced | None
    """Hours of training a year from which on owning is cheaper than on demand; None where it never is."""

    @property
    def first(self) -> Traced:
        """On-demand cost, or spot cost if nothing else is sold."""
        return next(iter(self.costs.values()))

    @property
    def may_not_join(self) -> bool:
        """True if the price covers one accelerator, without a promise that several share a node."""
        return renting.sold_per_accelerator(self.offer) and self.offer.provider != YOU

    @property
    def spot_range(self) -> tuple[float, float] | None:
        """USD in the cheapest and in the dearest zone; None where there is one price or none."""
        cost = self.costs.get("spot")
        price = None if cost is None else cost.inputs["price"].inputs["spot"]
        if cost is None or price is None or price.low is None or price.high is None:
            return None
        low, high = (with_changed(cost, {price.name: end}).value for end in (price.low, price.high))
        return low, high


@dataclass(frozen=True, slots=True)
class CostComparison:
    """All ways to pay."""

    cluster: ClusterDescription
    hours: Traced
    lines: tuple[CostLine, ...]
    """The cheapest accelerator hour first."""
    owning: OwnershipCost | None
    """Costs of owning; None if the power, and so neither electricity nor a price, is published."""
    owned: Traced | None
    """Owning for these hours, USD: the year, or the run's share of one."""
    energy: Traced | None
    carbon: Traced | None
    market: Traced | None
    """Cost of these hours at the market price, USD; None without an on-demand offer."""
    against: Traced | None
    """Renting at the market price minus owning, USD; None if either has no price."""

    @property
    def roots(self) -> list[Traced]:
        """Everything that can be explained."""
        ownership = [] if self.owning is None else [self.owning.per_accelerator_hour, self.owning.capex]
        firsts = [self.against, self.market, self.owned, self.energy, self.carbon, self.hours]
        lines = [
            figure for line in self.lines for figure in (*line.costs.values(), line.discount, line.break_even) if figure
        ]
        return [*(figure for figure in firsts if figure is not None), *ownership, *lines]

    @property
    def swings(self) -> list[Swing]:
        """Uncertain inputs of the answer, the widest swing first."""
        return [] if self.answer is None else tornado(self.answer)

    @property
    def answer(self) -> Traced | None:
        """Renting minus owning if both have a price, else the cost of the one that has."""
        return self.against or self.market or self.owned


def compare(
    cluster: ClusterDescription,
    offers: Sequence[Offer],
    *,
    hours: Traced,
    hours_per_year: Traced | None = None,
    given: Mapping[str, float] | None = None,
    colocated: bool = False,
    grid_name: str | None = None,
    held: ClusterDescription | None = None,
    own_price: Traced | None = None,
) -> CostComparison:
    """Price these hours of training in every way.

    Args:
        cluster: to rent or to own.
        offers: of the catalogue or of a price table; those that do not fit are left out.
        hours: of training: a whole year's, or a run's.
        hours_per_year: hours of training on an owned cluster, of which the run takes its share; None if `hours` is
            a year's.
        given: numbers that replace assumptions, by their names.
        colocated: an owned cluster is in a colocation data centre.
        grid_name: country or cloud region of the electricity; None is the world's average.
        held: all that is owned, of which the hours may leave nodes idle; the same cluster when None.
        own_price: an hour of an accelerator that is owned and used, USD/h; that of owning the cluster when None.

    Raises:
        UsageError: no such grid, or spot nodes live too short.
    """
    given = given or {}
    fitting = renting.offers_for(cluster, offers)
    try:
        owning = own(held or cluster, hours_per_year=hours_per_year or hours, given=given, colocated=colocated)
    except UsageError:
        owning = None
    count = fact("accelerators", cluster.num_accelerators, "", source=f"`{cluster.name}`")
    owned = None if owning is None else owning.per_year
    if owning is not None and hours_per_year is not None:
        each = own_price or owning.per_accelerator_hour
        owned = (each * count * hours).named("owning", "USD", each=each, hours=hours)
    used = None if owning is None else energy(cluster, hours, given)
    price, market, against = renting.market_price(fitting), None, None
    if price is not None:
        market = (price * count * hours).named("rent at the market price", "USD", price=price, hours=hours)
    if market is not None and owned is not None:
        against = (market - owned).named("renting above owning", "USD", market=market, owned=owned)
    return CostComparison(
        cluster=cluster,
        hours=hours,
        lines=tuple(_line(offer, cluster, hours, owning, given) for offer in fitting),
        owning=owning,
        owned=owned,
        energy=used,
        carbon=None if used is None else carbon(used, grid_name),
        market=market,
        against=against,
    )


def usd_per_million(cost: Traced, count: Traced, noun: str) -> Traced:
    """USD per million of what a run works off: `tokens`, `images`."""
    return (cost / count * 1000000).named(f"{cost.name} per million {noun}", "USD", cost=cost, count=count)


def _line(
    offer: Offer, cluster: ClusterDescription, hours: Traced, owning: OwnershipCost | None, given: Mapping[str, float]
) -> CostLine:
    count = cluster.num_accelerators
    costs = {
        contract: renting.rent(offer, contract=contract, num_accelerators=count, hours=hours, given=given)
        for contract in renting.contracts(offer)
    }
    even = None
    if owning is not None and "on-demand" in costs:
        hourly = renting.price_per_hour(offer, contract="on-demand", num_accelerators=count, given=given)
        even = break_even_hours(owning, hourly)
    return CostLine(offer=offer, costs=costs, discount=renting.effective_discount(offer, given), break_even=even)
