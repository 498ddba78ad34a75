"""Runs of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainworks.report.rendering.document import Document, Section, Table, left
from trainworks.units import format_duration


def document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per run.

    Args:
        rows: run, state, step, loss, time of the last change, and cause; unknown values are None.
        now: the time, in seconds since the epoch.
    """
    columns = left("run", "state", "step", "loss", "last change", "cause", wrap=True)
    return Document("Runs", "runs", [Section("", [Table(columns, [_row(row, now) for row in rows])])])


def _row(row: Mapping[str, Any], now: float) -> list[str]:
    loss = f"{row['loss']:.4f}" if row["loss"] is not None else ""
    step = f"{row['step']:,}" if row["step"] is not None else ""
    age = format_duration(max(0.0, now - row["updated_at"])) + " ago" if row["updated_at"] else ""
    return [row["run"], row["state"], step, loss, age, row["cause"] or ""]
