"""Checkpoints of a run, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainworks.report.rendering.document import Document, Section, Table, left
from trainworks.units import format_bytes, format_duration


def document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per checkpoint.

    Args:
        rows: step, folder, bytes, time of saving, layout and problem; unknown values are None.
        now: the time, in seconds since the epoch.
    """
    columns = left("step", "size", "saved", "layout", "problem", wrap=True)
    return Document("Checkpoints", "checkpoints", [Section("", [Table(columns, [_row(row, now) for row in rows])])])


def _row(row: Mapping[str, Any], now: float) -> list[str]:
    size = format_bytes(row["bytes"]) if row["bytes"] is not None else ""
    age = f"{format_duration(max(0.0, now - row['saved_at']))} ago" if row["saved_at"] is not None else ""
    return [f"{row['step']:,}", size, age, row["layout"] or "", row["problem"] or ""]
