"""Details of a proposed cluster: network, storage, hosts, power, ownership and the smallest clusters."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.api.sizing.plans import PlanCache, powers, workload_of
from trainworks.catalog.catalog import load_catalog, processor
from trainworks.catalog.cluster import ClusterDescription, cluster_of_accelerators
from trainworks.catalog.facts import PYTORCH_VENDORS, Accelerator, Offer, Processor
from trainworks.errors import UsageError
from trainworks.plan.cluster.hardware import HardwareFinding, check_hardware
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.cost.break_even import break_even_hours
from trainworks.plan.cost.energy import carbon, energy
from trainworks.plan.cost.owning import own
from trainworks.plan.cost.renting import market_price, offers_for
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.sizing.fabric_choice import FABRIC_TOLERANCE, choose_fabric
from trainworks.plan.sizing.facility import facility_of
from trainworks.plan.sizing.proposal import Alternative
from trainworks.plan.sizing.result import Ownership, ProposalDetails, Reliability, SizingRequest, SmallestCluster
from trainworks.plan.storage.run import StoredRun, storage_of
from trainworks.plan.storage.systems import judge
from trainworks.plan.trace import Traced, fact
from trainworks.units import HOUR_S

_LARGEST_MINIMUM = 256
"""Accelerators of the largest cluster to consider as the smallest that holds a workload."""


def details_of(
    chosen: Alternative, run: Reliability, plan: ClusterPlan, request: SizingRequest, plans: PlanCache
) -> ProposalDetails:
    """Network, storage, hosts and power of the chosen cluster; an owned one includes its spares."""
    cluster, several = plan.job.cluster, chosen.num_nodes > 1
    fabrics = plans.fabrics(cluster) if several else []
    demand, needs = storage_of(_stored(plan, run, request))
    electricity = _energy(cluster, chosen, request)
    return ProposalDetails(
        plan=plan,
        findings=_findings(cluster, request.processor),
        needs=needs,
        demand=demand,
        storage=judge(demand, needs),
        fabrics=fabrics,
        enough=choose_fabric(fabrics, tolerance=FABRIC_TOLERANCE) if fabrics else None,
        network=_network(cluster) if several else None,
        ownership=_ownership(cluster, round(run.spares.value), request),
        energy=electricity,
        carbon=None if electricity is None else carbon(electricity),
    )


def _findings(cluster: ClusterDescription, replacement: Processor | None) -> list[HardwareFinding]:
    named = cluster.node.processor if cluster.node else None
    return check_hardware(cluster, processor=replacement or (processor(named) if named else None))


def _stored(plan: ClusterPlan, run: Reliability, request: SizingRequest) -> StoredRun:
    """The run as storage sees it, with the checkpoint interval of the simulation."""
    run_file, data = request.run_file, workload_of(request.run_file).data
    return StoredRun(
        job=plan.job,
        best=plan.best[0],
        global_batch=plan.global_batch,
        steps=plan.steps,
        image_size=data.image_size,
        sample_bytes=data.sample_size,
        keep=run_file.checkpoint.keep,
        interval=run.mean.interval,
        node_mttf=usual_node_mttf(plan.job.cluster.accelerator, run_file.recover.node_mttf),
    )


def _network(cluster: ClusterDescription) -> NetworkDesign | None:
    try:
        return design_network(cluster)
    except UsageError:  # no switch of the catalogue for such NICs: a cloud's own network
        return None


def _energy(cluster: ClusterDescription, chosen: Alternative, request: SizingRequest) -> Traced | None:
    hours = fact("hours held", float(chosen.outcome.held_s.mean()) / HOUR_S, "h", source="simulation, mean")
    try:
        return energy(cluster, hours, request.given)
    except UsageError:  # its power is not published
        return None


def _ownership(cluster: ClusterDescription, spares: int, request: SizingRequest) -> Ownership | None:
    yearly = fact("hours per year", request.hours_per_year, "h/year", source="of training")
    bought = cluster.model_copy(update={"num_nodes": cluster.num_nodes + spares})
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
