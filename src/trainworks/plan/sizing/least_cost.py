"""The least that a run can cost on a kind of node: every accelerator at its peak, at the lowest price.

    cost >= F / P * min(price / k)

Symbols:
    F          FLOPs of the whole run
    P          peak rate of one accelerator in the precision of the run
    price, k   of an offer and hour, and its accelerators
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.facts import Offer
from trainworks.plan.assumptions import assumed
from trainworks.plan.sizing.candidates import Candidate
from trainworks.plan.sizing.result import SizingRequest
from trainworks.units import HOUR_S


def least_usd(candidate: Candidate, request: SizingRequest, flops: float) -> float:
    """A lower bound of the cost of a run, USD: 0 where nodes are bought, infinite where no contract is on offer."""
    workload = request.run_file.workload
    if candidate.for_sale and "own" in request.contracts:
        return 0.0
    assert workload is not None, "what is sized is a workload"
    peak = load_catalog().accelerators[candidate.base.accelerator].peak_flops_per_s[workload.precision]
    prices = [usd for offer in candidate.offers for usd in _prices(offer, request.contracts, request.given)]
    return flops / peak / HOUR_S * min(prices, default=math.inf)


def _prices(offer: Offer, contracts: frozenset[str], given: Mapping[str, float]) -> list[float]:
    """USD per accelerator hour under each of the contracts, as low as it can be."""
    prices: list[float] = []
    if offer.usd_per_hour is not None and "on-demand" in contracts:
        prices.append(offer.usd_per_hour)
    if offer.usd_per_hour is not None and "reserved" in contracts:
        discount = assumed("committed-use discount", given.get("committed-use discount"))
        prices.append(offer.usd_per_hour * (1 - (discount.value if discount.high is None else discount.high)))
    if "spot" in contracts:
        prices += offer.spot_usd_per_hour
    return [usd / offer.accelerators for usd in prices]
