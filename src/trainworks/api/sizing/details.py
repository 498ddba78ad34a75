"""Details of a proposed cluster: network, storage, hosts, power, ownership, alternatives, and one cluster for teams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from trainworks.api.inputs import Progress
from trainworks.api.planning.described import workload_of
from trainworks.api.sizing.plans import PlanCache, powers, smallest
from trainworks.api.sizing.reliability import may_meet, mean_run_time_s, simulate_reliability
from trainworks.catalog.catalog import load_catalog, processor
from trainworks.catalog.cluster import ClusterDescription, cluster_of_accelerators
from trainworks.catalog.facts import PYTORCH_VENDORS, Accelerator, Offer
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.capacity.answer import CapacityAnswer, capacity_for
from trainworks.plan.capacity.jobs import trace_of
from trainworks.plan.capacity.teams import Duration, Team, Teams, sampled_jobs
from trainworks.plan.cluster.hardware import check_hardware
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.cost.energy import carbon, energy
from trainworks.plan.cost.owning import break_even_hours, own
from trainworks.plan.cost.renting import CONTRACTS as RENTAL_CONTRACTS
from trainworks.plan.cost.renting import Contract, contracts, market_price, offers_for, price_per_hour, rent
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.plan.sizing.candidates import Candidate, Skipped, candidates
from trainworks.plan.sizing.fabric_choice import FABRIC_TOLERANCE, choose_fabric
from trainworks.plan.sizing.facility import facility_of, in_whole_racks
from trainworks.plan.sizing.finish import TRIALS
from trainworks.plan.sizing.proposal import Alternative
from trainworks.plan.sizing.result import (
    SHARED_WEEKS,
    Ownership,
    ProposalDetails,
    Reliability,
    SharedCapacity,
    SharedCluster,
    SizedAlternatives,
    SizingRequest,
    SmallestCluster,
)
from trainworks.plan.storage.run import StoredRun, storage_of
from trainworks.plan.storage.systems import judge
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import HOUR_S, WEEK_S, format_duration

_LARGEST_MINIMUM = 256
"""Accelerators of the largest cluster to consider as the smallest that holds a workload."""


def details_of(
    chosen: Alternative, run: Reliability, plan: ClusterPlan, request: SizingRequest, plans: PlanCache
) -> ProposalDetails:
    """Network, storage, hosts and power of the chosen cluster; an owned one includes its spares."""
    cluster, several = plan.job.cluster, chosen.num_nodes > 1
    fabrics = plans.fabrics(cluster) if several else []
    demand, needs = storage_of(StoredRun.of(plan, request.run_file, run.finish.mean.interval))
    electricity = _energy(cluster, chosen, request)
    named = cluster.node.processor if cluster.node else None
    return ProposalDetails(
        plan=plan,
        findings=check_hardware(cluster, processor=request.processor or (processor(named) if named else None)),
        needs=needs,
        demand=demand,
        storage=judge(demand, needs),
        fabrics=fabrics,
        enough=choose_fabric(fabrics, tolerance=FABRIC_TOLERANCE) if fabrics else None,
        network=_network(cluster.with_nodes(chosen.held_nodes)),
        ownership=_ownership(cluster, _bought(cluster, run), request),
        energy=electricity,
        carbon=None if electricity is None else carbon(electricity),
    )


def _network(cluster: ClusterDescription) -> NetworkDesign | None:
    try:
        return design_network(cluster) if cluster.num_nodes > 1 else None
    except UsageError:  # no switch of the catalogue for such NICs: a cloud's own network
        return None


def _energy(cluster: ClusterDescription, chosen: Alternative, request: SizingRequest) -> Traced | None:
    hours = fact("hours held", _occupied_s(chosen.outcome) / HOUR_S, "h", source="simulation, median")
    try:
        return energy(cluster, hours, request.given)
    except UsageError:  # its power is not published
        return None


def _bought(cluster: ClusterDescription, run: Reliability) -> ClusterDescription:
    """The cluster with its spares, in whole racks."""
    return cluster.with_nodes(in_whole_racks(cluster, cluster.num_nodes + round(run.finish.spares.value)))


def _ownership(cluster: ClusterDescription, bought: ClusterDescription, request: SizingRequest) -> Ownership | None:
    yearly = fact("hours per year", request.hours_per_year, "h/year", source="of training")
    anywhere = cluster.model_copy(update={"node": None})  # offers of any instance
    market = market_price(offers_for(anywhere, request.offers))
    try:
        owning, facility = own(bought, hours_per_year=yearly, given=request.given), facility_of(bought, request.given)
    except UsageError:
        return None
    if market is None:
        return Ownership(owning, facility, None, None)
    count = fact("accelerators", cluster.num_accelerators, "", source=f"`{cluster.name}`")
    rent = (market * count).named("rent of the cluster", "USD/h", count=count)
    return Ownership(owning, facility, market, break_even_hours(owning, rent))


def smallest_clusters(request: SizingRequest, plans: PlanCache) -> list[SmallestCluster]:
    """The fewest accelerators of each kind that hold the workload; the cheapest hour first, unpriced last."""
    precision = workload_of(request.run_file).precision
    parts = [
        part
        for part in load_catalog().accelerators.values()
        if part.reference_node and part.vendor in PYTORCH_VENDORS and precision in part.peak_flops_per_s
    ]
    clusters = [each for part in parts if (each := _smallest(part, request.offers, plans))]
    return sorted(clusters, key=lambda item: (item.usd_per_hour is None, item.usd_per_hour or item.count))


def _smallest(part: Accelerator, offers: Sequence[Offer], plans: PlanCache) -> SmallestCluster | None:
    counts = powers(_LARGEST_MINIMUM)  # in their order: a small model does not divide among many accelerators
    count = next((count for count in counts if plans.holds(cluster_of_accelerators(part, count))), None)
    plan = None if count is None else plans.on(cluster_of_accelerators(part, count))
    if count is None or plan is None:
        return None
    prices = [
        offer.usd_per_hour / offer.accelerators
        for offer in offers
        if offer.accelerator == part.name and offer.usd_per_hour
    ]
    return SmallestCluster(part, count, plan.run_time_s, count * min(prices) if prices else None)


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
    on_spot = _spot_runs(running, request)
    for each, run in running:
        for contract, build in _priced_contracts(each, run, on_spot, request).items():
            try:
                sized.alternatives.append(build())
            except UsageError as error:
                sized.skipped.append(Skipped(f"{each.name}, {contract}", error.message))


_Runs = dict[tuple[str, int], Reliability | UsageError]
"""Simulated runs, or why they never end, by name of the node and number of nodes."""


def _spot_runs(running: Sequence[tuple[Planned, Reliability]], request: SizingRequest) -> _Runs:
    """The same runs on spot capacity, where it is asked for and on offer; a failed node is replaced as on demand.

    The time from a preemption to the next step is a wait for capacity and the restart that every failure needs.
    """
    life_s, restart_s = (assumed(name, request.given.get(name)).value for name in ("spot life", "spot restart"))
    wanted = [(each, run) for each, run in running if _selling(each, "spot", request)]
    given = [
        {"capacity_life_s": life_s, "capacity_wait_s": max(0.0, restart_s - run.finish.failures.restart.value)}
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
    if candidate.there is not None:
        return {"existing": partial(_used, candidate, count, run, request)}
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
    interval_s = paid.finish.mean.interval.value
    return Alternative(candidate, count, 0, contract, offer.name, cost, paid.outcome, interval_s, life_s)


def _occupied_s(outcome: SimulationOutcome) -> float:
    """Time for which the median run occupies its nodes."""
    return float(np.median(outcome.held_s))


def _hours(outcome: SimulationOutcome) -> Traced:
    low, mid, high = (outcome.quantile_s(share) / HOUR_S for share in (0.1, 0.5, 0.9))
    return computed("hours", mid, "h", by=f"simulation of {TRIALS} runs with their failures", low=low, high=high)


def _owned(candidate: Candidate, count: int, run: Reliability, request: SizingRequest) -> Alternative:
    """An owned cluster, spares included, for the hours of the run."""
    bought = _bought(run.plan.job.cluster, run)
    yearly = fact("hours per year", request.hours_per_year, "h/year", source=GIVEN)
    owning = own(bought, hours_per_year=yearly, given=request.given)
    accelerators = fact("accelerators bought", bought.num_accelerators, "", source="with spares")
    cost = (owning.per_accelerator_hour * accelerators * _hours(run.outcome)).named(
        f"{candidate.node}, own", "USD", per_accelerator_hour=owning.per_accelerator_hour, accelerators=accelerators
    )
    interval_s = run.finish.mean.interval.value
    spares = bought.num_nodes - count
    return Alternative(candidate, count, spares, "own", "bought", cost, run.outcome, interval_s, purchase=owning.capex)


def _used(candidate: Candidate, count: int, run: Reliability, request: SizingRequest) -> Alternative:
    """Nodes of a cluster that exists, at your price, else at what owning all of it costs."""
    cluster, hours = run.plan.job.cluster, _hours(run.outcome)
    accelerators = fact("accelerators", cluster.num_accelerators, "", source=f"`{cluster.name}`")
    if candidate.offers:
        each = price_per_hour(candidate.offers[0], contract="on-demand", num_accelerators=1, given=request.given)
    else:
        yearly = fact("hours per year", request.hours_per_year, "h/year", source=GIVEN)
        whole = cluster.with_nodes(candidate.there or count)
        each = own(whole, hours_per_year=yearly, given=request.given).per_accelerator_hour
    cost = (each * accelerators * hours).named(
        f"{candidate.node}, existing", "USD", per_accelerator_hour=each, accelerators=accelerators
    )
    return Alternative(candidate, count, 0, "existing", "yours", cost, run.outcome, run.finish.mean.interval.value)


LoadedRequests = Sequence[tuple[SizingRequest, Source | None]]

_WORK_SHARE = 0.7
"""Share of a deadline that the run itself may take, so that there is time to wait."""
_SPREAD = 1.1
"""Spread of the duration of a run, from one start to the next: about the 80 % interval of a planned step."""


def share_capacity(requests: LoadedRequests, progress: Progress) -> SharedCapacity:
    """Size every run by itself, then replay all of them on one cluster of each kind of node.

    Raises:
        UsageError: a run file has no deadline or no time between its starts, or only some have a wait.
        EnvironmentProblem: no kind of node serves all of them.
    """
    wait_s, deadlines = _promise(requests)
    first = requests[0][0]
    precisions = {workload_of(one.run_file).precision for one, _ in requests}
    able = [candidates(load_catalog(), first.offers, precision=name, only=first.only)[0] for name in precisions]
    usable = [
        candidate
        for candidate in able[0]
        if candidate.largest is None and candidate.offers_of(2) and all(candidate in others for others in able)
    ]
    plans = [PlanCache(one.run_file, source, learning=one.learning) for one, source in requests]
    promise = f"{deadlines:.0%} of the jobs of every team meet their deadline, the wait included"
    if wait_s is not None:
        promise = f"nine of ten jobs of every team start within {format_duration(wait_s)}"
    shared = SharedCapacity([], promise, {})
    for index, candidate in enumerate(usable):
        progress(index / len(usable), f"planning {candidate.node}")
        jobs = _jobs(candidate, requests, plans)
        if isinstance(jobs, str):
            shared.skipped[candidate.node] = jobs
        else:
            shared.clusters.append(_cluster(candidate, jobs, requests, wait_s=wait_s, deadlines=deadlines))
    if not usable:
        raise EnvironmentProblem(f"no kind of node on offer computes in {' and '.join(sorted(precisions))}")
    if not shared.clusters:
        reasons = "; ".join(f"{node}: {why}" for node, why in [*shared.skipped.items()][:3])
        raise EnvironmentProblem(f"no kind of node serves all {len(requests)} runs ({reasons})")
    shared.clusters.sort(key=lambda item: (item.usd_per_week is None, item.usd_per_week or item.answer.capacity.value))
    return shared


def _promise(requests: LoadedRequests) -> tuple[float | None, float | None]:
    """The wait that all accept, or the share of deadlines to meet."""
    for one, source in requests:
        if one.run_file.goal.every is None:
            raise UsageError(
                f"`{one.run_file.name}` has no `goal.every`, the time between its starts",
                place=source.place(("goal",)) if source else None,
                hint="add it: `goal: {every: 1w, deadline: 3d}`",
            )
        if one.goal.deadline_s is None:
            raise UsageError(
                f"`{one.run_file.name}` has no deadline, so any number of nodes is enough",
                place=source.place(("goal",)) if source else None,
                hint="add it: `goal: {deadline: 3d}`",
            )
    waits = [one.run_file.goal.wait for one, _ in requests]
    known = [wait for wait in waits if wait is not None]
    if not known:
        return None, requests[0][0].goal.confidence
    if len(known) < len(waits):
        one, source = requests[waits.index(None)]
        raise UsageError(
            f"`{one.run_file.name}` has no `goal.wait`, and other run files have one",
            place=source.place(("goal",)) if source else None,
            hint="set it in every run file, or in none to meet deadlines instead",
        )
    return min(known), None


def _jobs(
    candidate: Candidate, requests: LoadedRequests, plans: Sequence[PlanCache]
) -> dict[str, tuple[int, float]] | str:
    """Nodes and duration of one job of every run, or the reason why a run has none."""
    jobs = {}
    for (one, _), planned in zip(requests, plans, strict=True):

        def meets(count: int, one: SizingRequest = one, planned: PlanCache = planned) -> bool:
            plan = planned.on(candidate.cluster(count))
            return plan is not None and may_meet(plan, one, share=_WORK_SHARE)

        def too_many(count: int, planned: PlanCache = planned) -> bool:
            return planned.is_too_large(candidate.cluster(count))

        least = smallest(one.largest, meets, too_many=too_many)
        plan = None if least is None else planned.on(candidate.cluster(least))
        if least is None or plan is None:
            return f"{one.largest:,} nodes of it do not finish `{one.run_file.name}` in time"
        jobs[one.run_file.name] = (least, mean_run_time_s(plan, one))
    return jobs


def _cluster(
    candidate: Candidate,
    jobs: dict[str, tuple[int, float]],
    requests: LoadedRequests,
    *,
    wait_s: float | None,
    deadlines: float | None,
) -> SharedCluster:
    each = candidate.base.accelerators
    teams = {
        one.run_file.name: Team(
            jobs_per_week=WEEK_S / (one.run_file.goal.every or WEEK_S),
            accelerators=jobs[one.run_file.name][0] * each,
            duration=Duration(median=jobs[one.run_file.name][1], spread=_SPREAD),
            deadline=one.goal.deadline_s,
        )
        for one, _ in requests
    }
    trace = trace_of(sampled_jobs(Teams(weeks=SHARED_WEEKS, teams=teams), seed=requests[0][0].seed))
    answer = capacity_for(trace, node_accelerators=each, wait_s=wait_s, deadlines=deadlines, name="the run files")
    return SharedCluster(candidate, jobs, answer, _runs_per_week(candidate, answer))


def _runs_per_week(candidate: Candidate, answer: CapacityAnswer) -> float | None:
    num = round(answer.capacity.value)
    offers = [offer for offer in candidate.offers_of(2) if offer.usd_per_hour is not None]
    prices = [price_per_hour(offer, contract="on-demand", num_accelerators=num).value for offer in offers]
    return min(prices, default=0.0) * WEEK_S / HOUR_S or None
