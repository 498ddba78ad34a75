"""A drawing of a network as SVG: compute above the nodes, storage and management below; light and dark, no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from xml.etree.ElementTree import Element

from trainworks.plan.network.addresses import address_lines
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import SupportNetworks
from trainworks.report.network_graph import Box, Bundle, Graph, network_graph
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


def network_svg(design: NetworkDesign, support: SupportNetworks) -> str:
    """The whole picture as the text of an SVG file."""
    return f"{markup(network_picture(design, support))}\n"


def network_picture(design: NetworkDesign, support: SupportNetworks) -> Element:
    """The whole picture."""
    graph = network_graph(design, support)
    tops = _tops(graph)
    management = max(tops.values()) + _ROW - 30
    addresses = [part for line in address_lines(design, support) for part in wrap(line, _LINE_WIDTH)]
    height = management + _BOX + 34 + _LINE * len(addresses)
    return element(
        "svg",
        element("style", text=_STYLE),
        *_heading(design),
        *_management_lines(graph, tops, management),
        *(_bundle(bundle, graph, tops) for bundle in graph.bundles),
        *_boxes(graph, tops),
        *_labels(graph, tops),
        *_row_titles(design, graph, tops),
        *_management(support, management),
        *(_text(line, "soft", 24, management + _BOX + 28 + _LINE * index) for index, line in enumerate(addresses)),
        xmlns="http://www.w3.org/2000/svg",
        css="network",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"network of {design.cluster.name}: {design.topology}",
    )


def _text(text: str, css: str, x: float, y: float) -> Element:
    return element("text", css=css, x=f"{x:.1f}".removesuffix(".0"), y=f"{y:.0f}", text=text)


def _box(css: str | None, x: float, y: float, width: float) -> Element:
    return element("rect", css=css, x=f"{x:.1f}", y=f"{y:.0f}", width=f"{width:.1f}", height=_BOX, rx=4)


def _tops(graph: Graph) -> dict[str, int]:
    """Where each row begins; the first has room for the arcs of links within it."""
    first = next(iter(graph.rows))
    arcs = any(bundle.start.row == bundle.end.row == first for bundle in graph.bundles)
    return {row: _HEAD + (_ARC if arcs else 0) + index * _ROW for index, row in enumerate(graph.rows)}


def _heading(design: NetworkDesign) -> Iterator[Element]:
    switch = f"{design.num_switches:,} {design.switch.name}" if design.switch else "no switches"
    blocking = "nothing blocks" if design.oversubscription <= 1 else f"oversubscription {design.oversubscription:.3g}"
    about = f"{design.topology}: {switch}, {design.num_cables:,} cables, {blocking}"
    yield _text(design.cluster.name, "title", 24, 34)
    yield _text(about, "soft", 24, 56)


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


def _between(graph: Graph, upper: str, lower: str) -> list[Bundle]:
    return [bundle for bundle in graph.bundles if {bundle.start.row, bundle.end.row} == {upper, lower}]


def _labels(graph: Graph, tops: dict[str, int]) -> Iterator[Element]:
    """Numbers on the lines where there are few, else beside them."""
    rows = list(graph.rows)
    for upper, lower in [*pairwise(rows), (rows[0], rows[0])]:
        bundles = _between(graph, upper, lower)
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


def _management_lines(graph: Graph, tops: dict[str, int], management: int) -> Iterator[Element]:
    for box in graph.rows["node"]:
        x = _middle(box, graph) - _width(graph.rows["node"]) * 0.35
        yield element("line", css="managed", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=tops["node"] + _BOX, y2=management)


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
        names = " ".join(f"{_dot_name(box)} [label={_quoted(_dot_label(box))}];" for box in boxes)
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


def _dot_label(box: Box) -> str:
    return box.label if box.devices > 1 else f"{box.row} {box.label}"


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
