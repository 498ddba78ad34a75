"""A proposal: the cluster for one run, why this one, the alternatives, and everything that goes with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from trainworks.catalog.age import own_rows_note, price_note
from trainworks.catalog.exchange import Exchange
from trainworks.plan.cost.owning import fits_in_year
from trainworks.plan.job import unit_of
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import support_networks
from trainworks.plan.sizing.candidates import Skipped
from trainworks.plan.sizing.fabric_choice import FABRIC_TOLERANCE
from trainworks.plan.sizing.facility import nodes_per_rack
from trainworks.plan.sizing.proposal import Alternative, SizingGoal, front
from trainworks.plan.sizing.result import Ownership, Proposal, ProposalDetails, SizingRequest, SmallestCluster
from trainworks.plan.storage.systems import StorageVerdict, recommended
from trainworks.plan.trace import tornado
from trainworks.report.explain import sources_section, tornado_plot, trace_json
from trainworks.report.goodput import badput_bars, finish_chart
from trainworks.report.network_drawing import network_picture
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    Block,
    Bullets,
    Column,
    Document,
    Facts,
    Row,
    Section,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.plots import Bar, Bars, Chart, Curve, Dot, Drawing, Segment
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import (
    DAY_S,
    format_bytes,
    format_count,
    format_duration,
    format_quantity,
    format_step_time,
)

_WIDE = 120
"""Columns of a terminal below which tables leave out what they can spare."""
_MAX_KINDS = 12
_MAX_FRONT = 4
_MAX_MINIMA = 6
_MAX_NAMES = 4
_YEAR_S = 365 * DAY_S
_KEY_SHARE = 0.005


@build_document.register
def document(proposal: Proposal) -> Document:
    """The proposal and why, what else there is, and everything that goes with it."""
    request, details, chosen = proposal.request, proposal.details, proposal.chosen
    cost, swings = chosen.cost, tornado(chosen.cost)
    money = request.goal.exchange
    plot = tornado_plot(cost, swings, money) if swings else []
    offers = chosen.candidate.offers
    prices = (price_note(offers), own_rows_note(("offers", offer.name) for offer in offers))
    return Document(
        request.run_file.name,
        "proposal",
        [
            Section("", [Facts.from_mapping(_facts(proposal))]),
            Section("why", [Bullets(proposal.reasons)]),
            Section("cost and time", _cost_and_time(proposal), only="page"),
            Section("alternatives", _alternatives(proposal)),
            Section("not proposed", [_skipped(proposal.sized.skipped)] if proposal.sized.skipped else []),
            Section("smallest clusters", _minima(proposal.minima, money)),
            Section("one step", _step(details), only="page"),
            Section("finish", finish_chart(list(chosen.outcome.wall_s), request.goal.deadline_s), only="page"),
            Section("where the time goes", badput_bars({"proposed": chosen.outcome.shares()}), only="page"),
            Section("which network", _fabrics(details) if details.fabrics else []),
            Section("the network", _drawing(details.network), only="page"),
            Section("hosts", [_hosts(details)]),
            Section("storage", [_storage(details)]),
            Section(f"{cost.name}: {money.format(cost.value)}", plot, only="page"),
            Section("own or rent", [Text(line) for line in _own_or_rent(details.ownership, request)]),
            sources_section(proposal.figures),
        ],
        notes=[*details.plan.notes, *request.price_notes, *money.notes, *filter(None, prices)],
        verdict=proposal.verdict,
    )


def _facts(proposal: Proposal) -> dict[str, str]:
    chosen, details, goal, run = proposal.chosen, proposal.details, proposal.request.goal, proposal.run
    best, mean, plan = details.plan.best[0], run.finish.mean, details.plan
    spares = f"{chosen.spares} bought" if chosen.spares else f"{run.finish.spares.value:.0f} if the nodes were your own"
    chance = f", {chosen.chance(goal):.0%} by the deadline" if goal.deadline_s else ""
    life = "" if chosen.life_s is None else f" and a preemption every {format_duration(chosen.life_s)} (assumed)"
    facts = {
        "workload": f"{format_count(plan.job.shape.num_parameters)} parameters, {plan.job.precision}, "
        f"{plan.steps:,} steps of {plan.global_batch:,}",
        "goal": _goal(goal),
        "proposal": f"{chosen.name}: {chosen.accelerators:,} x {chosen.candidate.base.accelerator}",
        "finish": f"half of the runs in {format_duration(chosen.p50_s)}, "
        f"nine of ten in {format_duration(chosen.p90_s)}{chance}",
        "cost": f"{goal.exchange.format(chosen.cost.value)}, {_cost_per_million(proposal)}",
        "step time": f"{format_step_time(best.step_time_s)} with {best.layout.describe()}",
        "failures": f"one in {format_duration(mean.job_mttf.value)}{life}, a checkpoint every "
        f"{format_duration(chosen.interval_s)}, goodput {chosen.outcome.runtime_goodput:.1%}; spares: {spares}",
    }
    if details.energy is not None and details.carbon is not None:
        energy, carbon = (format_quantity(each.value, each.unit) for each in (details.energy, details.carbon))
        facts["energy"] = f"{energy}, {carbon} on the world's average grid"
    return facts


def _goal(goal: SizingGoal) -> str:
    parts = []
    if goal.deadline_s:
        parts.append(f"done in {format_duration(goal.deadline_s)}, with a chance of {goal.confidence:.0%}")
    if goal.budget_usd:
        parts.append(f"for at most {goal.exchange.format(goal.budget_usd)}")
    return ", ".join(parts) or "none: the cheapest run, however long it takes"


def _cost_per_million(proposal: Proposal) -> str:
    plan = proposal.details.plan
    noun = unit_of(plan.job.shape)
    count = plan.steps * plan.global_batch * (plan.job.sequence_length if noun == "tokens" else 1)
    money = proposal.request.goal.exchange
    return f"{proposal.chosen.cost.value * money.per_usd / count * 1e6:.3g} {money.currency} per million {noun}"


def _cost_and_time(proposal: Proposal) -> list[Block]:
    alternatives, best = proposal.sized.alternatives, front(proposal.sized.alternatives)
    text = "Every alternative that was tried, with the time that nine of ten simulated runs do not exceed."
    money = proposal.request.goal.exchange
    joined = sorted((item.p90_s / DAY_S, item.cost.value * money.per_usd) for item in best)
    dots = []
    for item in sorted(alternatives, key=lambda item: (item in best, item is proposal.chosen)):
        css = "dot" + (" front" if item in best else "") + (" chosen" if item is proposal.chosen else "")
        title = f"{item.name}: {format_duration(item.p90_s)}, {money.format(item.cost.value)}"
        dots.append(
            Dot(item.p90_s / DAY_S, item.cost.value * money.per_usd, title, css, 6 if item is proposal.chosen else 4)
        )
    chart = Chart(
        f"{money.currency} over days, {len(dots)} alternatives",
        x=build_axis(0, max(dot.x for dot in dots), num_ticks=7),
        y=build_axis(0, max(dot.y for dot in dots)),
        x_unit="days",
        y_unit=money.currency,
        curves=[Curve("front-line", joined)],
        dots=dots,
        names=[("dot-key chosen", "proposed"), ("dot-key front", "best in cost or time"), ("dot-key other", "others")],
    )
    return [Text(text, "dim"), chart]


def _shown(proposal: Proposal) -> list[Alternative]:
    """The cheapest of every kind of node and contract, those that meet the goal first; and some of the front."""
    goal, first = proposal.request.goal, dict[tuple[str, str], Alternative]()
    ordered = sorted(proposal.sized.alternatives, key=lambda each: (not each.meets(goal), each.cost.value))
    if len(ordered) <= _MAX_KINDS:
        return ordered
    for item in ordered:
        first.setdefault((item.candidate.node, item.contract), item)
    shown = [*first.values()][:_MAX_KINDS]
    others = [item for item in [proposal.chosen, *front(proposal.sized.alternatives)] if item not in shown]
    return sorted([*shown, *others[:_MAX_FRONT]], key=lambda each: (not each.meets(goal), each.cost.value))


def _alternatives(proposal: Proposal) -> list[Block]:
    goal, best = proposal.request.goal, front(proposal.sized.alternatives)
    to_buy = any(item.purchase is not None for item in proposal.sized.alternatives)
    columns = [
        Column(""),
        *left("nodes"),
        Column("accelerators", min_width=_WIDE),
        Column("half done", min_width=_WIDE),
        *left("nine of ten", "chance", "cost"),
        *(left("to buy") if to_buy else ()),
        *left("contract"),
        Column("offer", wrap=True),
    ]
    rows = []
    for item in _shown(proposal):
        is_chosen = item is proposal.chosen
        cells = [
            ">" if is_chosen else "*" if item in best else "",
            f"{item.num_nodes:,}",
            f"{item.accelerators:,} {item.candidate.base.accelerator}",
            format_duration(item.p50_s),
            format_duration(item.p90_s),
            f"{item.chance(goal):.0%}" if goal.deadline_s else "",
            goal.exchange.format(item.cost.value),
            *([goal.exchange.format(item.purchase.value) if item.purchase else ""] if to_buy else ()),
            item.contract,
            item.offer,
        ]
        rows.append(Row(cells, "bold" if is_chosen else ""))
    count = len(proposal.sized.alternatives)
    caption = f"Of {count} that were tried. > is proposed; no other one beats a * in both cost and time."
    return [Table(columns, rows, caption=caption)]


def _skipped(skipped: Sequence[Skipped]) -> Table:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for item in skipped:
        by_reason[item.reason].append(item.node)
    rows = []
    for reason, nodes in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
        rows.append([", ".join(nodes[:_MAX_NAMES]) + more, reason])
    return Table([*left("nodes"), Column("because", wrap=True)], rows)


def _minima(minima: Sequence[SmallestCluster], money: Exchange) -> list[Block]:
    rows = []
    for item in minima[:_MAX_MINIMA]:
        price = "no offer" if item.usd_per_hour is None else f"{item.usd_per_hour * money.per_usd:,.2f}"
        years = item.run_time_s / _YEAR_S
        run_time = f"{years:,.1f} years" if years >= 1 else format_duration(item.run_time_s)
        rows.append([f"{item.count} x {item.accelerator.name}", price, run_time])
    caption = "The fewest of each kind that hold the workload; cheapest hour first."
    return [Table([*left("accelerators"), *right(f"{money.currency} an hour", "whole run")], rows, caption=caption)]


def _step(details: ProposalDetails) -> list[Block]:
    terms = details.plan.best[0].terms_s
    whole = sum(terms.values())
    segments = [Segment(name, seconds, format_step_time(seconds)) for name, seconds in terms.items()]
    return [Text(f"{format_step_time(whole)}, by term.", "dim"), Bars([Bar("", "", segments)], least_share=_KEY_SHARE)]


def _fabrics(details: ProposalDetails) -> list[Block]:
    fastest = min(item.best.step_time_s for item in details.fabrics)
    rows = []
    for item in details.fabrics:
        seconds, is_chosen = item.best.step_time_s, item is details.enough
        cells = [
            ">" if is_chosen else "",
            item.option.over,
            format_step_time(seconds),
            f"{seconds / fastest - 1:.1%}",
            f"{item.exposed_s / seconds:.1%}",
            item.best.layout.describe(),
        ]
        rows.append(Row(cells, "bold" if is_chosen else ""))
    columns = [
        *left("", "network of a node"),
        *right("step time", "slower by", "exposed communication"),
        Column("layout", wrap=True, min_width=_WIDE),
    ]
    return [Table(columns, rows, caption=_fabric_choice(details))]


def _fabric_choice(details: ProposalDetails) -> str:
    if details.enough is None:
        return ""
    choice = f"{details.enough.option.over} is the leanest within {FABRIC_TOLERANCE:.0%} of the fastest."
    if details.network is None:
        return f"{choice} The switches are the provider's."
    design = details.network
    switches = "1 switch" if design.num_switches == 1 else f"{design.num_switches:,} switches"
    parts = f"As a {design.topology}, the cluster's own NICs take {switches} and {design.num_cables:,} cables"
    if design.switch is not None and design.switch.announced:
        parts += f" of {design.switch.name}, which is only announced"
    return f"{choice} {parts}: `trainworks network` has the design."


def _drawing(design: NetworkDesign | None) -> list[Block]:
    if design is None:
        return []
    support = support_networks(design, nodes_per_rack=nodes_per_rack(design.cluster))
    return [Drawing(network_picture(design, support))]


def _hosts(details: ProposalDetails) -> Table:
    node, needs = details.plan.job.cluster.node, details.needs
    rows = [[item.part, item.verdict, item.value, item.limit, item.meaning] for item in details.findings]
    threads, memory = (node.vcpus, node.host_memory_bytes) if node else (None, None)
    rows.append(_need("processor threads", needs.vcpus.value, threads, lambda value: f"{value:,.0f}"))
    rows.append(_need("host memory", needs.memory.value, memory, format_bytes))
    local = f"{format_bytes(needs.local.value)} would be used"
    rows.append(["local drives", "note", local, "", "for cache and staged checkpoints"])
    columns = [
        *left("part", "verdict"),
        Column("value", min_width=_WIDE),
        Column("limit", min_width=_WIDE),
        Column("meaning", wrap=True),
    ]
    return Table(columns, rows)


def _need(part: str, needed: float, available: float | None, text: Callable[[float], str]) -> list[str]:
    if available is None:
        return [part, "note", f"{text(needed)} needed", "not published", "ask for it"]
    limit = f"{text(available)} there"
    if available >= needed:
        return [part, "fits", f"{text(needed)} needed", limit, "for data workers, prefetch and staged checkpoints"]
    return [part, "too little", f"{text(needed)} needed", limit, "loading or saving would hold the accelerators up"]


def _storage(details: ProposalDetails) -> Table:
    best: StorageVerdict | None = recommended(details.storage)
    rows = [
        Row(
            [">" if verdict is best else "", verdict.name, "yes" if verdict.enough else "no", verdict.reason],
            "bold" if verdict is best else "",
        )
        for verdict in details.storage
    ]
    return Table([*left("", "storage", "enough"), Column("reason", wrap=True)], rows)


def _own_or_rent(owned: Ownership | None, request: SizingRequest) -> list[str]:
    """What owning the proposed cluster takes."""
    if owned is None:
        return ["the power of these nodes is not published, so owning them cannot be priced"]
    money = request.goal.exchange
    each = f"{money.price(owned.owning.per_accelerator_hour.value)} per hour of an accelerator bought"
    lines = [f"own: {money.format(owned.owning.capex.value)} to buy, {each} at {request.hours_per_year:,.0f} h a year"]
    if owned.market is not None:
        lines.append(f"rent: {money.price(owned.market.value)} per accelerator hour, the median of what is offered")
        pays = owned.break_even
        lines.append(
            "owning never pays at that price"
            if pays is None or not fits_in_year(pays)
            else f"owning pays from {pays.value:,.0f} hours of training a year on"
        )
    power = format_quantity(owned.facility.power.value, "W")
    return [*lines, f"room: {power} with cooling, {owned.facility.racks.value:.0f} racks; {owned.facility.cooling}"]


@to_json.register
def _(proposal: Proposal) -> Mapping[str, object]:
    details, goal = proposal.details, proposal.request.goal
    return {
        "proposal": _alternative_json(proposal.chosen, goal),
        "reasons": proposal.reasons,
        "alternatives": [_alternative_json(item, goal) for item in proposal.sized.alternatives],
        "not_proposed": [asdict(item) for item in proposal.sized.skipped],
        "smallest": [
            {
                "accelerator": item.accelerator.name,
                "count": item.count,
                "run_time_s": item.run_time_s,
                "usd_per_hour": item.usd_per_hour,
            }
            for item in proposal.minima
        ],
        "layout": details.plan.best[0].model_dump(mode="json"),
        "networks": [
            {
                "over": item.option.over,
                "step_time_s": item.best.step_time_s,
                "exposed_s": item.exposed_s,
                "enough": item is details.enough,
            }
            for item in details.fabrics
        ],
        "hosts": [asdict(item) for item in details.findings],
        "storage": [{"storage": item.name, "enough": item.enough, "reason": item.reason} for item in details.storage],
        "figures": {figure.name: trace_json(figure) for figure in proposal.figures},
        "measured": [asdict(rate) for rate in details.plan.measured],
        "notes": details.plan.notes,
    }


def _alternative_json(item: Alternative, goal: SizingGoal) -> Mapping[str, object]:
    return {
        "node": item.candidate.node,
        "num_nodes": item.num_nodes,
        "accelerators": item.accelerators,
        "spares": item.spares,
        "contract": item.contract,
        "seller": item.seller,
        "p50_s": item.p50_s,
        "p90_s": item.p90_s,
        "chance": item.chance(goal) if goal.deadline_s else None,
        "cost_usd": item.cost.value,
        "purchase_usd": item.purchase.value if item.purchase else None,
        "meets_goal": item.meets(goal),
    }
