"""Nodes that jobs run on: state, free and used resources, jobs."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.backends.backend import NodeStatus
from trainworks.report.rendering.document import Document, Section, Table, left
from trainworks.report.rendering.plots import Bar, Bars, Segment


def nodes_document(nodes: Sequence[NodeStatus]) -> Document:
    """Free and used resources of every node."""
    rows = [
        [
            node.name,
            node.state,
            f"{node.cores_taken:g} of {node.cores:g}",
            _accelerators(node),
            ", ".join(node.jobs),
            node.reason or "",
        ]
        for node in nodes
    ]
    columns = left("node", "state", "cores", "accelerators", "jobs", "why", wrap=True)
    bars = Bars([_use(node) for node in nodes], is_compact=True)
    return Document("Nodes", "nodes", [Section("", [Table(columns, rows)]), Section("In use", [bars], only="page")])


def _use(node: NodeStatus) -> Bar:
    """Share of a node's accelerators, or of its cores if it has none, that jobs hold."""
    taken, whole = (node.accelerators_taken, node.accelerators) if node.accelerators else (node.cores_taken, node.cores)
    share = taken / whole if whole else 0.0
    parts = [Segment("in use", share, f"{share:.0%}", "compute"), Segment("free", 1 - share, "", "idle")]
    return Bar(node.name, _accelerators(node) or f"{node.cores_taken:g} of {node.cores:g} cores", parts)


def _accelerators(node: NodeStatus) -> str:
    if not node.accelerators:
        return ""
    return f"{node.accelerators_taken} of {node.accelerators} {node.accelerator or ''}".strip()
