"""Nodes as a page: what jobs hold of them, and how busy and how healthy the machine of the server is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainworks.backends.backend import NodeStatus
from trainworks.host.machine_load import MachineLoad
from trainworks.measure.health.node_health import NodeHealth
from trainworks.report.proving.health import document as health_document
from trainworks.report.rendering.document import Details, Document, Section
from trainworks.report.runs.nodes import nodes_document
from trainworks.report.runs.overview import machine_blocks


def document(nodes: Sequence[NodeStatus], load: MachineLoad, health: NodeHealth) -> Document:
    """Nodes of the queue, then load and health of this machine; checks without a finding are folded away."""
    queue = nodes_document(nodes)
    about, found, *others = health_document(health).sections
    rest = [Details(section.title, section.blocks) for section in others if section.blocks]
    return replace(
        queue,
        sections=[
            *queue.sections,
            Section(f"Load of {health.node}", machine_blocks(load)),
            Section(f"Health of {health.node}", [*about.blocks[1:], *found.blocks, *rest]),
        ],
    )
