"""Rows of somebody's price table, and the offers that they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

from trainworks.catalog.catalog import accelerator, has
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError

__all__ = ["Listing", "known_accelerator", "offers_of", "price_of", "printable_text"]

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Listing:
    """What one row of a price table says of one zone."""

    name: str
    provider: str
    node: str | None
    accelerator: str
    """As the catalogue calls it."""
    accelerators: int
    on_demand_usd_h: float | None
    spot_usd_h: float | None
    region: str
    place: str
    """File and line."""


def offers_of(listings: Iterable[Listing]) -> list[Offer]:
    """One offer for all rows of one name: the cheapest region's on-demand price, and spot as it differs by zone.

    Where no zone's spot price is below the on-demand price there is no spot market.
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
    """A price as it is written, in USD; None where nothing is written.

    Raises:
        UsageError: something that is no number, or not above 0.
    """
    if not text.strip():
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        hint = "write dollars per hour as a plain number, `55.04`; leave it empty where nothing is sold"
        raise UsageError(f"`{printable_text(text)}` is no price", place=place, hint=hint)
    return price


@cache
def known_accelerator(name: str) -> str | None:
    """The catalogue's name of an accelerator; None for one that it does not know or cannot plan with."""
    if not has("accelerators", name):
        return None
    try:
        return accelerator(name).name
    except UsageError:
        return None


def printable_text(text: str) -> str:
    """Text of a stranger's file as one short line that a terminal can take."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]
