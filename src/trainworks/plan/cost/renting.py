"""Cost of renting, by kind of contract.

    on-demand   price * n / k * h
    reserved    price * (1 - discount) * n / k * max(h, term)
    spot        price / (1 - waste) * n / k * h        waste = C/T + (T/2 + R)/M        T of Daly

Symbols:
    price   of an offer and hour, USD; of spot the median zone, between the cheapest and the dearest
    n, k    accelerators needed, and those of one offer; n/k is rounded up
    h       hours of progress; a spot job runs h / (1 - waste) of them
    C, T    time to save, and the best time between saves (`plan/reliability/checkpoint_interval.py`)
    R, M    time from a preemption to the next step, and mean life of a spot job

A commitment is paid for its full term, however short the run. M is the life of the complete job: preemptions come by
zone, and the nodes of a job share one. The formula does not rely on a notice before a preemption, although a save that
fits into it would avoid the mean loss, T/2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from trainworks.catalog.catalog import assumption, find_row, has
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.reliability.checkpoint_interval import optimal_interval
from trainworks.plan.trace import Traced, ceil, fact, maximum

Contract = Literal["on-demand", "reserved", "spot"]
_WRITTEN = fact("time to write", 0.0, "s", source="a spot save is complete when training resumes")
_NO_MINIMUM = fact("shortest interval", 0.0, "s", source="a spot job may save at any time")
CONTRACTS: tuple[Contract, ...] = ("on-demand", "reserved", "spot")


def offers_for(cluster: ClusterDescription, offers: Iterable[Offer]) -> list[Offer]:
    """Offers by which such a cluster can be rented, the cheapest first.

    A cluster of an instance (`8x p5.48xlarge`) is rented as that instance, if it is offered. Any other cluster can use
    offers of its accelerator whose nodes are at least as large as its scale-up domain within a node, and offers priced
    per accelerator. A smaller instance cannot replace such a node.
    """
    same = [offer for offer in offers if offer.accelerator == cluster.accelerator.name and contracts(offer)]
    instance = cluster.node.name if cluster.node is not None and cluster.node.kind == "instance" else None
    named = [offer for offer in same if offer.node == instance]
    joined = min(cluster.scale_up_domain, cluster.accelerators_per_node)
    fitting = [
        offer
        for offer in same
        if cluster.num_accelerators % offer.accelerators == 0
        and (offer.accelerators >= joined or sold_per_accelerator(offer))
    ]
    fitting = named if instance and named else fitting
    return sorted(fitting, key=lambda offer: (_cheapest(offer), offer.name))


def sold_per_accelerator(offer: Offer) -> bool:
    """True if the offer prices one accelerator and names no instance, so that the size of its nodes is unknown."""
    return offer.node is None and offer.accelerators == 1


def _cheapest(offer: Offer) -> float:
    price = offer.usd_per_hour if offer.usd_per_hour is not None else median(offer.spot_usd_per_hour)
    return price / offer.accelerators


def contracts(offer: Offer) -> list[Contract]:
    """Kinds of contract that the offer has a price for; a commitment is a discount on its on-demand price."""
    on_demand: list[Contract] = [] if offer.usd_per_hour is None else ["on-demand", "reserved"]
    return [*on_demand, "spot"] if offer.spot_usd_per_hour else on_demand


def accelerator_price(cluster: ClusterDescription, offers: Iterable[Offer]) -> Traced | None:
    """On-demand price of an accelerator hour in such a cluster, by the cheapest offer; None where none is on demand.

    The name is that of the offer, the source of input `price` its date.
    """
    selling = [offer for offer in offers_for(cluster, offers) if offer.usd_per_hour is not None]
    offer = min(selling, key=lambda each: (_cheapest(each), each.name), default=None)
    if offer is None:
        return None
    size = fact(f"accelerators of {offer.name}", offer.accelerators, "", source=_source(offer, "accelerators"))
    price = _on_demand_price(offer)
    return (price / size).named(f"{offer.name}, on-demand", "USD/h", price=price, size=size)


def rent(
    offer: Offer,
    *,
    contract: Contract,
    num_accelerators: int,
    hours: Traced,
    given: Mapping[str, float] | None = None,
    wasted: Traced | None = None,
) -> Traced:
    """Rental cost of these hours of progress, USD.

    Args:
        offer: has that contract (`contracts`).
        contract: `on-demand`, `reserved` or `spot`.
        num_accelerators: rented in whole offers.
        hours: of progress, in h; spot runs longer.
        given: numbers that replace assumptions, by their names.
        wasted: share of a spot job's hours without progress, if known better than by `spot_waste`.

    Raises:
        UsageError: the offer has no such contract, or a spot job lives too short to make progress.
    """
    price = price_per_hour(offer, contract=contract, num_accelerators=num_accelerators, given=given, wasted=wasted)
    paid = hours
    if contract == "reserved":
        term = assumed("committed term", given)
        paid = maximum(hours, term).named("hours paid", "h", hours=hours, term=term)
    return (price * paid).named(f"{offer.name}, {contract}", "USD", price=price, hours=paid)


def price_per_hour(
    offer: Offer,
    *,
    contract: Contract,
    num_accelerators: int,
    given: Mapping[str, float] | None = None,
    wasted: Traced | None = None,
) -> Traced:
    """Cost of an hour of progress with all accelerators, USD/h; arguments and errors as for `rent`."""
    if contract not in contracts(offer):
        available = ", ".join(contracts(offer)) or "nothing"
        raise UsageError(f"{offer.name} has no {contract} price", hint=f"it has {available}")
    accelerators = fact("accelerators", num_accelerators, "", source="asked for")
    size = fact(f"accelerators of {offer.name}", offer.accelerators, "", source=_source(offer, "accelerators"))
    count, name = ceil(accelerators / size), f"{offer.name}, {contract} per hour"
    if contract == "spot":
        spot, waste = _spot(offer), wasted or spot_waste(given)
        return (spot / (1 - waste) * count).named(name, "USD/h", size=size, spot=spot, waste=waste)
    price = _on_demand_price(offer)
    if contract == "on-demand":
        return (price * count).named(name, "USD/h", size=size, price=price)
    discount = assumed("committed-use discount", given)
    return (price * (1 - discount) * count).named(name, "USD/h", size=size, price=price, discount=discount)


def _on_demand_price(offer: Offer) -> Traced:
    return fact(f"{offer.name} price", offer.usd_per_hour or 0.0, "USD/h", source=_source(offer, "on demand"))


def _spot(offer: Offer) -> Traced:
    prices = sorted(offer.spot_usd_per_hour)
    ends = (prices[0], prices[-1]) if len(prices) > 1 else (None, None)
    source = _source(offer, "spot") + (f", median of {offer.zones} zones" if offer.zones else "")
    return fact(f"{offer.name} spot price", median(prices), "USD/h", source=source, low=ends[0], high=ends[1])


def _source(offer: Offer, figure: str) -> str:
    if offer.source:
        return offer.source
    row_figure = find_row(offer.name, "offers").figure(figure)
    return f"{offer.provider}: {row_figure.source}, {row_figure.date}"


def spot_waste(given: Mapping[str, float] | None = None) -> Traced:
    """Share of a spot job's hours that make no progress: saves, work done again, and waiting for new nodes.

    Raises:
        UsageError: a spot job lives so short that it makes no progress.
    """
    interval = spot_interval(given)
    save, life = (assumed(name, given) for name in ("spot save", "spot life"))
    restart = assumed("spot restart", given)
    waste = (save / interval + (interval / 2 + restart) / life).named(
        "spot waste", "", save=save, interval=interval, restart=restart, life=life
    )
    if waste.value >= 1:
        raise UsageError(
            f"a spot job that lives {life.value:g} s, saves for {save.value:g} s and restarts in {restart.value:g} s "
            "makes no progress",
            hint="count on a longer life, a faster save or a faster restart",
        )
    return waste


def spot_interval(given: Mapping[str, float] | None = None) -> Traced:
    """The optimal interval between the saves of a spot job, whose preemptions are its failures."""
    save, life = (assumed(name, given) for name in ("spot save", "spot life"))
    return replace(optimal_interval(stall=save, mttf=life, write=_WRITTEN, shortest=_NO_MINIMUM), name="spot interval")


def effective_discount(offer: Offer, given: Mapping[str, float] | None = None) -> Traced | None:
    """Discount of spot against on-demand after its waste; None without both prices."""
    if offer.usd_per_hour is None or not offer.spot_usd_per_hour:
        return None
    spot = _spot(offer)
    waste = spot_waste(given)
    price = _on_demand_price(offer)
    return (1 - spot / (1 - waste) / price).named(
        f"{offer.name} effective discount", "", spot=spot, waste=waste, price=price
    )


def notice_s(provider: str) -> float | None:
    """Time between a provider's notice and the preemption; None if no promise is known."""
    name = f"spot notice of {provider}"
    return assumption(name).typical if has("assumptions", name) else None


def market_price(offers: Sequence[Offer]) -> Traced | None:
    """On-demand price of an accelerator hour: the median of the offers, between the cheapest and the dearest."""
    by_price = sorted((offer for offer in offers if offer.usd_per_hour is not None), key=_cheapest)
    if not by_price:
        return None
    prices = [_cheapest(offer) for offer in by_price]
    source = f"{len(prices)} on-demand offers, from {by_price[0].name} to {by_price[-1].name}"
    return fact("market price", median(prices), "USD/h", source=source, low=prices[0], high=prices[-1])
