"""Repairs of nodes: the plan, the result, and the record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from trainworks.recover.repairs import RepairEvent, RepairStep
from trainworks.report.rendering.document import Document, Section, Style, Styled, Table, Text, left

_STYLES: dict[RepairStep, Style] = {RepairStep.BACK: "good", RepairStep.OUT: "bad", RepairStep.FAILED: "warning"}


def repairs_document(events: Sequence[RepairEvent]) -> Document:
    """A line for each step."""
    rows: list[list[str | Styled]] = [
        [_time(each), each.node, Styled(each.step, _STYLES.get(each.step, "")), each.detail] for each in events
    ]
    table = Table(left("time (UTC)", "node", "step", "detail", wrap=True), rows) if rows else Text("no repairs", "dim")
    return Document("Repairs", "repair", [Section("", [table])])


def repair_line(event: RepairEvent) -> str:
    """A step in one line."""
    return f"{_time(event)}  {event.node}  {event.step}" + f": {event.detail}" * bool(event.detail)


def _time(event: RepairEvent) -> str:
    return f"{datetime.fromtimestamp(event.t, UTC):%Y-%m-%d %H:%M:%S}"
