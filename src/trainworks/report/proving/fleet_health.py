"""The nodes of a fleet that fail a check or differ from the others."""

from __future__ import annotations

from typing import Any

from trainworks.measure.health.fleet import FleetHealth
from trainworks.report.rendering.document import Document, Section, Table, Text, left


def document(fleet: FleetHealth) -> Document:
    """Failing nodes, those that failed often under earlier jobs, then the odd ones out."""
    failing, odd = fleet.failing, fleet.odd
    summary = f"{len(fleet.nodes)} nodes: {len(failing)} fail, {len({n for each in odd for n in each.nodes})} differ"
    failed = [[node.name, complaint] for node in failing for complaint in node.failed]
    worn = [[node.name, node.history] for node in fleet.nodes if node.history]
    differing = [
        [each.fact, each.value or "not reported", each.usual or "no value in most nodes", ", ".join(each.nodes)]
        for each in odd
    ]
    return Document(
        "Health of a fleet",
        "health",
        [
            Section("", [Text(summary)]),
            Section("Failing", [Table(left("node", "found", wrap=True), failed)] if failed else []),
            Section("Failed under earlier jobs", [Table(left("node", "found", wrap=True), worn)] if worn else []),
            Section(
                "Odd ones out",
                [Table(left("fact", "value", "most nodes", "nodes", wrap=True), differing)] if differing else [],
            ),
        ],
    )


def to_json(fleet: FleetHealth) -> dict[str, Any]:
    """Nodes with what failed now and under earlier jobs, and the facts in which nodes differ."""
    return {
        "nodes": [
            {"node": node.name, "failed": list(node.failed), "history": node.history, "facts": dict(node.facts)}
            for node in fleet.nodes
        ],
        "odd": [
            {"fact": each.fact, "usual": each.usual, "value": each.value, "nodes": list(each.nodes)}
            for each in fleet.odd
        ],
    }
