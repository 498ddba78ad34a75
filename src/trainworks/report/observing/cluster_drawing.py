"""A drawing of the nodes of a cluster below their switches: accelerators that jobs hold, and nodes that are ill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

from trainworks.backends.backend import NodeStatus
from trainworks.report.rendering.svg import element, with_title

_COLUMNS, _BOX, _GAP = 8, 112, 10
_HEAD, _HEIGHT = 26, 58
_CELL, _CELLS = 11, 8
_MOST_CELLS = 16
"""Accelerators, or cores of a node without any, that are drawn one by one; of more the share is drawn."""


def cluster_picture(nodes: Sequence[NodeStatus]) -> Element | None:
    """The picture: a switch over its nodes, and a cell per accelerator; None without nodes."""
    if not nodes:
        return None
    groups = groupby(sorted(nodes, key=lambda node: node.switch or ""), key=lambda node: node.switch)
    parts, top = list[Element](), 0
    for switch, members in groups:
        found = list(members)
        parts += _group(switch, found, top)
        top += _height(found, switch) + 2 * _GAP
    width = min(_COLUMNS, max(len(nodes), 3)) * (_BOX + _GAP) - _GAP
    about = f"{len(nodes)} nodes: {', '.join(_words(node) for node in nodes[:64])}"
    size = f"0 0 {width} {top - 2 * _GAP}"
    return element("svg", *parts, css="cluster", viewBox=size, width=width, role="img", aria_label=about)


def _height(nodes: Sequence[NodeStatus], switch: str | None) -> int:
    rows = -(-len(nodes) // _COLUMNS)
    return rows * (_HEIGHT + _GAP) - _GAP + (0 if switch is None else _HEAD + _GAP)


def _group(switch: str | None, nodes: Sequence[NodeStatus], top: int) -> Iterator[Element]:
    """A switch with a cable down each column of its nodes, and the nodes."""
    columns = min(_COLUMNS, len(nodes))
    first = top
    if switch is not None:
        first += _HEAD + _GAP
        for column in range(columns):
            x, below = column * (_BOX + _GAP) + _BOX / 2, (len(nodes) - 1 - column) // _COLUMNS
            yield element(
                "line", css="cable", x1=x, x2=x, y1=top + _HEAD / 2, y2=first + below * (_HEIGHT + _GAP) + _HEIGHT / 2
            )
        width = columns * (_BOX + _GAP) - _GAP
        yield element("rect", css="switch", x=0, y=top, width=width, height=_HEAD, rx=4)
        yield element("text", css="name", x=width / 2, y=top + 17, text_anchor="middle", text=switch)
    for index, node in enumerate(nodes):
        row, column = divmod(index, _COLUMNS)
        yield _node(node, column * (_BOX + _GAP), first + row * (_HEIGHT + _GAP))


def _node(node: NodeStatus, x: int, y: int) -> Element:
    is_well = node.state in ("free", "mixed", "taken")
    box = element("rect", css="node" if is_well else "node is-ill", x=x, y=y, width=_BOX, height=_HEIGHT, rx=4)
    name = node.name if len(node.name) <= 15 else f"{node.name[:14]}…"
    label = element("text", css="name", x=x + 8, y=y + 17, text=name)
    return with_title(element("g", box, label, *_cells(node, x + 8, y + 26)), _words(node))


def _cells(node: NodeStatus, x: int, y: int) -> Iterator[Element]:
    """A square per accelerator, the held ones first; of many, or of cores, a bar."""
    count, taken = node.accelerators, node.accelerators_taken
    if 0 < count <= _MOST_CELLS:
        for index in range(count):
            row, column = divmod(index, _CELLS)
            css = "held" if index < taken else "rest"
            step = _CELL + 1.5
            yield element("rect", css=css, x=x + column * step, y=y + row * step, width=_CELL, height=_CELL, rx=2)
        return
    share = taken / count if count else node.cores_taken / node.cores if node.cores else 0.0
    width = _BOX - 16
    yield element("rect", css="rest", x=x, y=y, width=width, height=_CELL, rx=2)
    yield element("rect", css="held", x=x, y=y, width=round(width * share, 1), height=_CELL, rx=2)


def _words(node: NodeStatus) -> str:
    """The node in words."""
    held = (
        f"{node.accelerators_taken} of {node.accelerators} {node.accelerator or 'accelerators'}"
        if node.accelerators
        else f"{node.cores_taken:g} of {node.cores:g} cores"
    )
    why = f", {node.reason}" if node.reason else ""
    return f"{node.name} {node.state}, {held} held{why}"
