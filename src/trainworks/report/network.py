"""A network design: its parts and price, the time of messages on it, and what else could be built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainworks.catalog.catalog import rack_of
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.network.bill import bill_of_materials, bill_total, switch_power, usual_share
from trainworks.plan.network.design import NetworkDesign, serves
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.plan import NetworkPlan
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.network.traffic import Message, message_time
from trainworks.report.explain import sources_section
from trainworks.report.network_drawing import network_picture
from trainworks.report.rendering.document import NARROW, Document, Facts, Row, Section, Table, Text, left, right
from trainworks.report.rendering.plots import Drawing
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import byte_rate_note, format_bytes, format_counted, format_quantity, format_step_time

_MAX_ALTERNATIVES = 3


@build_document.register
def document(plan: NetworkPlan) -> Document:
    """The design in full, its messages and parts, and the alternatives."""
    design = plan.design
    switches, cables = format_counted(design.num_switches, "switch"), format_counted(design.num_cables, "cable")
    return Document(
        f"Network of {design.cluster.name}",
        "network",
        [
            Section("", [Facts.from_mapping(_facts(plan))]),
            Section("drawing", [Drawing(network_picture(design, plan.support))], only="page"),
            Section("messages", [_messages(plan)]),
            Section("bill of materials", [_bill(plan), *(Text(line) for line in _bill_notes(plan))]),
            Section("what else could be built", [_alternatives(plan), *_legend(plan)]),
            sources_section(plan.figures),
        ],
        about=f"{design.topology}, {switches}, {cables}",
        notes=_all_notes(plan),
        verdict=plan.verdict,
    )


def _facts(plan: NetworkPlan) -> dict[str, str]:
    design, support = plan.design, plan.support
    speed, rails = _speed(design.endpoint_bytes_per_s), format_counted(design.rails, "rail")
    cables = f"{support.management_cables.value:,.0f} cables: nodes, switches, power distribution"
    step = ""
    if plan.step_times_s:
        near, far = plan.step_times_s["in order"], plan.step_times_s["scattered"]
        more = f" (+{100 * (far / near - 1):.1f} %)" if far > near else ""
        step = f"{format_step_time(near)} with ranks in order, {format_step_time(far)} scattered{more}"
    return {
        "cluster": f"{design.cluster.name}: {design.endpoints:,} NICs of {speed}, {rails}",
        "topology": _topology(design),
        "switches": _switches(design),
        "cables": f"{design.num_cables:,}{_parts(design.cables)}",
        "bisection": f"{format_quantity(design.bisection_bytes_per_s, 'bytes/s')}, {_blocking(design)}",
        "longest path": format_counted(design.hops_worst, "switch" if design.switch else "NIC"),
        "room for": "any number of nodes"
        if design.max_nodes is None
        else f"{format_counted(design.max_nodes, 'node')}",
        "step": step,
        "storage": _storage(support),
        "management": f"{format_counted(int(support.management_switches.value), 'switch')} of 48 ports, {cables}",
        "racks": _racks(plan),
    }


def _topology(design: NetworkDesign) -> str:
    if design.topology == "star" and design.copies > 1:
        rails = -(-design.rails // design.copies)
        return f"star: {format_counted(rails, 'rail')} on each switch; rails meet in the nodes"
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


def _parts(counts: Mapping[str, int]) -> str:
    """` = 8 leaf + 4 spine`; empty for a single part."""
    if len(counts) < 2:
        return ""
    return f" = {' + '.join(f'{count:,} {name}' for name, count in counts.items())}"


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:.4g} Gb/s"


def _blocking(design: NetworkDesign) -> str:
    return "nothing blocks" if design.oversubscription <= 1.0 else f"oversubscription {design.oversubscription:.3g}"


def _storage(support: SupportNetworks) -> str:
    switches = f"{support.storage_leaves.value:.0f} leaf"
    if support.storage_spines.value:
        switches += f" + {support.storage_spines.value:.0f} spine"
    cables = f"{support.storage_cables.value:,.0f} cables"
    return f"{switches} switches, {cables}: two ports of each node on a pair of leaves"


def _racks(plan: NetworkPlan) -> str:
    """Racks that are sold as one, with their scale-up domains; empty for other nodes."""
    rack = rack_of(plan.design.cluster.node)
    if rack is None:
        return ""
    racks = format_counted(-(-plan.design.nodes // rack.nodes), "rack")
    together = ", and stays on one set of leaves" if plan.design.set_nodes or plan.design.sets == 1 else ""
    return f"{racks} of {rack.nodes} nodes: each is one scale-up domain{together}"


def _has_all_reduce(plan: NetworkPlan) -> bool:
    return any(message.kind == "all_reduce" for message in plan.messages)


def _times(design: NetworkDesign, message: Message) -> list[str]:
    """Time with ranks in order and, of an all-reduce, with ranks scattered."""
    times = [message_time(design, message)]
    times += [message_time(design, message, "scattered")] if message.kind == "all_reduce" else []
    return [format_step_time(time.value) for time in times]


def _messages(plan: NetworkPlan) -> Table:
    scattered = right("ranks scattered") if _has_all_reduce(plan) else []
    rows = []
    for message in plan.messages:
        name = message.name.partition(" of ")[0]
        cells = [name, format_bytes(message.size_bytes), f"{message.ranks:,}", *_times(plan.design, message)]
        rows.append(cells + [""] * (4 + len(scattered) - len(cells)))
    return Table([*left("collective"), *right("size", "ranks", "time"), *scattered], rows)


def _bill(plan: NetworkPlan) -> Table:
    rows, money = [], plan.prices.exchange.format
    for item in bill_of_materials(plan.design, plan.prices):
        price = item.each
        each = "ask" if price is None else "with the node" if price.value == 0 else money(price.value)
        total = money(item.total_usd.value) if item.total_usd is not None and item.total_usd.value else ""
        rows.append([item.name, f"{item.count:,}", each, total])
    return Table([*left("part"), *right("number", "each", "together")], rows)


def _bill_notes(plan: NetworkPlan) -> list[str]:
    bill, share = bill_of_materials(plan.design, plan.prices), usual_share()
    total, power = bill_total(bill), switch_power(plan.design, plan.prices)
    missing = [item.name for item in bill if item.each_usd is None]
    lines = []
    if total is not None:
        left_out = f"; without a price: {', '.join(missing)}" if missing else ""
        lines.append(f"together {plan.prices.exchange.format(total.value)}{left_out}")
    lines += plan.prices.exchange.notes
    sources: dict[str, list[str]] = {}
    for item in bill:
        if item.each is not None and item.each.value and item.each.source not in (None, GIVEN):
            sources.setdefault(str(item.each.source), []).append(item.name)
    lines += [f"price of {', '.join(names)}: {source}" for source, names in sources.items()]
    if power is not None:
        lines.append(f"the switches take {format_quantity(power.value, 'W')} at most")
    if missing:
        low, high = 100 * (share.low or 0), 100 * (share.high or 0)
        lines.append(f"networks usually are {low:.0f} to {high:.0f} % of everything bought")
    return lines


def _largest_messages(plan: NetworkPlan) -> list[Message]:
    """The largest collective of each kind."""
    kinds = dict.fromkeys(message.kind for message in plan.messages)
    return [
        max((each for each in plan.messages if each.kind == kind), key=lambda each: each.size_bytes) for kind in kinds
    ]


def _alternatives(plan: NetworkPlan) -> Table:
    """One row for each topology; a narrow terminal leaves out what the facts of the design have."""
    messages, is_priced = _largest_messages(plan), plan.prices.switch_usd is not None
    times = {"all_reduce": ("all-reduce", "scattered"), "all_to_all": ("all-to-all",)}
    columns = [
        *left("topology"),
        *right("switches", "cables"),
        *right("hops", "blocks", min_width=NARROW),
        *right(*(name for message in messages for name in times[message.kind])),
        *right("room"),
        *(right("price", min_width=NARROW) if is_priced else []),
    ]
    rows = []
    for design in plan.others:
        cells = [design.topology, f"{design.num_switches:,}", f"{design.num_cables:,}"]
        cells += [f"{design.hops_worst:,}", f"{design.oversubscription:.3g}"]
        cells += [time for message in messages for time in _times(design, message)]
        cells.append("any" if design.max_nodes is None else f"{design.max_nodes:,}")
        if is_priced:
            total = bill_total(bill_of_materials(design, plan.prices))
            cells.append("" if total is None else plan.prices.exchange.format(total.value))
        rows.append(Row(cells, "bold" if design == plan.design else ""))
    return Table(columns, rows)


def _legend(plan: NetworkPlan) -> list[Text]:
    """Meaning of the columns of the alternatives."""
    sizes = " and ".join(dict.fromkeys(format_bytes(message.size_bytes) for message in _largest_messages(plan)))
    anywhere = "; scattered: with ranks anywhere, not along the network" if _has_all_reduce(plan) else ""
    text = f"room: nodes it can hold; times are of {sizes}{anywhere}"
    hops = "hops: switches, or NICs, on the longest path; blocks: oversubscription; "
    return [Text(text, max_width=NARROW), Text(f"{hops}{text}", min_width=NARROW)]


def _other_topologies(plan: NetworkPlan) -> list[str]:
    """What the other topologies need for the same job."""
    design = plan.design
    others = [other for other in plan.others if serves(other) and other.topology != design.topology]
    others.sort(key=lambda other: other.num_switches)
    if not others or not serves(design):
        return []
    fewer = [other for other in others if other.num_switches < design.num_switches]
    needs = ", ".join(f"`{other.topology}` {other.num_switches:,}" for other in (fewer or others)[:_MAX_ALTERNATIVES])
    sold = []
    if design.unit > 1 and design.cluster.node is not None:
        units, named = format_counted(design.units, "whole unit"), design.cluster.node.name
        sold = [f"{named} is sold in units of {design.unit} nodes: leaves and spines are those of {units}"]
    notes = [
        *sold,
        f"fewer than {format_counted(design.num_switches, 'switch')} would serve: {needs}"
        if fewer
        else f"the fewest switches that serve are {design.num_switches:,}; instead: {needs}",
    ]
    apart = next((other for other in plan.others if other.topology == "rail-only"), None)
    if apart is not None and not serves(apart) and apart.num_switches < design.num_switches:
        notes.append(f"`rail-only` needs {apart.num_switches:,}, and its rails never meet in a switch")
    if design.planes > 1:
        each = _speed(design.endpoint_bytes_per_s / design.planes)
        notes.append(f"each NIC needs {design.planes} ports of {each}, one for each plane")
    return notes


def _all_notes(plan: NetworkPlan) -> list[str]:
    return [*_other_topologies(plan), *_growth(plan), *_notes(plan.design)]


def _growth(plan: NetworkPlan) -> list[str]:
    """The limit of a topology that cannot double its nodes, or of a star, and what can grow beyond it."""
    design, most = plan.design, plan.design.max_nodes
    if most is None or (design.topology != "star" and most >= 2 * design.nodes):
        return []
    holds = f"the {design.topology} holds {format_counted(most, 'node')} at most"
    if design.topology == "star":
        return [f"{holds}; `{'rail-optimised' if design.rails > 1 else 'spine-leaf'}` can grow beyond that"]
    larger = [each for each in plan.others if each.switch is not None and (each.max_nodes or 0) > most]
    serving = [each for each in larger if serves(each)]
    rooms = []
    for each in (serving or larger)[:_MAX_ALTERNATIVES]:
        blocks = f" at {_blocking(each)}" if each.oversubscription > 1 else ""
        rooms.append(f"`{each.topology}` holds {each.max_nodes:,}{blocks}")
    return [f"{holds}; {', '.join(rooms) or 'no topology of these switches holds more'}"]


def _notes(design: NetworkDesign) -> list[str]:
    notes = list(design.cluster.notes)
    if design.too_small and design.switch is not None:
        smaller = " or ".join(switch.name for switch in design.too_small)
        notes.append(f"{design.switch.name}: ports of {smaller} are closer to the NICs, and too few for so many nodes")
    if design.switch is not None and design.switch.announced:
        notes.append(f"{design.switch.name} is announced and cannot be bought yet; `--switch` takes another one")
    if design.switch is not None and (rate := byte_rate_note(design.switch.name)):
        notes.append(f"--switch: {rate}")
    if design.taper > 1 and design.oversubscription == 1:
        notes.append(
            f"nothing is oversubscribed here: a {design.topology} of this size has no links to save; "
            "`--topology spine-leaf` has"
        )
    if design.topology in ("ring", "torus"):
        notes.append("a node or cable that fails cuts its ring; switches would lead around it")
    if isinstance(design.fabric, GridNetwork) and design.fabric.used_nics < design.nics:
        notes.append(f"{design.nics - design.fabric.used_nics} NICs of each node have no neighbour and stay unused")
    return notes


@to_json.register
def _(plan: NetworkPlan) -> Mapping[str, object]:
    bill = bill_of_materials(plan.design, plan.prices)
    total, power = bill_total(bill), switch_power(plan.design, plan.prices)
    return {
        "design": _design_json(plan.design, plan.messages),
        "step_times_s": dict(plan.step_times_s),
        "bill": [
            {
                "name": item.name,
                "count": item.count,
                "each_usd": item.each_usd,
                "total_usd": None if item.total_usd is None else item.total_usd.value,
                "price": None if item.each is None else item.each.source,
            }
            for item in bill
        ],
        "price_usd": None if total is None else total.value,
        "power_w": None if power is None else power.value,
        "support": {figure.name.replace(" ", "_"): int(figure.value) for figure in plan.support.figures},
        "topologies": [_design_json(design, plan.messages) for design in plan.others],
        "notes": _all_notes(plan),
    }


def _design_json(design: NetworkDesign, messages: Sequence[Message]) -> Mapping[str, object]:
    times = []
    for each in messages:
        scattered = message_time(design, each, "scattered").value if each.kind == "all_reduce" else None
        facts = {"name": each.name, "size_bytes": each.size_bytes, "ranks": each.ranks}
        times.append(facts | {"time_s": message_time(design, each).value, "scattered_s": scattered})
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
        "messages": times,
    }
