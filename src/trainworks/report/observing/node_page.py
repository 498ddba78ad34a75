"""Nodes as a page: a drawing, what jobs hold of them, and how busy and how healthy the machine of the server is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainworks.backends.backend import NodeStatus
from trainworks.host.machine_load import MachineLoad
from trainworks.measure.health.node_health import NodeHealth
from trainworks.report.jobs import nodes_document
from trainworks.report.observing.cluster_drawing import cluster_picture
from trainworks.report.proving.health import document as health_document
from trainworks.report.rendering.document import Details, Document, Section, Text
from trainworks.report.rendering.plots import Drawing
from trainworks.report.runs.overview import machine_blocks

_KEY = "A cell is an accelerator, filled while a job holds it; a dashed node takes no jobs."


def document(nodes: Sequence[NodeStatus], load: MachineLoad, health: NodeHealth) -> Document:
    """Nodes of the queue, then load and health of this machine; checks without a finding are folded away."""
    queue, picture = nodes_document(nodes), cluster_picture(nodes)
    drawing = [] if picture is None else [Section("", [Text(_KEY, "dim"), Drawing(picture)])]
    about, found, *others = health_document(health).sections
    rest = [Details(section.title, section.blocks) for section in others if section.blocks]
    return replace(
        queue,
        sections=[
            *drawing,
            *queue.sections,
            Section(f"Load of {health.node}", machine_blocks(load)),
            Section(f"Health of {health.node}", [*about.blocks[1:], *found.blocks, *rest]),
        ],
    )
