"""A network and what could be built instead, as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trainworks.plan.network.bill import bill_of_materials, bill_total, switch_power, usual_share
from trainworks.plan.network.design import NetworkDesign, serves
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.messages import Message
from trainworks.plan.network.plan import NetworkPlan
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.network.traffic import Placement, message_time
from trainworks.plan.trace import Traced
from trainworks.report.network_dot import network_dot
from trainworks.report.network_drawing import network_svg
from trainworks.report.parts import fact_table, note_lines, plain_table, print_parts, title
from trainworks.units import byte_rate_note, format_bytes, format_quantity, format_step_time, format_usd

__all__ = ["answer_as_json", "network_drawing", "print_answer"]

_INSTEAD = 3
"""Other topologies that are named."""
_NARROW = 100
"""Columns of a terminal below which the comparison leaves out what the design's own lines have."""


def print_answer(answer: NetworkPlan, console: Console) -> None:
    """The design in full, its messages and parts, and the comparison."""
    narrow = console.width < _NARROW
    print_parts(
        [
            [_facts(answer)],
            [title("messages"), _message_table(answer)],
            [title("bill of materials"), _bill_table(answer), *_bill_notes(answer)],
            [title("what else could be built"), _comparison(answer, narrow=narrow), _heads(answer, narrow=narrow)],
            note_lines([*_instead(answer), *_notes(answer.design)]),
        ],
        console,
    )


def _facts(answer: NetworkPlan) -> Table:
    design = answer.design
    speed = _speed(design.endpoint_bytes_per_s)
    rows = {
        "cluster": f"{design.cluster.name}: {design.endpoints:,} NICs of {speed}, {_count(design.rails, 'rail')}",
        "topology": _topology(design),
        "switches": _switches(design),
        "cables": f"{design.num_cables:,}{_parts(design.cables)}",
        "bisection": f"{format_quantity(design.bisection_bytes_per_s, 'bytes/s')}, {_blocking(design)}",
        "longest path": _count(design.hops_worst, "switch" if design.switch else "NIC"),
        "room for": "any number of nodes" if design.max_nodes is None else f"{_count(design.max_nodes, 'node')}",
        **({"step": _steps(answer.step_times_s)} if answer.step_times_s else {}),
        "storage": _storage(answer.support),
        "management": _management(answer.support),
    }
    return fact_table(rows)


def _topology(design: NetworkDesign) -> str:
    if design.topology == "star" and design.copies > 1:
        rails = -(-design.rails // design.copies)
        return f"star: {_count(rails, 'rail')} on each switch; rails meet in the nodes"
    if isinstance(design.fabric, GridNetwork):
        return f"{design.topology}: {' x '.join(map(str, design.fabric.sides))} nodes"
    tiers = {1: "one tier", 3: "two tiers", 5: "three tiers"}.get(design.hops_worst)
    return design.topology if tiers is None or "tier" in design.topology else f"{design.topology}, {tiers}"


def _switches(design: NetworkDesign) -> str:
    if design.ports is None:
        return "none"
    switch, split = design.ports.switch, design.ports.split
    ports = f"{switch.ports} ports of {_speed(switch.port_bytes_per_s)}"
    model = ports if switch.network == "unnamed" else f"{switch.name}, {ports}"
    into = f", each split into {split}" if split > 1 else ""
    return f"{design.num_switches:,}{_parts(design.switches)}: {model}{into}"


def _parts(counts: Any) -> str:
    """` = 8 leaf + 4 spine`; nothing for a single part."""
    if len(counts) < 2:
        return ""
    return f" = {' + '.join(f'{count:,} {name}' for name, count in counts.items())}"


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:.4g} Gb/s"


def _blocking(design: NetworkDesign) -> str:
    return "nothing blocks" if design.oversubscription <= 1.0 else f"oversubscription {design.oversubscription:.3g}"


def _storage(support: SupportNetworks) -> str:
    switches = f"{support.storage_leaves.value:.0f} leaf"
    if support.storage_spines.value:
        switches += f" + {support.storage_spines.value:.0f} spine"
    return (
        f"{switches} switches, {support.storage_cables.value:,.0f} cables: two ports of each node on a pair of leaves"
    )


def _management(support: SupportNetworks) -> str:
    switches, cables = int(support.management_switches.value), support.management_cables.value
    return f"{_count(switches, 'switch')} of 48 ports, {cables:,.0f} cables: nodes, switches, power distribution"


def _message_table(answer: NetworkPlan) -> Table:
    scattered = any(message.kind == "all_reduce" for message in answer.messages)
    columns = ("collective", "size", "ranks", "time", *(("ranks scattered",) if scattered else ()))
    table = plain_table(*columns, text_columns=1)
    for message in answer.messages:
        name = message.name.partition(" of ")[0]
        cells = [format_bytes(message.size_bytes), f"{message.ranks:,}"]
        cells.append(_seconds(message_time(answer.design, message)))
        if message.kind == "all_reduce":
            cells.append(_seconds(message_time(answer.design, message, "scattered")))
        table.add_row(name, *cells)
    return table


def _seconds(time: Traced) -> str:
    return format_step_time(time.value)


def _bill_table(answer: NetworkPlan) -> Table:
    table = plain_table("part", "number", "each", "together", text_columns=1)
    for item in bill_of_materials(answer.design, answer.prices):
        each = "not given" if item.each_usd is None else format_usd(item.each_usd)
        total = "" if item.total_usd is None else format_usd(item.total_usd.value)
        table.add_row(item.name, f"{item.count:,}", each, total)
    return table


def _bill_notes(answer: NetworkPlan) -> list[RenderableType]:
    bill, share = bill_of_materials(answer.design, answer.prices), usual_share()
    total, power = bill_total(bill), switch_power(answer.design, answer.prices)
    missing = [item.name for item in bill if item.each_usd is None]
    lines = []
    if total is not None:
        left_out = f"; no price was given for: {', '.join(missing)}" if missing else ""
        lines.append(f"together {format_usd(total.value)}{left_out}")
    if power is not None:
        lines.append(f"the switches take {format_quantity(power.value, 'W')}")
    if missing:
        low, high = 100 * (share.low or 0), 100 * (share.high or 0)
        lines.append(f"prices are yours to give; networks usually are {low:.0f} to {high:.0f} % of everything bought")
    return [Text(line) for line in lines]


def _compared(answer: NetworkPlan) -> list[Message]:
    """The largest collective of each kind."""
    kinds = dict.fromkeys(message.kind for message in answer.messages)
    return [
        max((each for each in answer.messages if each.kind == kind), key=lambda each: each.size_bytes) for kind in kinds
    ]


def _comparison(answer: NetworkPlan, *, narrow: bool) -> Table:
    """One line for each topology; a narrow one leaves out what the scattered times say, too."""
    messages = _compared(answer)
    heads = [head for each in messages for head in _columns(each)]
    columns = ["topology", "switches", "cables", *(() if narrow else ("hops", "blocks")), *heads, "room"]
    priced = answer.prices.switch_usd is not None and not narrow
    table = plain_table(*columns, *(("price",) if priced else ()), text_columns=1)
    for design in answer.others:
        cells = [design.topology, f"{design.num_switches:,}", f"{design.num_cables:,}"]
        cells += [] if narrow else [f"{design.hops_worst:,}", f"{design.oversubscription:.3g}"]
        cells += [_seconds(time) for message in messages for time in _times(design, message)]
        cells.append("any" if design.max_nodes is None else f"{design.max_nodes:,}")
        if priced:
            total = bill_total(bill_of_materials(design, answer.prices))
            cells.append("" if total is None else format_usd(total.value))
        table.add_row(*cells, style="bold" if design == answer.design else None)
    return table


def _columns(message: Message) -> tuple[str, ...]:
    return ("all-reduce", "scattered") if message.kind == "all_reduce" else ("all-to-all",)


def _times(design: NetworkDesign, message: Message) -> list[Traced]:
    times = [message_time(design, message)]
    return times if message.kind == "all_to_all" else [*times, message_time(design, message, "scattered")]


def _heads(answer: NetworkPlan, *, narrow: bool) -> Text:
    """What the columns of the comparison mean."""
    sizes = " and ".join(dict.fromkeys(format_bytes(message.size_bytes) for message in _compared(answer)))
    wide = "" if narrow else "hops: switches, or NICs, on the longest path; blocks: oversubscription; "
    scattered = any(message.kind == "all_reduce" for message in answer.messages)
    anywhere = "; scattered: with ranks anywhere, not along the network" if scattered else ""
    return Text(f"{wide}room: nodes it can hold; times are of {sizes}{anywhere}")


def _steps(times_s: Mapping[Placement, float]) -> str:
    """`16.0 s; 16.3 s with ranks scattered (+1.9 %)`."""
    near, far = times_s["in order"], times_s["scattered"]
    more = f" (+{100 * (far / near - 1):.1f} %)" if far > near else ""
    return f"{format_step_time(near)} with ranks in order, {format_step_time(far)} scattered{more}"


def _instead(answer: NetworkPlan) -> list[str]:
    """What the other topologies need for the same job."""
    design = answer.design
    others = [other for other in answer.others if serves(other) and other.topology != design.topology]
    others.sort(key=lambda other: other.num_switches)
    if not others or not serves(design):
        return []
    fewer = [other for other in others if other.num_switches < design.num_switches]
    needs = ", ".join(f"`{other.topology}` {other.num_switches:,}" for other in (fewer or others)[:_INSTEAD])
    own = _count(design.num_switches, "switch")
    notes = [
        f"fewer than {own} would serve: {needs}"
        if fewer
        else f"the fewest switches that serve are {design.num_switches:,}; instead: {needs}"
    ]
    apart = next((other for other in answer.others if other.topology == "rail-only"), None)
    if apart is not None and not serves(apart) and apart.num_switches < design.num_switches:
        notes.append(f"`rail-only` needs {apart.num_switches:,}, and its rails never meet in a switch")
    if design.planes > 1:
        each = _speed(design.endpoint_bytes_per_s / design.planes)
        notes.append(f"each NIC needs {design.planes} ports of {each}, one for each plane")
    return notes


def _notes(design: NetworkDesign) -> list[str]:
    notes = list(design.cluster.notes)
    if design.switch is not None and (told := byte_rate_note(design.switch.name)):
        notes.append(f"--switch: {told}")
    if design.taper > 1 and design.oversubscription == 1:
        notes.append(
            f"nothing is oversubscribed here: a {design.topology} of this size has no links to save; "
            "`--topology spine-leaf` has"
        )
    if design.topology == "star":
        larger = "rail-optimised" if design.rails > 1 else "spine-leaf"
        notes.append(f"the star holds {design.max_nodes:,} nodes at most; `{larger}` can grow beyond that")
    if design.topology in ("ring", "torus"):
        notes.append("a node or cable that fails cuts its ring; switches would lead around it")
    if isinstance(design.fabric, GridNetwork) and design.fabric.used_nics < design.nics:
        notes.append(f"{design.nics - design.fabric.used_nics} NICs of each node have no neighbour and stay unused")
    return notes


def answer_as_json(answer: NetworkPlan) -> dict[str, Any]:
    """Base units, the unit in the key."""
    prices = bill_of_materials(answer.design, answer.prices)
    total, power = bill_total(prices), switch_power(answer.design, answer.prices)
    return {
        "design": _design_as_json(answer.design, answer.messages),
        "step_times_s": dict(answer.step_times_s),
        "bill": [
            {
                "name": item.name,
                "count": item.count,
                "each_usd": item.each_usd,
                "total_usd": None if item.total_usd is None else item.total_usd.value,
            }
            for item in prices
        ],
        "price_usd": None if total is None else total.value,
        "power_w": None if power is None else power.value,
        "support": {figure.name.replace(" ", "_"): int(figure.value) for figure in answer.support.figures},
        "topologies": [_design_as_json(design, answer.messages) for design in answer.others],
        "notes": [*_instead(answer), *_notes(answer.design)],
    }


def _design_as_json(design: NetworkDesign, messages: Sequence[Message]) -> dict[str, Any]:
    return {
        "topology": design.topology,
        "nodes": design.nodes,
        "endpoints": design.endpoints,
        "endpoint_bytes_per_s": design.endpoint_bytes_per_s,
        "switch": None if design.switch is None else design.switch.name,
        "switches": dict(design.switches),
        "cables": dict(design.cables),
        "hops_worst": design.hops_worst,
        "bisection_bytes_per_s": design.bisection_bytes_per_s,
        "oversubscription": design.oversubscription,
        "max_nodes": design.max_nodes,
        "max_endpoints": design.max_endpoints,
        "rails": design.rails,
        "planes": design.planes,
        "messages": [_message_as_json(design, message) for message in messages],
    }


def _message_as_json(design: NetworkDesign, message: Message) -> dict[str, Any]:
    facts = {"name": message.name, "size_bytes": message.size_bytes, "ranks": message.ranks}
    return facts | {
        "time_s": message_time(design, message).value,
        "scattered_s": message_time(design, message, "scattered").value if message.kind == "all_reduce" else None,
    }


def network_drawing(plan: NetworkPlan, suffix: str) -> str:
    """The drawing as Graphviz text for `.dot`, else as SVG."""
    return (network_dot if suffix == ".dot" else network_svg)(plan.design, plan.support)
