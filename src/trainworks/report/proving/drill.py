"""A drill: a row per fault, and whether the record is that of a run without faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from trainworks.measure.drill.drill_report import DrillReport, Soak
from trainworks.measure.drill.outcome import FaultOutcome
from trainworks.report.rendering.document import Block, Column, Document, Section, Styled, Table, Text, left, right
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_bytes, format_duration


@build_document.register
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
    loss = "not compared" if each.loss_difference is None else f"differs by {each.loss_difference:.1e}"
    return [
        each.fault,
        f"{each.step:,}",
        "" if each.noticed_s is None else format_duration(each.noticed_s),
        f"{each.decision}; {each.problem}" if each.problem else each.decision,
        "never" if each.back_s is None else format_duration(each.back_s),
        f"{each.steps_lost:,}",
        "identical" if each.loss_difference == 0 else loss,
    ]


def _soak(soak: Soak) -> list[Block]:
    lines = [f"{soak.faults} faults in {format_duration(soak.seconds)}"]
    if (found := soak.goodput) is not None:
        points = 100 * (found.simulated - found.measured)
        lines.append(
            f"goodput {found.measured:.1%}, simulated {found.simulated:.1%} ({found.low:.1%} .. {found.high:.1%}), "
            f"{points:+.1f} points"
        )
    if soak.usage:
        (processes, files, memory) = (soak.first_and_last(field) for field in ("processes", "files", "resident_bytes"))
        verdict = {True: "flat", False: "grew", None: "too few samples to compare"}[soak.is_flat]
        lines += [
            f"first and last third of {len(soak.usage)} samples: {verdict}",
            f"processes {processes[0]:g}, then {processes[1]:g}",
            f"open files {files[0]:g}, then {files[1]:g}",
            f"memory {format_bytes(memory[0])}, then {format_bytes(memory[1])}",
        ]
    return [Text(line) for line in lines]


@to_json.register
def _(report: DrillReport) -> Mapping[str, object]:
    """Every outcome, times in seconds; for a soak also its goodput, and whether files and memory are flat."""
    written = {**asdict(report), "survived": report.is_survived}
    if (soak := report.soak) is not None:
        written["soak"]["is_flat"] = soak.is_flat
        if soak.goodput is not None:
            written["soak"]["goodput"] |= {"measured": soak.goodput.measured, "is_predicted": soak.goodput.is_predicted}
    return written
