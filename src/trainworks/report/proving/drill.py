"""A drill: a row per fault, and whether the record is that of a run without faults."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainworks.measure.drill.drill_report import DrillReport, Soak
from trainworks.measure.drill.outcome import FaultOutcome
from trainworks.report.rendering.document import Block, Column, Document, Section, Styled, Table, Text, left, right
from trainworks.units import format_bytes, format_duration


def document(report: DrillReport) -> Document:
    """Faults, the checks of the record, and figures of a soak."""
    about: list[Block] = [
        Text(f"run     {report.run}"),
        Text(f"nodes   {report.nodes}, steps {report.steps:,}, seed {report.seed}, ended {report.state}"),
    ]
    columns: list[Column] = [*left("fault"), *right("step"), *right("noticed"), *left("decision", wrap=True)]
    columns += [*right("back after"), *right("steps lost"), *left("loss", wrap=True)]
    table = Table(columns, [_row(each) for each in report.outcomes])
    checks = report.checks
    facts: list[Block] = [
        Text(f"{checks.steps_missing} steps missing, {checks.steps_twice} trained twice by attempts that count")
    ]
    sections = [Section("", about), Section("Faults", [table]), Section("Record", facts)]
    if report.soak is not None:
        sections.append(Section("Soak", _soak(report.soak)))
    badge = None if report.is_survived else Styled("not survived", "bad")
    return Document("Drill", "drill", sections, badge=badge)


def _row(each: FaultOutcome) -> list[str]:
    if each.skipped:
        return [each.fault, "", "", f"skipped: {each.skipped}", "", "", ""]
    return [
        each.fault,
        f"{each.step:,}",
        "" if each.noticed_s is None else format_duration(each.noticed_s),
        each.decision,
        "never" if each.back_s is None else format_duration(each.back_s),
        f"{each.steps_lost:,}",
        _loss(each.loss_difference),
    ]


def _loss(difference: float | None) -> str:
    if difference is None:
        return "not compared"
    return "identical" if difference == 0 else f"differs by {difference:.1e}"


def _soak(soak: Soak) -> list[Block]:
    return [
        Text(f"{soak.faults} faults in {format_duration(soak.seconds)}"),
        Text(f"goodput {soak.goodput:.1%}, simulated {soak.simulated_goodput:.1%}"),
        Text(f"open files {soak.files_before} at first, {soak.files_after} at last"),
        Text(f"memory {format_bytes(soak.bytes_before)} at first, {format_bytes(soak.bytes_after)} at last"),
    ]


def to_json(report: DrillReport) -> dict[str, Any]:
    """Every outcome, times in seconds."""
    return {**asdict(report), "survived": report.is_survived}
