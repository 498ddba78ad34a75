"""A benchmark: what differs from its peers, then every figure; and the verdicts on one, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from trainworks.measure.bench.bench_report import BenchReport
from trainworks.measure.bench.bench_verdicts import BenchVerdicts
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.outliers import BenchOutlier
from trainworks.measure.bench.verdict import BenchVerdict, Judged, unit_of
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Column,
    Document,
    Row,
    Section,
    Style,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_duration, format_quantity

_TITLES = {
    Quantity.GEMM: "Compute",
    Quantity.MEMORY_BANDWIDTH: "Memory",
    Quantity.DEVICE_MEMORY_BANDWIDTH: "Memory",
    Quantity.HOST_LINK: "Memory",
    Quantity.LINK_BANDWIDTH: "Links",
    Quantity.LINK_LATENCY: "Links",
    Quantity.STORAGE_READ: "Storage",
    Quantity.STORAGE_WRITE: "Storage",
    Quantity.STORAGE_OPERATIONS: "Storage",
    Quantity.METADATA_OPERATIONS: "Storage",
}
_STYLES: dict[BenchVerdict, Style] = {
    BenchVerdict.IMPOSSIBLE: "bad",
    BenchVerdict.FAIL: "bad",
    BenchVerdict.WEAK: "warning",
    BenchVerdict.BUSY: "warning",
    BenchVerdict.PASS: "good",
    BenchVerdict.NO_EXPECTATION: "dim",
}
"""The worst verdicts first."""
_MOST_LINKS = 20
"""Links in the table of a terminal; JSON has all."""


@build_document.register
def document(report: BenchReport) -> Document:
    """Outliers, then a table per kind, then what was not measured."""
    nodes = ", ".join(record.name for record in report.records)
    tools = sorted({each.tool for each in report.measurements})
    about = [Text(f"run       {report.run}"), Text(f"nodes     {nodes}"), Text(f"tools     {'; '.join(tools)}")]
    if not report.is_complete:
        about.append(Text(f"incomplete: continue it with `trainworks bench --resume {report.run}`", style="warning"))
    if report.expected:
        about.append(Text(f"expected  {report.expected}"))
    counts = Counter(each.verdict.value for each in report.judged)
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in BenchVerdict if counts[verdict])
    about.append(Text(f"verdicts  {verdicts or 'none'}"))
    if report.learned:
        about.append(Text(f"learned   plans of this kind of cluster use the measured rates: {report.learned}"))
    about += [Text(f"lacking   {each}", style="bad") for each in report.lacking]
    about += [
        Text(
            f"busy      other programs used {record.others_share:.0%} of the cores of {record.name} meanwhile: "
            "no verdict on what they may have lowered",
            style="warning",
        )
        for record in report.records
        if record.is_busy
    ]
    sections = [
        Section("", about),
        Section("Outliers", [_outliers(report.outliers)] if report.outliers else []),
        Section("Verdicts", [_verdicts(report.wrong)] if report.wrong else []),
    ]
    sections += [Section(title, _figures(report, title)) for title in dict.fromkeys(_TITLES.values())]
    sections.append(
        Section("Collectives", [block for each in _group_by_operation(report) for block in _collectives(*each)])
    )
    if (training := report.training) is not None:
        step = "" if training.step_s is None else f"{format_duration(training.step_s)} a step"
        row: Row = Row([Styled(training.verdict.value, _STYLES[training.verdict]), training.run, step, training.reason])
        columns = [*left("verdict", "run"), *right("measured"), Column("plan", wrap=True)]
        sections.append(Section("Training", [Table(columns, [row])]))
    skipped = [[part, reason, ", ".join(names)] for part, reason, names in report.skipped]
    sections.append(
        Section("Not measured", [Table(left("part", "reason", "nodes", wrap=True), skipped)] * bool(skipped))
    )
    badge = None if report.is_accepted else Styled("not accepted", "bad")
    return Document("Benchmark", "bench", sections, badge=badge, verdict=report.verdict)


@to_json.register
def _(report: BenchReport) -> Mapping[str, object]:
    """Every figure in base units with its conditions, the outliers, and the record of each node."""
    return {
        "run": report.run,
        "complete": report.is_complete,
        "expected": report.expected,
        "learned": str(report.learned) if report.learned else None,
        "accepted": report.is_accepted,
        "lacking": report.lacking,
        "measurements": [
            {
                **asdict(each.measurement),
                "verdict": each.verdict.value,
                "reason": each.reason,
                "expected": each.expected,
                "bound": asdict(each.bound) if each.bound else None,
            }
            for each in report.judged
        ],
        "outliers": [
            {
                "subject": each.subject,
                "measurement": asdict(each.measurement),
                "median": each.usual,
                "share": each.share,
                "modified_z_score": each.score if each.score != float("inf") else None,
                "cables": list(each.cables),
            }
            for each in report.outliers
        ],
        "training": report.training.model_dump(mode="json") if report.training else None,
        "skipped": [{"part": part, "reason": reason, "nodes": names} for part, reason, names in report.skipped],
        "nodes": [
            {
                "name": record.name,
                "host": record.host.model_dump(mode="json"),
                "tools": dict(record.tools),
                "others_share": record.others_share,
            }
            for record in report.records
        ],
    }


def _outliers(outliers: Sequence[BenchOutlier]) -> Table:
    rows = [
        Row(
            [
                Styled(each.subject, "bad"),
                each.measurement.name,
                _value(each.measurement),
                _value(each.measurement, each.usual),
                f"{each.share:.0%}",
                "; ".join(each.cables),
            ]
        )
        for each in outliers
    ]
    columns = [*left("subject", "figure"), *right("measured", "median", "of it"), Column("cable", wrap=True)]
    return Table(columns, rows, "A node instead of its links: most of its links are slow.")


def _verdicts(wrong: Sequence[Judged]) -> Table:
    rows = [
        Row(
            [
                Styled(each.verdict.value, "warning" if each.verdict is BenchVerdict.WEAK else "bad"),
                each.measurement.subject,
                each.measurement.name,
                _value(each.measurement),
                each.reason,
            ]
        )
        for each in wrong
    ]
    return Table([*left("verdict", "subject", "figure"), *right("measured"), Column("why", wrap=True)], rows)


def _figures(report: BenchReport, title: str) -> list[Table]:
    found = [each for each in report.judged if _TITLES.get(each.measurement.quantity) == title]
    all_of = [each.measurement for each in found]
    found = [each for each in found if _is_telling(each.measurement, all_of)]
    if title == "Links" and len(found) > _MOST_LINKS:
        found = sorted(found, key=lambda each: (each.measurement.quantity, each.measurement.value))[:_MOST_LINKS]
    rows = [_row(each) for each in found]
    columns = [*left("subject", "figure", wrap=True), *right("measured", "expected"), *left("verdict")]
    return [Table(columns, rows)] if rows else []


def _row(judged: Judged) -> list[str]:
    measurement = judged.measurement
    expected = _value(measurement, judged.expected) if judged.expected else ""
    verdict = "" if judged.verdict is BenchVerdict.NO_EXPECTATION else judged.verdict.value
    return [measurement.subject, measurement.name, _value(measurement), expected, verdict]


def _is_telling(measurement: Measurement, others: Sequence[Measurement]) -> bool:
    """Whether a figure is none of a sweep over sizes, or its latency or its highest bandwidth."""
    if measurement.conditions.get("operation") != "ping_pong":
        return True
    same = [each.value for each in others if each.quantity is measurement.quantity and _key(each) == _key(measurement)]
    return measurement.quantity is Quantity.LINK_LATENCY or measurement.value == max(same)


def _key(measurement: Measurement) -> tuple[object, ...]:
    return (measurement.subject, *(measurement.conditions.get(name) for name in ("operation", "transport")))


def _group_by_operation(report: BenchReport) -> list[tuple[str, list[Measurement]]]:
    found: dict[str, list[Measurement]] = {}
    for each in report.measurements:
        if each.quantity is Quantity.BUS_BANDWIDTH:
            about = f"{each.conditions['operation']} over {each.conditions['transport']}: {each.subject}"
            found.setdefault(about, []).append(each)
    return list(found.items())


def _collectives(about: str, figures: Sequence[Measurement]) -> list[Block]:
    """A row per message size, and the bus bandwidth of every setting side by side."""
    settings = list(dict.fromkeys(str(each.conditions.get("setting", "")) for each in figures))
    cells = {(each.conditions["bytes"], str(each.conditions.get("setting", ""))): each for each in figures}
    rows = []
    for size in sorted({float(each.conditions["bytes"]) for each in figures}):
        first = cells.get((size, settings[0]))
        times = (
            format_quantity(float(first.conditions["seconds"]), "s") if first and "seconds" in first.conditions else ""
        )
        busbw = [_value(cells[size, setting]) if (size, setting) in cells else "" for setting in settings]
        rows.append([format_quantity(size, "bytes"), times, *busbw])
    names = [f"busbw {setting}".removesuffix(" default").rstrip() for setting in settings]
    return [Text(about, style="bold"), Table(right("size", "time", *names), rows)]


def _value(measurement: Measurement, value: float | None = None) -> str:
    return format_quantity(measurement.value if value is None else value, unit_of(measurement.quantity))


@build_document.register
def verdicts_document(verdicts: BenchVerdicts) -> Document:
    """What is wrong, then every figure."""
    counts = {verdict: sum(each.verdict is verdict for each in verdicts.judged) for verdict in _STYLES}
    about = [Text("verdicts  " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))]
    if verdicts.expected:
        about.append(Text(f"expected  {verdicts.expected}"))
    if verdicts.learned:
        about.append(Text(f"plans of this kind of cluster learn from it: {verdicts.learned}"))
    sections = [Section("", about), Section("Figures", [_by_verdict(verdicts.judged)])]
    badge = Styled(f"{len(verdicts.bad)} failed or impossible", "bad") if verdicts.bad else None
    return Document("Verdicts", "bench-verdicts", sections, badge=badge, verdict=verdicts.verdict)


def _by_verdict(judged: Sequence[Judged]) -> Table:
    """A row per figure, the worst verdicts first."""
    rows: list[list[Cell]] = []
    for each in sorted(judged, key=lambda each: list(_STYLES).index(each.verdict)):
        measurement, about = each.measurement, each.measurement.conditions
        words = [str(about[name]) for name in ("precision", "operation", "block", "transport") if name in about]
        size = about.get("bytes")
        words += [format_quantity(size, "bytes")] if isinstance(size, int | float) else []
        figure = " ".join([measurement.quantity.value.replace("_", " "), *words])
        verdict = Styled(each.verdict.value, _STYLES[each.verdict])
        rows.append([verdict, measurement.subject, figure, _value(measurement), each.reason])
    return Table([*left("verdict", "subject", "figure"), *right("measured"), *left("why", wrap=True)], rows)


@to_json.register
def _(verdicts: BenchVerdicts) -> Mapping[str, object]:
    return {
        "expected": verdicts.expected,
        "learned": str(verdicts.learned) if verdicts.learned else None,
        "verdicts": [
            {
                **asdict(each.measurement),
                "verdict": each.verdict.value,
                "reason": each.reason,
                "expected": each.expected,
                "share": each.share,
                "bound": asdict(each.bound) if each.bound else None,
                "slip": each.slip,
            }
            for each in verdicts.judged
        ],
    }
