"""What runs leave, as tables and lines: runs of a folder, checkpoints and their copies, profiles, trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainworks.observe.trackers.tracker import TrackReport
from trainworks.record.profile import read_summaries, trace_file
from trainworks.report.rendering.document import Document, Section, Table, left
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_bytes, format_duration


def runs_document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per run, with its state, step, loss, time of the last change, and cause; unknown values are None."""
    cells = []
    for row in rows:
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        age = _age(row["updated_at"] or None, now)
        cells.append([row["run"], row["state"], _count(row["step"]), loss, age, row["cause"] or ""])
    columns = left("run", "state", "step", "loss", "last change", "cause", wrap=True)
    return Document("Runs", "runs", [Section("", [Table(columns, cells)])])


def checkpoints_document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per checkpoint, as `CheckpointFacts.row` has it."""
    cells = [[_count(row["step"]), *_saved(row, now), row["layout"] or "", row["problem"] or ""] for row in rows]
    columns = left("step", "size", "saved", "layout", "problem", wrap=True)
    return Document("Checkpoints", "checkpoints", [Section("", [Table(columns, cells)])])


def copies_document(rows: Sequence[Mapping[str, Any]], now: float) -> Document:
    """A row per copy in another place, as `CopyFacts.row` has it."""
    cells = []
    for row in rows:
        loaded = "" if row["entries"] is None else f"{row['entries']:,} entries"
        cells.append([row["place"], _count(row["step"]), *_saved(row, now), loaded, row["problem"] or ""])
    columns = left("place", "step", "size", "saved", "loaded", "problem", wrap=True)
    return Document("Copies", "copies", [Section("", [Table(columns, cells)])])


def _saved(row: Mapping[str, Any], now: float) -> list[str]:
    return ["" if row["bytes"] is None else format_bytes(row["bytes"]), _age(row["saved_at"], now)]


def _count(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def _age(at: float | None, now: float) -> str:
    return "" if at is None else f"{format_duration(max(0.0, now - at))} ago"


def profile_lines(folder: Path) -> list[str]:
    """Where the time of each rank went, its five longest operators, and its trace."""
    lines = []
    for summary in read_summaries(folder):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.shares().items())
        lines.append(f"rank {summary.rank}: {format_duration(summary.window_s)} = {shares}")
        operators = summary.operators[:5]
        lines += [f"  {format_duration(each.self_s):>8}  {each.calls:>6,} x {each.name}" for each in operators]
        lines.append(f"  {trace_file(folder, summary.rank)}")
    return lines


@build_document.register
def trackers_document(report: TrackReport) -> Document:
    """One line per tracker."""
    rows = [
        [
            each.tracker,
            f"{each.num_points:,} (+{each.new_points:,})",
            f"{each.last_step:,}",
            ", ".join(each.artifacts) or "-",
            "-" if each.registered_step is None else f"step {each.registered_step:,}",
            each.ended or "open",
            each.place,
        ]
        for each in report.trackers
    ]
    columns = left("tracker", "steps (new)", "last step", "artifacts", "model", "end", "where", wrap=True)
    return Document(f"Trackers of {report.run}", "track", [Section("", [Table(columns, rows)])])


to_json.register(TrackReport, asdict)
