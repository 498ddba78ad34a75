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


def copies_document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per copy in another place.

    Args:
        rows: place, step, bytes, time of saving, problem, and the entries that were loaded; unknown values are None.
        now: the time, in seconds since the epoch.
    """
    columns = left("place", "step", "size", "saved", "loaded", "problem", wrap=True)
    return Document("Copies", "copies", [Section("", [Table(columns, [_copy_row(row, now) for row in rows])])])


def _copy_row(row: Mapping[str, Any], now: float) -> list[str]:
    step = f"{row['step']:,}" if row["step"] is not None else ""
    loaded = f"{row['entries']:,} entries" if row["entries"] is not None else ""
    return [row["place"], step, *_size_and_age(row, now), loaded, row["problem"] or ""]


def _size_and_age(row: Mapping[str, Any], now: float) -> list[str]:
    size = format_bytes(row["bytes"]) if row["bytes"] is not None else ""
    return [size, f"{format_duration(max(0.0, now - row['saved_at']))} ago" if row["saved_at"] is not None else ""]


def _row(row: Mapping[str, Any], now: float) -> list[str]:
    return [f"{row['step']:,}", *_size_and_age(row, now), row["layout"] or "", row["problem"] or ""]
