"""What trackers have got of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainworks.observe.trackers.report import TrackReport
from trainworks.report.rendering.document import Document, Section, Table, left


def document(report: TrackReport) -> Document:
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


def to_json(report: TrackReport) -> dict[str, Any]:
    """The run and the content of each tracker."""
    return asdict(report)
