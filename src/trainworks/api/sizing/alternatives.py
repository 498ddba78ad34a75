"""Alternatives of a sizing: planned numbers of nodes, simulated with their failures and priced by contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from trainworks.api.sizing.reliability import TRIALS, simulate_reliability
from trainworks.catalog.facts import Offer
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.cost.owning import own
from trainworks.plan.cost.renting import CONTRACTS as RENTAL_CONTRACTS
from trainworks.plan.cost.renting import Contract, contracts, rent
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.plan.sizing.candidates import Candidate, Skipped
from trainworks.plan.sizing.proposal import Alternative
from trainworks.plan.sizing.result import Reliability, SizedAlternatives, SizingRequest
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import HOUR_S


class Planned(NamedTuple):
    """A number of nodes of one kind, and the plan on them."""

    candidate: Candidate
    num_nodes: int
    plan: ClusterPlan

    @property
    def key(self) -> tuple[str, int]:
        """Name of the node, and the number of nodes."""
        return self.candidate.node, self.num_nodes

    @property
    def name(self) -> str:
        """Description in one line."""
        return f"{self.num_nodes:,} x {self.candidate.node}"


def add_alternatives(planned: Sequence[Planned], request: SizingRequest, sized: SizedAlternatives) -> None:
    """Simulate every plan and price each kind of contract on offer; what fails is skipped with its reason."""
    for each, run in zip(planned, simulate_reliability([(p.plan, {}) for p in planned], request), strict=True):
        if isinstance(run, UsageError):
            sized.skipped.append(Skipped(each.name, run.message))
        else:
            sized.runs[each.key] = run
    running = [(each, sized.runs[each.key]) for each in planned if each.key in sized.runs]
    on_spot = _on_spot(running, request)
    for each, run in running:
        for contract, build in _priced_contracts(each, run, on_spot, request).items():
            try:
                sized.alternatives.append(build())
            except UsageError as error:
                sized.skipped.append(Skipped(f"{each.name}, {contract}", error.message))


_Runs = dict[tuple[str, int], Reliability | UsageError]
"""Simulated runs, or why they never end, by name of the node and number of nodes."""


def _on_spot(running: Sequence[tuple[Planned, Reliability]], request: SizingRequest) -> _Runs:
    """The same runs on spot capacity, where it is asked for and on offer; a failed node is replaced as on demand.

    The time from a preemption to the next step is a wait for capacity and the restart that every failure needs.
    """
    life_s, restart_s = (assumed(name, request.given.get(name)).value for name in ("spot life", "spot restart"))
    wanted = [(each, run) for each, run in running if _selling(each, "spot", request)]
    given = [
        {"capacity_life_s": life_s, "capacity_wait_s": max(0.0, restart_s - run.failures.restart.value)}
        for _, run in wanted
    ]
    plans = [each.plan for each, _ in wanted]
    runs = simulate_reliability(zip(plans, given, strict=True), request)
    return {each.key: run for (each, _), run in zip(wanted, runs, strict=True)}


def _selling(planned: Planned, contract: Contract, request: SizingRequest) -> list[Offer]:
    """Offers of this many nodes under a contract; none if it is not requested."""
    offers = planned.candidate.offers_of(planned.num_nodes) if contract in request.contracts else []
    return [offer for offer in offers if contract in contracts(offer)]


def _priced_contracts(
    planned: Planned, run: Reliability, on_spot: _Runs, request: SizingRequest
) -> dict[str, Callable[[], Alternative]]:
    """Functions that price each requested contract on offer, by its name."""
    candidate, count, _ = planned
    builders: dict[str, Callable[[], Alternative]] = {}
    for contract in RENTAL_CONTRACTS:
        if selling := _selling(planned, contract, request):
            paid = on_spot[planned.key] if contract == "spot" else run
            builders[contract] = partial(_rented, candidate, count, contract, selling, run, paid, request)
    if candidate.for_sale and "own" in request.contracts:
        builders["own"] = partial(_owned, candidate, count, run, request)
    return builders


def _rented(
    candidate: Candidate,
    count: int,
    contract: Contract,
    selling: Sequence[Offer],
    run: Reliability,
    paid: Reliability | UsageError,
    request: SizingRequest,
) -> Alternative:
    if isinstance(paid, UsageError):
        raise paid
    life_s, wasted = None, None
    if contract == "spot":
        life_s = assumed("spot life", request.given.get("spot life")).value
        share = 1 - _occupied_s(run.outcome) / _occupied_s(paid.outcome)
        wasted = computed("spot waste", max(0.0, share), "", by=f"simulation of {TRIALS} runs, beside those on demand")
    hours = _hours(run.outcome)  # a spot price has the waste in it
    accelerators = count * candidate.base.accelerators
    priced_as = partial(rent, contract=contract, num_accelerators=accelerators, hours=hours, given=request.given)
    priced = [(priced_as(offer, wasted=wasted), offer) for offer in selling]
    cost, offer = min(priced, key=lambda pair: pair[0].value)
    interval_s = paid.mean.interval.value
    return Alternative(candidate, count, 0, contract, offer.name, cost, paid.outcome, interval_s, life_s)


def _occupied_s(outcome: SimulationOutcome) -> float:
    """Time for which the median run occupies its nodes."""
    return float(np.median(outcome.held_s))


def _hours(outcome: SimulationOutcome) -> Traced:
    low, mid, high = (outcome.quantile_s(share) / HOUR_S for share in (0.1, 0.5, 0.9))
    return computed("hours", mid, "h", by=f"simulation of {TRIALS} runs with their failures", low=low, high=high)


def _owned(candidate: Candidate, count: int, run: Reliability, request: SizingRequest) -> Alternative:
    """An owned cluster, spares included, for the hours of the run."""
    cluster = run.plan.job.cluster
    spares = round(run.spares.value)
    bought = cluster.model_copy(update={"num_nodes": count + spares})
    yearly = fact("hours per year", request.hours_per_year, "h/year", source=GIVEN)
    owning = own(bought, hours_per_year=yearly, given=request.given)
    accelerators = fact("accelerators bought", bought.num_accelerators, "", source="with spares")
    hours = _hours(run.outcome)
    cost = (owning.per_accelerator_hour * accelerators * hours).named(
        f"{candidate.node}, own", "USD", per_accelerator_hour=owning.per_accelerator_hour, accelerators=accelerators
    )
    interval_s = run.mean.interval.value
    return Alternative(candidate, count, spares, "own", "bought", cost, run.outcome, interval_s, purchase=owning.capex)
