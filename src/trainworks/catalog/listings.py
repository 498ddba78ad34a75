"""Rows of a price table, and the offers made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

from trainworks.catalog.catalog import accelerator, has
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Listing:
    """Prices of one zone: a row of a price table."""

    name: str
    provider: str
    node: str | None
    accelerator: str
    """Name in the catalogue."""
    accelerators: int
    on_demand_usd_h: float | None
    spot_usd_h: float | None
    region: str
    place: str
    """File and line."""


def offers_of(listings: Iterable[Listing]) -> list[Offer]:
    """Merge the rows of one name into an offer: the cheapest on-demand price and the range of spot prices.

    There is no spot market if no spot price of a zone is below the on-demand price.
    """
    groups: dict[tuple[str, str, int], list[Listing]] = {}
    for row in listings:
        groups.setdefault((row.name, row.accelerator, row.accelerators), []).append(row)
    return [offer for rows in groups.values() if (offer := _offer(rows)) is not None]


def _offer(rows: list[Listing]) -> Offer | None:
    sold = [row for row in rows if row.on_demand_usd_h is not None]
    cheapest = min(sold, key=lambda row: row.on_demand_usd_h or 0.0, default=rows[0])
    on_demand = cheapest.on_demand_usd_h
    spot = sorted(row.spot_usd_h for row in rows if row.spot_usd_h is not None)
    if spot and on_demand is not None and spot[0] >= on_demand:
        spot = []
    if on_demand is None and not spot:
        return None
    return Offer(
        name=cheapest.name,
        provider=cheapest.provider,
        node=cheapest.node,
        accelerator=cheapest.accelerator,
        accelerators=cheapest.accelerators,
        usd_per_hour=on_demand,
        spot_usd_per_hour=(spot[0], median(spot), spot[-1]) if len(spot) > 1 else tuple(spot),
        zones=len(spot) or None,
        region=cheapest.region or "not given",
        source=cheapest.place,
    )


def price_of(text: str, place: str) -> float | None:
    """Parse a price in USD; None for an empty text.

    Raises:
        UsageError: the text is not a number above 0.
    """
    if not text.strip():
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        hint = "write dollars per hour as a plain number, `55.04`; leave it empty if not for sale"
        raise UsageError(f"`{printable_text(text)}` is not a price", place=place, hint=hint)
    return price


@cache
def known_accelerator(name: str) -> str | None:
    """Name of an accelerator in the catalogue; None for one that plans cannot use."""
    if not has("accelerators", name):
        return None
    try:
        return accelerator(name).name
    except UsageError:
        return None


def printable_text(text: str) -> str:
    """Untrusted text as one short line that is safe to print."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]
