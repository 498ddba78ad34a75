"""Request and result of a sizing: types shared by the search and its report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.exchange import DOLLAR, usd_of
from trainworks.catalog.facts import Accelerator, Offer, Processor
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import RunFile
from trainworks.plan.assumptions import assumed
from trainworks.plan.capacity.answer import CapacityAnswer
from trainworks.plan.cluster.hardware import HardwareFinding
from trainworks.plan.cluster.layout import as_fields
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.cost.owning import OwnershipCost, fits_in_year
from trainworks.plan.network.bill import NetworkPrices, bill_as_csv, compute_lines, support_lines, switch_power
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import support_networks
from trainworks.plan.reliability.scenario import SimulationOutcome
from trainworks.plan.sizing.candidates import Candidate, Skipped
from trainworks.plan.sizing.fabric_choice import PlannedFabric
from trainworks.plan.sizing.facility import Facility, nodes_per_rack, purchase_of, room_lines
from trainworks.plan.sizing.finish import PlannedFinish
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, reasons, tie
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.storage.systems import StorageVerdict
from trainworks.plan.trace import Traced
from trainworks.results import Result, ResultVerdict
from trainworks.units import HOUR_S, format_duration, format_usd

SHARED_WEEKS = 26
"""Weeks of job starts to replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """Workload, goal and offers to size for."""

    run_file: RunFile
    goal: SizingGoal
    offers: tuple[Offer, ...]
    price_notes: tuple[str, ...] = ()
    learning: bool = True
    """Whether stored measurements correct the plans."""
    only: frozenset[str] = frozenset()
    nodes: tuple[Candidate, ...] = ()
    """Described nodes, instead of those of the catalogue."""
    processor: Processor | None = None
    """Host CPU of the nodes; that of the catalogue when left out."""
    contracts: frozenset[str]
    """`on-demand`, `reserved`, `spot`, `own`."""
    hours_per_year: float
    """Hours of training in a year on an owned cluster."""
    largest: int
    """Largest number of nodes to consider."""
    given: Mapping[str, float]
    """Numbers that replace assumptions."""
    seed: int = 1

    @property
    def has_scheduler(self) -> bool:
        """Whether the run file names the scheduler that will run the job."""
        return self.run_file.cluster.engine not in ("local", "described")


@dataclass(frozen=True, slots=True)
class Reliability:
    """Failures, spares and simulated finish of one size of a cluster."""

    plan: ClusterPlan
    finish: PlannedFinish
    outcome: SimulationOutcome


@dataclass(frozen=True, slots=True)
class SizedAlternatives:
    """Alternatives that were simulated, and the kinds of node that were skipped."""

    alternatives: list[Alternative]
    skipped: list[Skipped]
    runs: dict[tuple[str, int], Reliability]
    """Reliability by name of the node and number of nodes."""


@dataclass(frozen=True, slots=True)
class SmallestCluster:
    """Fewest accelerators of one kind that hold the workload."""

    accelerator: Accelerator
    count: int
    run_time_s: float
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Owning the same cluster, spares included."""

    owning: OwnershipCost
    facility: Facility
    market: Traced | None
    """Median price of an accelerator hour on demand."""
    break_even: Traced | None
    """Hours a year at which owning costs as much as renting; None where it never does."""


@dataclass(frozen=True, slots=True)
class ProposalDetails:
    """Network, storage, hosts and power of the proposed cluster."""

    plan: ClusterPlan
    findings: list[HardwareFinding]
    needs: NodeNeeds
    demand: Demand
    storage: list[StorageVerdict]
    fabrics: list[PlannedFabric]
    enough: PlannedFabric | None
    """The leanest network that is fast enough; None for one node."""
    network: NetworkDesign | None
    ownership: Ownership | None
    energy: Traced | None
    carbon: Traced | None


@dataclass(frozen=True, slots=True)
class Proposal(Result):
    """The cluster proposed for one run, with alternatives and details."""

    request: SizingRequest
    chosen: Alternative
    sized: SizedAlternatives
    details: ProposalDetails
    minima: list[SmallestCluster]
    written: Mapping[str, Any]
    """The run file that was sized, key by key."""

    @property
    def run_file(self) -> RunFile:
        """The run on the proposed cluster, with the planned layout, the goal and the price of the proposal.

        `plan` plans it as the proposal did.
        """
        return parse_run_file(self.run_yaml, name="proposal")[0]

    @property
    def run_yaml(self) -> str:
        """The same as the text of a run file."""
        parts = {"layout": _layout(self), "goal": _goal(self), "job": _job(self), "resources": _resources(self)}
        content = dict(self.written) | {"cluster": _cluster(self)} | {key: part for key, part in parts.items() if part}
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        return f"# Proposed by `trainworks size`: {self.chosen.name}\n{text}"

    @property
    def bill_csv(self) -> str:
        """The order list: nodes and spares, racks and power, and the networks of several nodes; rented nodes alone.

        It has a head alone where the nodes exist.
        """
        network, cluster = self.details.network, self.details.plan.job.cluster
        if self.chosen.candidate.there is not None:
            return bill_as_csv([])
        ordered = cluster.with_nodes(self.chosen.held_nodes)
        power = None if network is None else switch_power(network, NetworkPrices())
        room = room_lines(ordered, given=self.request.given, network_w=0.0 if power is None else power.value)
        if self.chosen.contract != "own":  # room and switches are the provider's, and nothing is bought
            return bill_as_csv([replace(line, each=None, unpriced="rented") for line in room if line.part == "compute"])
        bought = purchase_of(ordered, self.request.given)
        if network is None:
            return bill_as_csv(room, bought)
        per_rack = nodes_per_rack(network.cluster)
        fabric = compute_lines(network, NetworkPrices(), nodes_per_rack=per_rack)
        support = support_lines(network, support_networks(network, nodes_per_rack=per_rack))
        return bill_as_csv([*room, *fabric, *support], bought)

    @property
    def verdict(self) -> ResultVerdict:
        """What to rent, buy or use, at which price, and what would decide otherwise."""
        chosen, candidate, goal = self.chosen, self.chosen.candidate, self.request.goal
        accelerators = f"({chosen.accelerators:,} {candidate.base.accelerator})"
        money = goal.exchange
        figure = f"{money.format(chosen.cost.value)} for the run"
        if goal.deadline_s is not None:
            figure += f", {chosen.chance(goal):.0%} to be done in {format_duration(goal.deadline_s)}"
        else:
            figure += f", nine of ten done in {format_duration(chosen.p90_s)}"
        if candidate.there is not None:
            action = f"Use {chosen.num_nodes:,} of your {candidate.there:,} {candidate.node} {accelerators}"
        elif chosen.contract == "own" and chosen.purchase is not None:
            spares = f" and {chosen.spares:,} spare" if chosen.spares else ""
            network = _network_text(self.details) if chosen.num_nodes > 1 else ""
            node = self.details.plan.job.cluster.node_name
            action = f"Buy {chosen.num_nodes:,} x {node} {accelerators}{spares}{network}"
            figure = f"{money.format(chosen.purchase.value)} by an estimate, {figure}"
        else:
            action = f"Rent {chosen.num_nodes:,} x {chosen.offer} {accelerators}, {chosen.contract}"
        best = self.details.plan.best[0]
        tied = tie(chosen, self.sized.alternatives, goal, spread=best.high_s / best.step_time_s)
        return ResultVerdict(action, figure, tied or _otherwise(self), "check" if tied else "go")

    @property
    def run(self) -> Reliability:
        """Reliability of the chosen cluster."""
        return self.sized.runs[self.chosen.candidate.node, self.chosen.num_nodes]

    @property
    def reasons(self) -> list[str]:
        """Reasons for this alternative and against the others."""
        return reasons(self.chosen, self.sized.alternatives, self.request.goal)

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        details, mean = self.details, self.run.finish.mean
        figures = [
            replace(self.chosen.cost, name="cost"),
            mean.run_time,
            mean.ettr,
            mean.failures,
            self.run.finish.spares,
            *details.demand.figures(),
        ]
        figures += [*details.needs.figures(), *filter(None, [details.energy, details.carbon])]
        if details.ownership is not None:
            owned = details.ownership
            figures += [owned.owning.per_accelerator_hour, owned.facility.power, owned.facility.racks]
            figures += [item for item in (owned.break_even, owned.market) if item is not None]
        return figures


def _network_text(details: ProposalDetails) -> str:
    """The adapters of a node, and the topology."""
    cluster, design = details.plan.job.cluster, details.network
    each = f"{cluster.node_bytes_per_s / max(1, cluster.nics) * 8e-9:g} Gb/s"
    text = f" over {cluster.fabric or f'{cluster.nics}x {each} {cluster.network}'} a node"
    if design is not None and design.num_switches:
        text += f" in a {design.topology}"
    return f"{text} at {cluster.oversubscription:g}:1" if cluster.oversubscription > 1 else text


def _otherwise(proposal: Proposal) -> str:
    """What would change a clear choice: the life of spot capacity, hours of training a year, or another goal."""
    chosen, goal, owned = proposal.chosen, proposal.request.goal, proposal.details.ownership
    meeting = [each for each in proposal.sized.alternatives if each.meets(goal) and each is not chosen]
    spot = min(
        (each for each in meeting if each.life_s is not None and each.cost.value < chosen.cost.value),
        key=lambda each: each.cost.value,
        default=None,
    )
    if spot is not None and chosen.life_s is None:
        saved = f"{1 - spot.cost.value / chosen.cost.value:.0%}"
        return f"`--contract spot` costs {saved} less if a job lives {format_duration(spot.life_s or 0.0)} there"
    if chosen.life_s is not None:
        return f"assumed is a preemption every {format_duration(chosen.life_s)}"
    if chosen.contract == "own" and owned is not None and owned.market is not None:
        beside = f"beside a rent of {goal.exchange.price(owned.market.value)} per accelerator hour"
        if owned.break_even is None or not fits_in_year(owned.break_even):
            return f"owning never pays {beside}"
        return f"owning pays from {owned.break_even.value:,.0f} hours of training a year on, {beside}"
    if not meeting:
        tried = len(proposal.sized.alternatives)
        return (
            "it is the only one that was tried" if tried == 1 else f"it is the only one of {tried} that meets the goal"
        )
    return ""


def _cluster(proposal: Proposal) -> Mapping[str, object]:
    """`cluster` of the proposal; the scheduler, if one is named, and its options stay.

    `of` describes all nodes that are there or bought, and `nodes` those that train.
    """
    chosen, described = proposal.chosen, proposal.details.plan.job.cluster
    hours = chosen.accelerators * chosen.p50_s / HOUR_S
    proposed: dict[str, object] = {"of": described.name}
    each, money = chosen.cost.value / hours, proposal.request.goal.exchange
    if money is DOLLAR:
        proposed["usd_per_accelerator_hour"] = round(each, 4)
    else:
        proposed["price"] = f"{each * money.per_usd:.4f} {money.currency}"
    is_yours = chosen.contract == "own" or (chosen.contract == "existing" and not chosen.candidate.offers)
    proposed |= {"contract": "own"} if is_yours else {}
    if not proposal.request.has_scheduler:
        return proposed
    if chosen.candidate.there is not None:
        proposed["of"] = proposal.request.run_file.cluster.of or described.name
    else:
        proposed["of"] = described.with_nodes(chosen.held_nodes).name
    written, engine = proposal.written.get("cluster"), proposal.request.run_file.cluster.engine
    options: dict[str, object] = {"engine": engine}
    if isinstance(written, dict):
        options |= {key: value for key, value in written.items() if key not in ("price", "usd_per_accelerator_hour")}
    elif isinstance(written, str) and written.startswith("slurm:"):  # a partition
        options["slurm"] = {"partition": written.removeprefix("slurm:").strip()}
    nodes = {"nodes": chosen.num_nodes, "processes_per_node": described.accelerators_per_node}
    return options | {"engine": engine} | proposed | nodes


def _layout(proposal: Proposal) -> Mapping[str, object]:
    """`layout` as planned, with what the search that chose it adds to the step time."""
    chosen = proposal.details.plan.best[0].chosen_layout
    share = round(chosen.selection, 4)
    return as_fields(chosen) | ({"selection": share} if share else {})


def _job(proposal: Proposal) -> Mapping[str, object]:
    """`job` with the deadline as the time limit, where a scheduler runs it and the run file has no limit."""
    written, deadline_s = dict(proposal.written.get("job") or {}), proposal.request.goal.deadline_s
    if deadline_s is None or not proposal.request.has_scheduler or "time_limit" in written:
        return written
    return written | {"time_limit": f"{deadline_s / HOUR_S:.10g}h"}


def _resources(proposal: Proposal) -> Mapping[str, object]:
    """`resources` of the run file with the proposed accelerators; without any, `cluster.of` says what is requested."""
    written = dict(proposal.written.get("resources") or {})
    cluster = proposal.details.plan.job.cluster
    kind = f"{cluster.accelerator.name}:{cluster.accelerators_per_node}"
    return written | ({"accelerators": kind} if "accelerators" in written else {})


def _goal(proposal: Proposal) -> Mapping[str, object]:
    goal, written = proposal.request.goal, proposal.request.run_file.goal
    content = dict(proposal.written.get("goal") or {})
    if goal.deadline_s is not None and goal.deadline_s != written.deadline:
        content["deadline"] = f"{goal.deadline_s / HOUR_S:.10g}h"
    if goal.budget_usd is not None and goal.budget_usd != usd_of(written.budget, proposal.request.given):
        content["budget"] = f"{goal.budget_usd * goal.exchange.per_usd:.10g} {goal.exchange.currency}"
    return content


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """One kind of node, and how many of them all teams together need."""

    candidate: Candidate
    jobs: dict[str, tuple[int, float]]
    """Nodes and duration of one job, by run."""
    answer: CapacityAnswer
    usd_per_week: float | None
    """On-demand price of a week; None without an offer of these nodes."""


@dataclass(frozen=True, slots=True)
class SharedCapacity(Result):
    """Kinds of node that serve all teams, the cheapest first."""

    clusters: list[SharedCluster]
    promise: str
    skipped: dict[str, str]

    @property
    def verdict(self) -> ResultVerdict:
        """The cheapest kind of node, how many serve every team, and the next one."""
        first, *others = self.clusters
        answer = first.answer
        wait = f"90 % of the jobs wait at most {format_duration(answer.wait.value)}"
        price = "" if first.usd_per_week is None else f"{format_usd(first.usd_per_week)} a week, "
        following = next((each for each in others if each.usd_per_week is not None), None)
        unless = (
            ""
            if following is None
            else (
                f"the next kind, {following.answer.nodes.value:,.0f} x {following.candidate.node}, costs "
                f"{format_usd(following.usd_per_week or 0.0)} a week"
            )
        )
        return ResultVerdict(
            f"Share {answer.nodes.value:,.0f} x {first.candidate.node} among all {len(first.jobs)} runs",
            f"{price}{wait}",
            unless,
        )


def least_usd(candidate: Candidate, request: SizingRequest, flops: float) -> float:
    """A lower bound of the cost of a run, USD: every accelerator at its peak, at the lowest price.

    cost >= F / P * min(price / k) with the FLOPs F of the run, the peak P of one accelerator in its precision, and the
    price of an hour of an offer of k accelerators. 0 where nodes are bought, infinite where no contract is on offer.
    """
    workload = request.run_file.workload
    if candidate.there is not None or (candidate.for_sale and "own" in request.contracts):
        return 0.0
    assert workload is not None, "what is sized is a workload"
    peak = load_catalog().accelerators[candidate.base.accelerator].peak_flops_per_s[workload.precision]
    prices = [usd for offer in candidate.offers for usd in _prices(offer, request.contracts, request.given)]
    return flops / peak / HOUR_S * min(prices, default=math.inf)


def may_afford(candidate: Candidate, plan: ClusterPlan, request: SizingRequest) -> bool:
    """Whether the lowest price of a planned run, if nothing fails, is within the budget."""
    prices = [usd for offer in candidate.offers for usd in _prices(offer, request.contracts, request.given)]
    usd = min(prices, default=math.inf) * plan.job.cluster.num_accelerators * plan.run_time_s / HOUR_S
    return request.goal.budget_usd is None or usd <= request.goal.budget_usd


def _prices(offer: Offer, contracts: frozenset[str], given: Mapping[str, float]) -> list[float]:
    """USD per accelerator hour under each of the contracts, as low as it can be."""
    prices: list[float] = []
    if offer.usd_per_hour is not None and "on-demand" in contracts:
        prices.append(offer.usd_per_hour)
    if offer.usd_per_hour is not None and "reserved" in contracts:
        discount = assumed("committed-use discount", given)
        prices.append(offer.usd_per_hour * (1 - (discount.value if discount.high is None else discount.high)))
    if "spot" in contracts:
        prices += offer.spot_usd_per_hour
    return [usd / offer.accelerators for usd in prices]
