"""Verdicts on benchmarks: what is impossible or failed first, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainworks.measure.bench.bench_verdicts import BenchVerdicts
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.verdict import BenchVerdict, Judged, unit_of
from trainworks.report.rendering.document import Document, Row, Section, Style, Styled, Table, Text, left, right
from trainworks.units import format_quantity

_STYLES: dict[BenchVerdict, Style] = {
    BenchVerdict.IMPOSSIBLE: "bad",
    BenchVerdict.FAIL: "bad",
    BenchVerdict.WEAK: "warning",
    BenchVerdict.BUSY: "warning",
    BenchVerdict.PASS: "good",
    BenchVerdict.NO_EXPECTATION: "dim",
}


def document(verdicts: BenchVerdicts) -> Document:
    """What is wrong, then every figure."""
    counts = {verdict: sum(each.verdict is verdict for each in verdicts.judged) for verdict in _STYLES}
    about = [Text("verdicts  " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))]
    if verdicts.expected:
        about.append(Text(f"expected  {verdicts.expected}"))
    if verdicts.learned:
        about.append(Text(f"plans of this kind of cluster learn from it: {verdicts.learned}"))
    sections = [Section("", about), Section("Figures", [verdict_table(verdicts.judged)])]
    badge = Styled(f"{len(verdicts.bad)} failed or impossible", "bad") if verdicts.bad else None
    return Document("Verdicts", "bench-verdicts", sections, badge=badge)


def verdict_table(judged: Sequence[Judged]) -> Table:
    """A row per figure, the worst verdicts first."""
    order = list(_STYLES)
    rows = [_row(each) for each in sorted(judged, key=lambda each: order.index(each.verdict))]
    columns = [*left("verdict", "subject", "figure"), *right("measured"), *left("why", wrap=True)]
    return Table(columns, rows)


def to_json(verdicts: BenchVerdicts) -> dict[str, Any]:
    """Every figure in base units with its verdict, bound and expected value."""
    return {
        "expected": verdicts.expected,
        "learned": str(verdicts.learned) if verdicts.learned else None,
        "verdicts": [verdict_json(each) for each in verdicts.judged],
    }


def verdict_json(judged: Judged) -> dict[str, Any]:
    """One figure with its verdict."""
    return {
        **asdict(judged.measurement),
        "verdict": judged.verdict.value,
        "reason": judged.reason,
        "expected": judged.expected,
        "share": judged.share,
        "bound": asdict(judged.bound) if judged.bound else None,
        "slip": judged.slip,
    }


def _row(judged: Judged) -> Row:
    measurement = judged.measurement
    value = format_quantity(measurement.value, unit_of(measurement.quantity))
    verdict = Styled(judged.verdict.value, _STYLES[judged.verdict])
    return Row([verdict, measurement.subject, _figure(measurement), value, judged.reason])


def _figure(measurement: Measurement) -> str:
    about = measurement.conditions
    words = [str(about[name]) for name in ("precision", "operation", "block", "transport") if name in about]
    size = about.get("bytes")
    words += [format_quantity(size, "bytes")] if isinstance(size, int | float) else []
    return " ".join([measurement.quantity.value.replace("_", " "), *words])
