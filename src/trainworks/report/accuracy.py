"""Predictions of finished runs over time, with their intervals and errors."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainworks.plan.score import AccuracyReport, Errors
from trainworks.record.measured.past_run import FinishedRun
from trainworks.report.rendering.document import Cell, Column, Document, Facts, Row, Section, Styled, Table, Text, right
from trainworks.units import format_step_time

_NONE = "no run has finished yet; `trainworks run` and `trainworks submit` remember each one that does"


def document(report: AccuracyReport) -> Document:
    """Every run with its prediction, and the errors by kind of machine."""
    if not report.runs:
        return Document("Accuracy of your plans", "accuracy", [Section("", [Text(_NONE)])])
    columns = [Column("finished"), Column("run"), *right("planned", "80 %", "measured", "error", "learned from")]
    caption = "error: planned / measured - 1; learned from: finished runs that the plan had learned from"
    table = Table([*columns, Column("layout", wrap=True)], [_row(run) for run in report.runs], caption=caption)
    facts = {machine: _summary(errors) for machine, errors in report.machines.items()}
    if len(facts) > 1 and report.errors is not None:
        facts["all machines"] = _summary(report.errors)
    return Document(
        "Accuracy of your plans", "accuracy", [Section("", [Facts.from_mapping(facts)]), Section("", [table])]
    )


def _row(run: FinishedRun) -> Row:
    error: Cell = f"{100 * run.error:+.1f} %"
    cells: list[Cell] = [
        f"{datetime.fromtimestamp(run.finished_at, UTC):%Y-%m-%d %H:%M}",
        Path(run.run).name,
        format_step_time(run.planned_s),
        f"{format_step_time(run.low_s)} to {format_step_time(run.high_s)}",
        format_step_time(run.measured_s),
        error if run.is_inside else Styled(f"{100 * run.error:+.1f} %", "warning"),
        f"{run.learned_from}",
        run.layout,
    ]
    return Row(cells)


def _summary(errors: Errors) -> str:
    inside = f", {errors.coverage:.0%} inside their 80 % interval" if errors.coverage is not None else ""
    runs = f"{errors.n:,} run{'s' if errors.n > 1 else ''}"
    return f"{runs}: error {errors.mape:.1%} on average, median {errors.median:.1%}, bias {errors.bias:+.1%}{inside}"


def to_json(report: AccuracyReport) -> dict[str, Any]:
    """The runs, and the errors by kind of machine."""
    return {
        "runs": [run.model_dump(exclude={"format_version"}) | {"error": run.error} for run in report.runs],
        "machines": {machine: asdict(errors) for machine, errors in report.machines.items()},
        "errors": asdict(report.errors) if report.errors else None,
    }
