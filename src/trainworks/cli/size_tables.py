"""The tables of a proposal, as text: the terminal and the page show the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from trainworks.plan.cost.break_even import within_a_year
from trainworks.plan.prediction import describe_layout
from trainworks.plan.sizing.candidates import Skipped
from trainworks.plan.sizing.fabric_choice import FABRIC_TOLERANCE, PlannedFabric
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, front
from trainworks.plan.sizing.result import Ownership, Proposal, ProposalDetails, SizingRequest, SmallestCluster
from trainworks.plan.storage.systems import StorageVerdict, recommended
from trainworks.report.proposal_page import Sheet
from trainworks.units import (
    DAY_S,
    format_bytes,
    format_count,
    format_duration,
    format_quantity,
    format_step_time,
    format_usd,
)

__all__ = ["facts", "own_or_rent", "sheets", "shown_alternatives"]

_KINDS = 12
_FRONT = 4
_MINIMA = 6
_NAMES = 4
_YEAR_S = 365 * DAY_S


def facts(proposal: Proposal) -> dict[str, str]:
    """The proposal in lines with a name each."""
    chosen, details, request, run = proposal.chosen, proposal.details, proposal.request, proposal.run
    best, mean = details.plan.best[0], run.mean
    spares = f"{chosen.spares} bought" if chosen.spares else f"{run.spares.value:.0f} if the nodes were your own"
    chance = f", {chosen.chance(request.goal):.0%} by the deadline" if request.goal.deadline_s else ""
    rows = {
        "workload": f"{format_count(details.plan.job.shape.num_parameters)} parameters, {details.plan.job.precision}, "
        f"{details.plan.steps:,} steps of {details.plan.global_batch:,}",
        "goal": _goal(request.goal),
        "proposal": f"{chosen.name}: {chosen.accelerators:,} x {chosen.candidate.base.accelerator}",
        "finish": f"half of the runs in {format_duration(chosen.p50_s)}, "
        f"nine of ten in {format_duration(chosen.p90_s)}{chance}",
        "cost": f"{format_usd(chosen.cost.value)}, {_per_million(proposal)}",
        "step time": f"{format_step_time(best.step_time_s)} with {describe_layout(best.layout)}",
        "failures": f"one in {format_duration(mean.job_mttf.value)}{_preempted(chosen)}, a checkpoint every "
        f"{format_duration(chosen.interval_s)}, goodput {chosen.outcome.runtime_goodput:.1%}; spares: {spares}",
    }
    if details.energy is not None and details.carbon is not None:
        energy = format_quantity(details.energy.value, "Wh")
        carbon = format_quantity(details.carbon.value, details.carbon.unit)
        rows["energy"] = f"{energy}, {carbon} on the world's average grid"
    return rows


def _preempted(chosen: Alternative) -> str:
    if chosen.life_s is None:
        return ""
    return f" and a preemption every {format_duration(chosen.life_s)} (assumed)"


def _goal(goal: SizingGoal) -> str:
    parts = []
    if goal.deadline_s:
        parts.append(f"done in {format_duration(goal.deadline_s)}, with a chance of {goal.confidence:.0%}")
    if goal.budget_usd:
        parts.append(f"for at most {format_usd(goal.budget_usd)}")
    return ", ".join(parts) or "none: the cheapest run, however long it takes"


def _per_million(proposal: Proposal) -> str:
    plan, images = proposal.details.plan, proposal.images
    count = plan.steps * plan.global_batch * (1 if images else plan.job.sequence_length)
    return f"{proposal.chosen.cost.value / count * 1e6:.3g} USD per million {'images' if images else 'tokens'}"


def sheets(proposal: Proposal) -> Iterator[Sheet]:
    """All tables, in the order in which they are read."""
    details = proposal.details
    yield _alternatives(proposal)
    if proposal.sized.skipped:
        yield _skipped(proposal.sized.skipped)
    yield _minima(proposal.minima)
    if details.fabrics:
        yield _fabrics(details)
    yield _hosts(details)
    yield _storage(details)


def shown_alternatives(proposal: Proposal) -> list[Alternative]:
    """The cheapest of every kind of node and contract, those that meet the goal first; and some of the front."""
    goal, first = proposal.request.goal, dict[tuple[str, str], Alternative]()
    ordered = sorted(proposal.sized.alternatives, key=lambda each: (not each.meets(goal), each.cost.value))
    if len(ordered) <= _KINDS:
        return ordered
    for item in ordered:
        first.setdefault((item.candidate.node, item.contract), item)
    shown = [*first.values()][:_KINDS]
    others = [item for item in [proposal.chosen, *front(proposal.sized.alternatives)] if item not in shown]
    return sorted([*shown, *others[:_FRONT]], key=lambda each: (not each.meets(goal), each.cost.value))


def _alternatives(proposal: Proposal) -> Sheet:
    goal, best = proposal.request.goal, front(proposal.sized.alternatives)
    heads = ["", "nodes", "accelerators", "half done", "nine of ten", "chance", "cost", "contract", "offer"]
    rows = [
        [
            ">" if item is proposal.chosen else "*" if item in best else "",
            f"{item.num_nodes:,}",
            f"{item.accelerators:,} {item.candidate.base.accelerator}",
            format_duration(item.p50_s),
            format_duration(item.p90_s),
            f"{item.chance(goal):.0%}" if goal.deadline_s else "",
            format_usd(item.cost.value),
            item.contract,
            item.offer,
        ]
        for item in shown_alternatives(proposal)
    ]
    count = len(proposal.sized.alternatives)
    about = f"Of {count} that were tried. > is proposed; nothing beats a * in both cost and time."
    return Sheet("alternatives", heads, rows, about, frozenset({"accelerators", "half done"}))


def _skipped(skipped: Sequence[Skipped]) -> Sheet:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for item in skipped:
        by_reason[item.reason].append(item.node)
    rows = []
    for reason, nodes in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        more = f" and {len(nodes) - _NAMES} more" if len(nodes) > _NAMES else ""
        rows.append([", ".join(nodes[:_NAMES]) + more, reason])
    return Sheet("not proposed", ["nodes", "because"], rows)


def _minima(minima: Sequence[SmallestCluster]) -> Sheet:
    rows = [
        [
            f"{item.count} x {item.accelerator.name}",
            "no offer" if item.usd_per_hour is None else f"{item.usd_per_hour:,.2f}",
            _long(item.run_time_s),
        ]
        for item in minima[:_MINIMA]
    ]
    about = "The fewest of each kind that hold the workload; cheapest hour first."
    return Sheet("smallest clusters", ["accelerators", "USD an hour", "whole run"], rows, about)


def _long(seconds: float) -> str:
    """Years where days say little."""
    years = seconds / _YEAR_S
    return f"{years:,.1f} years" if years >= 1 else format_duration(seconds)


def _fabrics(details: ProposalDetails) -> Sheet:
    fastest = min(item.best.step_time_s for item in details.fabrics)
    heads = ["", "network of a node", "step time", "slower by", "exposed communication", "layout"]
    rows = [_fabric(item, fastest, chosen=item is details.enough) for item in details.fabrics]
    return Sheet("which network", heads, rows, _about_fabric(details), frozenset({"layout"}))


def _fabric(item: PlannedFabric, fastest: float, *, chosen: bool) -> list[str]:
    seconds = item.best.step_time_s
    return [
        ">" if chosen else "",
        item.option.over,
        format_step_time(seconds),
        f"{seconds / fastest - 1:.1%}",
        f"{item.exposed_s / seconds:.1%}",
        describe_layout(item.best.layout),
    ]


def _about_fabric(details: ProposalDetails) -> str:
    if details.enough is None:
        return ""
    said = f"{details.enough.option.over} is the leanest within {FABRIC_TOLERANCE:.0%} of the fastest."
    if details.network is None:
        return f"{said} The switches are the provider's."
    design = details.network
    switches = "1 switch" if design.num_switches == 1 else f"{design.num_switches:,} switches"
    built = f"As a {design.topology}, the cluster's own NICs take {switches} and {design.num_cables:,} cables"
    return f"{said} {built}: `trainworks network` has the design."


def _hosts(details: ProposalDetails) -> Sheet:
    node, needs = details.plan.job.cluster.node, details.needs
    rows = [[item.part, item.verdict, item.value, item.limit, item.meaning] for item in details.findings]
    threads, memory = (node.vcpus, node.host_memory_bytes) if node else (None, None)
    rows.append(_need("processor threads", needs.vcpus.value, threads, written=lambda value: f"{value:,.0f}"))
    rows.append(_need("host memory", needs.memory.value, memory, written=format_bytes))
    local = f"{format_bytes(needs.local.value)} would be used"
    rows.append(["local drives", "note", local, "", "for cache and staged checkpoints"])
    spared = frozenset({"value", "limit"})
    return Sheet("hosts", ["part", "verdict", "value", "limit", "meaning"], rows, spared=spared)


def _need(part: str, needed: float, there: float | None, *, written: Callable[[float], str]) -> list[str]:
    if there is None:
        return [part, "note", f"{written(needed)} needed", "not published", "ask for it"]
    limit = f"{written(there)} there"
    if there >= needed:
        return [part, "fits", f"{written(needed)} needed", limit, "for data workers, prefetch and staged checkpoints"]
    return [part, "too little", f"{written(needed)} needed", limit, "loading or saving would hold the accelerators up"]


def _storage(details: ProposalDetails) -> Sheet:
    best: StorageVerdict | None = recommended(details.storage)
    rows = [
        [">" if verdict is best else "", verdict.name, "yes" if verdict.enough else "no", verdict.reason]
        for verdict in details.storage
    ]
    return Sheet("storage", ["", "storage", "enough", "reason"], rows)


def own_or_rent(buying: Ownership | None, request: SizingRequest) -> list[str]:
    """What owning the proposed cluster would take, in lines."""
    if buying is None:
        return ["nobody publishes the power of these nodes, so owning them cannot be priced"]
    each = f"{buying.owning.per_accelerator_hour.value:.2f} USD per hour of an accelerator bought"
    lines = [f"own: {format_usd(buying.owning.capex.value)} to buy, {each} at {request.hours_per_year:,.0f} h a year"]
    if buying.market is not None:
        lines.append(f"rent: {buying.market.value:.2f} USD per accelerator hour, the median of what is offered")
        lines.append(_break_even(buying))
    power = format_quantity(buying.facility.power.value, "W")
    lines.append(f"room: {power} with cooling, {buying.facility.racks.value:.0f} racks; {buying.facility.cooling}")
    return lines


def _break_even(buying: Ownership) -> str:
    if buying.break_even is None or not within_a_year(buying.break_even):
        return "owning never pays at that price"
    return f"owning pays from {buying.break_even.value:,.0f} hours of training a year on"
