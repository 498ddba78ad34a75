"""A network as a Graphviz graph, with the boxes and lines of the drawing."""

from __future__ import annotations

from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.support import SupportNetworks
from trainworks.report.network_graph import Box, Bundle, network_graph


def network_dot(design: NetworkDesign, support: SupportNetworks) -> str:
    """Text for `dot -Tsvg`: a rank for each row, the number of links on each edge that has several.

    Args:
        design: the compute fabric.
        support: storage and management of the same nodes.
    """
    graph = network_graph(design, support)
    lines = [f"graph {_quoted(design.cluster.name)} {{", "  node [shape=box];", "  rankdir=TB;"]
    for boxes in graph.rows.values():
        names = " ".join(f"{_name(box)} [label={_quoted(_label(box))}];" for box in boxes)
        lines.append(f"  {{ rank=same; {names} }}")
    switches = int(support.management_switches.value)
    lines.append(f"  management [label={_quoted(f'management: {switches} switches')}];")
    lines += [f"  {_edge(bundle)};" for bundle in graph.bundles]
    lines += [f"  {_name(box)} -- management [style=dotted];" for box in graph.rows["node"]]
    return "\n".join([*lines, "}", ""])


def _name(box: Box) -> str:
    return _quoted(f"{box.row}-{box.index + 1}")


def _label(box: Box) -> str:
    return box.label if box.devices > 1 else f"{box.row} {box.label}"


def _edge(bundle: Bundle) -> str:
    """The box of the higher row first, because Graphviz puts the first above the second."""
    ends = (bundle.start, bundle.end)
    upper, lower = ends if bundle.end.row.startswith("storage") else ends[::-1]
    label = f' [label="{bundle.links}"]' if bundle.links > 1 else ""
    return f"{_name(upper)} -- {_name(lower)}{label}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
