"""What goes with a proposed cluster: network, storage, hosts, power, and what smaller and owned ones would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.api.arguments import node_mttf_of
from trainworks.api.cluster_plan import ClusterPlan
from trainworks.api.size import Asked, Reliability, workload_of
from trainworks.api.size_plans import Plans, smallest_power
from trainworks.catalog.catalog import load_catalog, processor
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Accelerator, Offer, Processor
from trainworks.errors import UsageError
from trainworks.plan.cost.break_even import break_even_hours
from trainworks.plan.cost.energy import carbon, energy
from trainworks.plan.cost.owning import Owning, own
from trainworks.plan.cost.renting import market_price, offers_for
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.sizing.candidates import PYTORCH_VENDORS
from trainworks.plan.sizing.fabric_choice import PlannedFabric, choose_fabric
from trainworks.plan.sizing.facility import Facility, facility_of
from trainworks.plan.sizing.hardware import Finding, check_hardware
from trainworks.plan.sizing.proposal import Alternative
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.storage.run import StoredRun, storage_of
from trainworks.plan.storage.systems import Verdict, judge
from trainworks.plan.trace import Traced, fact
from trainworks.units import HOUR_S

__all__ = ["TOLERANCE", "Buying", "Details", "Minimum", "details_of", "minimum_clusters"]

TOLERANCE = 0.05
"""Of the step time that a leaner network may cost."""
_MOST_TO_HOLD = 256
"""Accelerators, of a smallest cluster that anybody would look at."""


@dataclass(frozen=True, slots=True)
class Minimum:
    """Fewest accelerators of one kind on which the workload fits."""

    accelerator: Accelerator
    count: int
    run_time_s: float
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Buying:
    """The same cluster as one's own, spares included."""

    owning: Owning
    facility: Facility
    market: Traced | None
    """Median price of an accelerator hour on demand."""
    break_even: Traced | None
    """Hours a year at which owning costs as much as that; None where it never does."""


@dataclass(frozen=True, slots=True)
class Details:
    """Of the proposed cluster."""

    plan: ClusterPlan
    findings: list[Finding]
    needs: NodeNeeds
    demand: Demand
    storage: list[Verdict]
    fabrics: list[PlannedFabric]
    enough: PlannedFabric | None
    """The leanest network that does; None for one node."""
    network: NetworkDesign | None
    buying: Buying | None
    energy: Traced | None
    carbon: Traced | None


def details_of(chosen: Alternative, run: Reliability, plan: ClusterPlan, asked: Asked, plans: Plans) -> Details:
    """Everything beside the accelerators; a cluster of one's own has its spares."""
    cluster, several = plan.job.cluster, chosen.num_nodes > 1
    fabrics = plans.fabrics(chosen.num_nodes, chosen.candidate.node, plan) if several else []
    demand, needs = storage_of(_stored(plan, run, asked))
    electricity = _energy(cluster, chosen, asked)
    return Details(
        plan=plan,
        findings=_findings(cluster, asked.processor),
        needs=needs,
        demand=demand,
        storage=judge(demand, needs),
        fabrics=fabrics,
        enough=choose_fabric(fabrics, tolerance=TOLERANCE) if fabrics else None,
        network=_network(cluster) if several else None,
        buying=_buying(cluster, round(run.spares.value), asked),
        energy=electricity,
        carbon=None if electricity is None else carbon(electricity),
    )


def _findings(cluster: ClusterDescription, asked: Processor | None) -> list[Finding]:
    named = cluster.node.processor if cluster.node else None
    return check_hardware(cluster, processor=asked or (processor(named) if named else None))


def _stored(plan: ClusterPlan, run: Reliability, asked: Asked) -> StoredRun:
    """Storage that saves as often as the failures were simulated with."""
    run_file, data = asked.run_file, workload_of(asked.run_file).data
    return StoredRun(
        job=plan.job,
        best=plan.best[0],
        global_batch=plan.global_batch,
        steps=plan.steps,
        image_size=data.image_size,
        sample_bytes=data.sample_size,
        keep=run_file.checkpoint.keep,
        interval=run.mean.interval,
        node_mttf=usual_node_mttf(plan.job.cluster.accelerator, node_mttf_of(run_file)),
    )


def _network(cluster: ClusterDescription) -> NetworkDesign | None:
    try:
        return design_network(cluster)
    except UsageError:  # no switch of the catalogue for such NICs: a cloud's own network
        return None


def _energy(cluster: ClusterDescription, chosen: Alternative, asked: Asked) -> Traced | None:
    hours = fact("hours held", float(chosen.outcome.held_s.mean()) / HOUR_S, "h", source="simulation, mean")
    try:
        return energy(cluster, hours, asked.given)
    except UsageError:  # nobody publishes the power
        return None


def _buying(cluster: ClusterDescription, spares: int, asked: Asked) -> Buying | None:
    yearly = fact("hours per year", asked.hours_per_year, "h/year", source="of training")
    bought = cluster.model_copy(update={"num_nodes": cluster.num_nodes + spares})
    anywhere = cluster.model_copy(update={"node": None})  # not of that one instance alone
    market = market_price(offers_for(anywhere, asked.offers))
    try:
        owning, facility = own(bought, hours_per_year=yearly, given=asked.given), facility_of(bought, asked.given)
    except UsageError:
        return None
    if market is None:
        return Buying(owning, facility, None, None)
    count = fact("accelerators", cluster.num_accelerators, "", source=f"`{cluster.name}`")
    rent = (market * count).named("rent of the cluster", "USD/h", count=count)
    return Buying(owning, facility, market, break_even_hours(owning, rent))


def minimum_clusters(asked: Asked, plans: Plans) -> list[Minimum]:
    """For every kind of accelerator the fewest that hold the workload; the cheapest hour first, unpriced last."""
    precision = workload_of(asked.run_file).precision
    parts = [
        part
        for part in load_catalog().accelerators.values()
        if part.reference_node and part.vendor in PYTORCH_VENDORS and precision in part.peak_flops_per_s
    ]
    found = [minimum for part in parts if (minimum := _minimum(part, asked.offers, plans))]
    return sorted(found, key=lambda item: (item.usd_per_hour is None, item.usd_per_hour or item.count))


def _minimum(part: Accelerator, offers: Sequence[Offer], plans: Plans) -> Minimum | None:
    def text(count: int) -> str:
        return f"{count}x {part.name}"

    def fits(count: int) -> bool:
        return plans.on(text(count)) is not None

    count = smallest_power(_MOST_TO_HOLD, fits)
    plan = None if count is None else plans.on(text(count))
    if count is None or plan is None:
        return None
    prices = [
        offer.usd_per_hour / offer.accelerators
        for offer in offers
        if offer.accelerator == part.name and offer.usd_per_hour
    ]
    return Minimum(part, count, plan.run_time_s, count * min(prices) if prices else None)
