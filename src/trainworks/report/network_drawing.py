"""A drawing of a network: compute above the nodes, storage and management below; light and dark, no script.

Up to 32 nodes, and up to 16 switches of a tier, are boxes of their own. More are put together in 4 to 8 boxes of
neighbours, a whole number of sets or groups each where these can be shared out evenly, and a line between two boxes
stands for all cables between their devices.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from xml.etree.ElementTree import Element

from trainworks.plan.network.addresses import address_lines
from trainworks.plan.network.cables import Cable, cable_plan
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.network.plan import NetworkPlan
from trainworks.plan.network.support import OTHER_PORTS, SupportNetworks
from trainworks.report.rendering.svg import element, markup, with_title

_WIDTH, _LEFT, _RIGHT = 1240, 190, 20
_HEAD, _ROW, _BOX, _ARC = 84, 140, 30, 90
_RAILS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b3a100", "#8a9199")
_LINE, _LINE_WIDTH = 18, 160
_STORAGE = ("storage", "storage spine")
_MOST_LABELS = 16
_STYLE = """
.network { color-scheme: light dark; --paper: #ffffff; --ink: #14171a; --soft: #5d666e; --rule: #c9ced3; --box: #eef1f4;
  --node: #dfeaf3; --store: #e4f2ec; --manage: #f3eee0; background: var(--paper);
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
@media (prefers-color-scheme: dark) { .network { --paper: #121417; --ink: #e8eaed; --soft: #9aa3ab; --rule: #454c53;
  --box: #262b31; --node: #1d3140; --store: #1c332a; --manage: #35301f; } }
.network text { fill: var(--ink); } .network .soft { fill: var(--soft); }
.network .title { font-size: 18px; font-weight: 650; } .network .row { font-weight: 600; }
.network .mid { text-anchor: middle; }
.network .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; font-size: 11px; }
.network rect { fill: var(--box); stroke: var(--rule); } .network .node { fill: var(--node); }
.network .store { fill: var(--store); } .network .manage { fill: var(--manage); }
.network .link { fill: none; stroke: var(--soft); stroke-opacity: 0.55; }
.network .rail { fill: none; stroke-opacity: 0.75; }
.network .storage { fill: none; stroke: #009e73; stroke-opacity: 0.6; stroke-dasharray: 5 3; }
.network .managed { stroke: #b58900; stroke-opacity: 0.7; stroke-dasharray: 1 3; }
"""
_MOST_NODES, _MOST_SWITCHES = 32, 16
_BOXES = (8, 7, 6, 5, 4)
_ROWS = ("core", "spine", "leaf", "switch", "node", "storage", "storage spine")
_DEVICE = re.compile(r"(?:(?P<part>group|rail|plane)(?P<which>\d+)-)?(?P<tier>[a-z]+)(?P<number>\d+)")


def network_drawing(plan: NetworkPlan, suffix: str) -> str:
    """The drawing as Graphviz text for `.dot`, else as an SVG file."""
    return (network_dot if suffix == ".dot" else network_svg)(plan.design, plan.support)


def network_svg(design: NetworkDesign, support: SupportNetworks) -> str:
    """The whole picture as the text of an SVG file."""
    return f"{markup(network_picture(design, support))}\n"


def network_picture(design: NetworkDesign, support: SupportNetworks) -> Element:
    """The whole picture."""
    graph = network_graph(design, support)
    top_row = next(iter(graph.rows))
    has_arcs = any(bundle.start.row == bundle.end.row == top_row for bundle in graph.bundles)
    tops = {row: _HEAD + (_ARC if has_arcs else 0) + index * _ROW for index, row in enumerate(graph.rows)}
    management = max(tops.values()) + _ROW - 30
    addresses = [part for line in address_lines(design, support) for part in wrap(line, _LINE_WIDTH)]
    return element(
        "svg",
        element("style", text=_STYLE),
        *_heading(design),
        *(
            element("line", css="managed", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=tops["node"] + _BOX, y2=management)
            for box in graph.rows["node"]
            for x in [_middle(box, graph) - _width(graph.rows["node"]) * 0.35]
        ),
        *(_bundle(bundle, graph, tops) for bundle in graph.bundles),
        *_boxes(graph, tops),
        *_labels(graph, tops),
        *_row_titles(design, graph, tops),
        *_management(support, management),
        *(_text(line, "soft", 24, management + _BOX + 28 + _LINE * index) for index, line in enumerate(addresses)),
        xmlns="http://www.w3.org/2000/svg",
        css="network",
        viewBox=f"0 0 {_WIDTH} {management + _BOX + 34 + _LINE * len(addresses)}",
        role="img",
        aria_label=f"network of {design.cluster.name}: {design.topology}",
    )


def _text(text: str, css: str, x: float, y: float) -> Element:
    return element("text", css=css, x=f"{x:.1f}".removesuffix(".0"), y=f"{y:.0f}", text=text)


def _box(css: str | None, x: float, y: float, width: float) -> Element:
    return element("rect", css=css, x=f"{x:.1f}", y=f"{y:.0f}", width=f"{width:.1f}", height=_BOX, rx=4)


def _heading(design: NetworkDesign) -> Iterator[Element]:
    switch = f"{design.num_switches:,} {design.switch.name}" if design.switch else "no switches"
    blocking = "nothing blocks" if design.oversubscription <= 1 else f"oversubscription {design.oversubscription:.3g}"
    yield _text(design.cluster.name, "title", 24, 34)
    yield _text(f"{design.topology}: {switch}, {design.num_cables:,} cables, {blocking}", "soft", 24, 56)


def _middle(box: Box, graph: Graph) -> float:
    step = (_WIDTH - _LEFT - _RIGHT) / len(graph.rows[box.row])
    return _LEFT + (box.index + 0.5) * step


def _width(row: Sequence[Box]) -> float:
    step = (_WIDTH - _LEFT - _RIGHT) / len(row)
    return min(step * 0.82, 110.0)


def _bundle(bundle: Bundle, graph: Graph, tops: dict[str, int]) -> Element:
    x1, x2 = _middle(bundle.start, graph), _middle(bundle.end, graph)
    width = 1.0 + 0.45 * math.log2(bundle.links)
    path = _path(bundle, x1, x2, tops)
    css, colour = _look(bundle)
    line = element("path", css=css, d=path, stroke_width=f"{width:.2f}", stroke=colour)
    return with_title(line, f"{bundle.links:,} links")


def _path(bundle: Bundle, x1: float, x2: float, tops: dict[str, int]) -> str:
    y1, y2 = tops[bundle.start.row], tops[bundle.end.row]
    if y1 == y2:
        up = y1 - 18 - (_ARC - 30) * abs(x2 - x1) / (_WIDTH - _LEFT - _RIGHT)
        return f"M{x1:.1f} {y1}C{x1:.1f} {up:.1f} {x2:.1f} {up:.1f} {x2:.1f} {y2}"
    above, below = (y1 + _BOX, y2) if y1 < y2 else (y1, y2 + _BOX)
    return f"M{x1:.1f} {above}L{x2:.1f} {below}"


def _look(bundle: Bundle) -> tuple[str, str | None]:
    if bundle.end.row in _STORAGE:
        return "storage", None
    if bundle.rail is None:
        return "link", None
    return "rail", _RAILS[bundle.rail % len(_RAILS)]


def _boxes(graph: Graph, tops: dict[str, int]) -> Iterator[Element]:
    for row, boxes in graph.rows.items():
        width, css = _width(boxes), "node" if row == "node" else "store" if row in _STORAGE else ""
        for box in boxes:
            x, y = _middle(box, graph), tops[row]
            yield _box(css or None, x - width / 2, y, width)
            yield _text(box.label, "mid", x, y + _BOX / 2 + 4)


def _labels(graph: Graph, tops: dict[str, int]) -> Iterator[Element]:
    """Numbers on the lines where there are few, else beside them."""
    rows = list(graph.rows)
    for upper, lower in [*pairwise(rows), (rows[0], rows[0])]:
        bundles = [each for each in graph.bundles if {each.start.row, each.end.row} == {upper, lower}]
        y = (tops[upper] + tops[lower] + _BOX) // 2 + 4 if upper != lower else tops[upper] - 14
        if bundles:
            yield _text(_beside(bundles), "soft", 24, y)
        counts = {bundle.links for bundle in bundles}
        if upper != lower and len(bundles) <= _MOST_LABELS and counts != {1} and len(counts) < 4:
            for bundle in bundles:
                x = (_middle(bundle.start, graph) + _middle(bundle.end, graph)) / 2
                yield _text(f"{bundle.links:,}", "halo mid", x, y)


def _beside(bundles: Sequence[Bundle]) -> str:
    total, counts = sum(bundle.links for bundle in bundles), {bundle.links for bundle in bundles}
    if counts == {1}:
        return f"{total:,} links"
    each = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
    return f"{total:,} links, {each} a line"


def _row_titles(design: NetworkDesign, graph: Graph, tops: dict[str, int]) -> Iterator[Element]:
    for row, boxes in graph.rows.items():
        number = sum(box.devices for box in boxes)
        name = {"storage": "storage leaf", "node": "nodes", "switch": "switches"}.get(row, row)
        y = tops[row] + _BOX // 2
        yield _text(f"{number:,} {name}", "row", 24, y - 2)
        yield _text(_about(design, graph, row), "soft", 24, y + 13)


def _about(design: NetworkDesign, graph: Graph, row: str) -> str:
    within = f"{graph.inside[row]:,} links inside boxes" if row in graph.inside else ""
    if row == "node":
        return within or f"{design.nics} NICs each"
    if row in _STORAGE:
        return "64 ports each"
    return within or (f"{design.ports.count} links each" if design.ports else "")


def _management(support: SupportNetworks, y: int) -> Iterator[Element]:
    cables = f"{support.management_cables.value:,.0f} cables to every node, switch and power distribution unit"
    width = _WIDTH - _LEFT - _RIGHT
    yield _box("manage", _LEFT, y, width)
    yield _text(cables, "mid", _LEFT + width / 2, y + _BOX / 2 + 4)
    yield _text(f"{support.management_switches.value:,.0f} management", "row", 24, y + _BOX // 2 - 2)
    yield _text("48 ports each", "soft", 24, y + _BOX // 2 + 13)


def network_dot(design: NetworkDesign, support: SupportNetworks) -> str:
    """Text for `dot -Tsvg`: a rank for each row, the number of links on each edge that has several."""
    graph = network_graph(design, support)
    lines = [f"graph {_quoted(design.cluster.name)} {{", "  node [shape=box];", "  rankdir=TB;"]
    for boxes in graph.rows.values():
        labels = {box: box.label if box.devices > 1 else f"{box.row} {box.label}" for box in boxes}
        names = " ".join(f"{_dot_name(box)} [label={_quoted(label)}];" for box, label in labels.items())
        lines.append(f"  {{ rank=same; {names} }}")
    switches = int(support.management_switches.value)
    lines.append(f"  management [label={_quoted(f'management: {switches} switches')}];")
    lines += [f"  {_dot_edge(bundle)};" for bundle in graph.bundles]
    lines += [f"  {_dot_name(box)} -- management [style=dotted];" for box in graph.rows["node"]]
    label = "\\l".join(_escaped(line) for line in address_lines(design, support))
    lines += [f'  label="{label}\\l";', "  labelloc=b;"] if label else []
    return "\n".join([*lines, "}", ""])


def _dot_name(box: Box) -> str:
    return _quoted(f"{box.row}-{box.index + 1}")


def _dot_edge(bundle: Bundle) -> str:
    """The box of the higher row first, because Graphviz puts the first above the second."""
    ends = (bundle.start, bundle.end)
    upper, lower = ends if bundle.end.row.startswith("storage") else ends[::-1]
    label = f' [label="{bundle.links}"]' if bundle.links > 1 else ""
    return f"{_dot_name(upper)} -- {_dot_name(lower)}{label}"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True, slots=True)
class Box:
    """One device, or several neighbours of a tier."""

    row: str
    index: int
    """Position from left to right, from 0."""
    devices: int
    label: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """All links between two boxes."""

    start: Box
    end: Box
    links: int
    rail: int | None = None
    """Where all of them are of one rail, or of one switch of a star."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Rows from top to bottom and what joins them."""

    rows: dict[str, list[Box]]
    bundles: list[Bundle]
    inside: dict[str, int]
    """Links of a row that join devices in the same box."""


def network_graph(design: NetworkDesign, support: SupportNetworks) -> Graph:
    """The compute fabric and the storage network; every node is on the management network, which needs no lines."""
    links: list[_Link] = [
        (cable.from_device, cable.to_device, _rail(design, cable))
        for cable in cable_plan(design)
        if not cable.from_device.startswith("spare")
    ]
    links += _storage_links(design, support)
    devices = _devices(link[:2] for link in links)
    boxes = {row: _boxes_of(row, devices[row], design) for row in sorted(devices, key=_ROWS.index)}
    spread = {row: [box for box in boxes[row] for _ in range(box.devices)] for row in boxes}
    box_of = {name: box for row in boxes for name, box in zip(devices[row], spread[row], strict=True)}
    joined: Counter[tuple[Box, Box]] = Counter()
    rails: defaultdict[tuple[Box, Box], set[int | None]] = defaultdict(set)
    inside: Counter[str] = Counter()
    for start, end, rail in links:
        pair = box_of[start], box_of[end]
        if pair[0] == pair[1]:
            inside[pair[0].row] += 1
        else:
            joined[pair] += 1
            rails[pair].add(rail)
    bundles = []
    for pair, count in joined.items():
        own = sorted(rail for rail in rails[pair] if rail is not None)
        # The switches of a star have several rails; the first one stands for them.
        is_one = len(own) == 1 or (own and design.topology == "star" and design.copies > 1)
        bundles.append(Bundle(*pair, count, own[0] if is_one else None))
    return Graph(boxes, bundles, dict(inside))


_Link = tuple[str, str, int | None]
"""Two devices, and the rail of their link where it has one."""


def _rail(design: NetworkDesign, cable: Cable) -> int | None:
    """Rail of a NIC's cable, where leaves are by rail."""
    by_rail = design.topology in ("star", "rail-optimised", "rail-only", "multi-plane")
    if not by_rail or not cable.from_device.startswith("node"):
        return None
    nic = int(cable.from_port.removeprefix("nic").partition("/")[0]) - 1
    return nic // (design.nics // design.rails)


def _storage_links(design: NetworkDesign, support: SupportNetworks) -> Iterator[_Link]:
    leaves, spines = int(support.storage_leaves.value), int(support.storage_spines.value)
    pairs = leaves // 2
    for node in range(design.nodes):
        pair = node * pairs // design.nodes
        yield from ((f"node{node + 1}", f"storage{2 * pair + side + 1}", None) for side in range(2))
    for leaf in range(leaves if spines else 0):
        yield from ((f"storage{leaf + 1}", f"storagespine{link % spines + 1}", None) for link in range(OTHER_PORTS))


def _devices(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """Names of each row, in order."""
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        for name in pair:
            tier = _parts(name)[0]
            rows["storage spine" if tier == "storagespine" else tier].add(name)
    return {row: sorted(names, key=lambda name: _parts(name)[1:]) for row, names in rows.items()}


def _parts(name: str) -> tuple[str, int, int]:
    match = _DEVICE.fullmatch(name)
    assert match is not None
    return match["tier"], int(match["which"] or 0), int(match["number"])


def _boxes_of(row: str, names: list[str], design: NetworkDesign) -> list[Box]:
    size = _size(row, len(names), design)
    return [
        Box(row, index, len(names[start : start + size]), _label(row, names[start : start + size], design))
        for index, start in enumerate(range(0, len(names), size))
    ]


def _size(row: str, count: int, design: NetworkDesign) -> int:
    """Devices in a box."""
    if count <= {"node": _MOST_NODES, "storage spine": _BOXES[0]}.get(row, _MOST_SWITCHES):
        return 1
    if row.startswith("storage"):
        return -(-count // _BOXES[0])
    fabric = design.fabric
    if isinstance(fabric, GroupNetwork) and row in ("node", "leaf", "switch", "spine"):
        together = -(-fabric.count // _BOXES[0])
        return -(-fabric.group_endpoints // design.nics) * together if row == "node" else together * fabric.members
    units = design.sets if design.sets > 1 else count
    boxes = next((number for number in _BOXES if units % number == 0), _BOXES[0])
    return -(-count // boxes)


def _label(row: str, names: list[str], design: NetworkDesign) -> str:
    if len(names) > 1:
        noun = {"node": "nodes", "switch": "switches", "storage": "leaf"}.get(row, row.removeprefix("storage "))
        return f"{len(names):,} {noun}"
    _, part, number = _parts(names[0])
    if design.topology == "rail-optimised" and row == "leaf":
        return f"{number}, rail {design.set_and_rail(number - 1)[1] + 1}"
    if design.topology == "star" and row == "switch" and design.copies > 1:
        together = -(-design.rails // design.copies)
        first, last = (number - 1) * together + 1, min(number * together, design.rails)
        return f"{number}, rail {first}" if first == last else f"{number}, rails {first} to {last}"
    return f"{part}.{number}" if part else f"{number}"
