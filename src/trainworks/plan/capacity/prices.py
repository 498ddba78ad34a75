"""Prices of an accelerator hour: what the user gives, else the median of what the catalogue has seen."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.facts import Node, Offer
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.capacity.policy_comparison import CapacityPrices
from trainworks.plan.trace import Traced, fact

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
    price = _price("on-demand price", on_demand, {} if node is None else _on_demand(node))
    if price is None:
        known = (
            "without `--node` no price is known" if node is None else f"no on-demand price of `{node.name}` is known"
        )
        raise UsageError(known, place="--price", hint="give USD per accelerator hour: `--price 3.50`")
    interruptible = _price("spot price", spot, {} if node is None else _spot(node))
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


def _on_demand(node: Node) -> dict[str, float]:
    return {o.name: o.usd_per_hour / o.accelerators for o in _offers(node) if o.usd_per_hour is not None}


def _spot(node: Node) -> dict[str, float]:
    offers = [offer for offer in _offers(node) if offer.spot_usd_per_hour]
    return {offer.name: median(offer.spot_usd_per_hour) / offer.accelerators for offer in offers}


def _offers(node: Node) -> list[Offer]:
    offers = load_catalog().offers.values()
    exact = [offer for offer in offers if offer.node == node.name]
    return exact or [offer for offer in offers if offer.accelerator == node.accelerator]


def _source(names: list[str]) -> str:
    dates = sorted({figure.date for name in names for figure in find_row(name, "offers").figures})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    if len(names) == 1:
        return f"offer {names[0]}, {when}"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"median of {len(names)} offers, {when}: {', '.join(names[:_SHOWN])}{more}"
