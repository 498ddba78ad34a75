"""Judgements of runs: the causes of lost time, each with its evidence and remedy, and two runs side by side."""

from __future__ import annotations

from collections.abc import Iterator

from trainworks.observe.diagnosis.lost_time import Diagnosis, LostTime
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    FULL_BLOCK,
    Block,
    Bullets,
    Column,
    Document,
    Fact,
    Facts,
    Preformatted,
    Row,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.plots import Bars, Chart, Curve
from trainworks.report.rendering.renderer import build_document, model_json, to_json
from trainworks.report.runs.part import MISSING, format_amount, format_percent, format_relative, printable
from trainworks.report.runs.run_comparison import RunComparison
from trainworks.report.wording import amount_bar
from trainworks.units import format_duration, format_usd

_BAR_WIDTH = 20


to_json.register(Diagnosis, model_json)


@build_document.register
def document(diagnosis: Diagnosis) -> Document:
    """What can be mended, by the seconds that it gains, and the start on a line of its own."""
    causes = diagnosis.causes
    heading: list[Block] = [Facts(_figures(diagnosis), figures=True)]
    if causes:
        columns = [Column("cause"), *right("lost", "share", "gain"), Column("", only="text")]
        heading.append(Table(columns, _rows(diagnosis)))
    return Document(
        f"Why {diagnosis.run_id} is slow",
        "diagnosis",
        [
            Section("", heading),
            *(Section(f"{number}. {cause.title}", [*_cause(cause)]) for number, cause in enumerate(causes, start=1)),
            Section("Start-up", [*_cause(diagnosis.start)] if diagnosis.start else []),
        ],
        notes=diagnosis.notes,
        badge=Styled(diagnosis.state),
        verdict=diagnosis.verdict,
    )


def _figures(diagnosis: Diagnosis) -> list[Fact]:
    start = diagnosis.start
    beyond = f", {format_duration(start.mendable_s)} more than planned" if start and start.mendable_s else ""
    return [
        Fact("held", format_duration(diagnosis.held_s), "time that the accelerators were held"),
        Fact("lost", format_duration(diagnosis.lost_s), "to the causes below"),
        *(
            []
            if start is None
            else [Fact("start-up", format_duration(start.lost_s), f"once, to the first step{beyond}")]
        ),
        Fact("runtime goodput", format_percent(diagnosis.runtime_goodput), "productive / held time"),
        Fact("step", format_amount(diagnosis.step_s, "s"), _of_a_step(diagnosis)),
    ]


def _of_a_step(diagnosis: Diagnosis) -> str:
    """The predictions that a measured step is held against."""
    text = f"median, {diagnosis.num_steps:,} steps"
    if diagnosis.planned_step_s is not None:
        text += f"; planned {format_duration(diagnosis.planned_step_s)}"
    if diagnosis.anchor is not None and diagnosis.anchor.found is not None:
        text += f", anchored {format_duration(diagnosis.anchor.found.step_s)}"
    return text


def _rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows: list[tuple[str, float, str]] = []
    for each in diagnosis.causes:
        gain = format_duration(each.mendable_s) if each.mendable_s else "none"
        rows.append((each.name, each.lost_s, "?" if each.saves_s is None else gain))
    rows += [("smaller causes", diagnosis.small_s, "")] if diagnosis.small_s > 0 else []
    whole = diagnosis.held_s
    return [
        [name, format_duration(lost), format_percent(lost / whole), gain, FULL_BLOCK * round(_BAR_WIDTH * lost / whole)]
        for name, lost, gain in rows
    ]


def _cause(cause: LostTime) -> Iterator[Block]:
    yield Bullets([printable(each) for each in cause.evidence])
    gain = f"Predicted gain: {format_duration(cause.saves_s)} of the recorded time." if cause.saves_s else ""
    yield Text(" ".join(filter(None, (f"{cause.action}.", cause.remedy, gain))))
    if cause.setting:
        yield Preformatted(f"  {cause.setting}")


to_json.register(RunComparison, model_json)


@build_document.register
def comparison_document(comparison: RunComparison) -> Document:
    """Finding, settings, figures and losses; sections without content are left out."""
    first, second = comparison.runs
    states = [Fact(run, state) for run, state in zip(comparison.runs, comparison.states, strict=True)]
    heading: list[Block] = [Text(f"{comparison.finding[:1].upper()}{comparison.finding[1:]}.", "bold")]
    sections = [
        Section("", [*heading, Facts(states)]),
        Section("Settings that differ", _settings_table(comparison)),
        Section("Figures", _figures_table(comparison)),
        Section("Loss", _loss(comparison)),
    ]
    return Document(f"{first} and {second}", "comparison", sections, shows_title=True)


def _settings_table(comparison: RunComparison) -> list[Block]:
    if not comparison.settings:
        return [Text("none", "dim")]
    rows = [[each.name, each.first or MISSING, each.second or MISSING] for each in comparison.settings]
    return [Table(left("setting", *comparison.runs, wrap=True), rows)]


def _figures_table(comparison: RunComparison) -> list[Block]:
    rows = []
    for each in comparison.figures:
        if each.first or each.second:
            name = Styled(each.name, swatch=each.name) if each.is_term else Styled(each.name, "bold")
            amounts = [format_amount(each.first, each.unit), format_amount(each.second, each.unit)]
            rows.append(Row([name, *amounts, format_relative(each.relative)], is_term=each.is_term))
    if any(amount is not None for amount in comparison.usd):
        rows.append(Row(["cost", *(MISSING if usd is None else format_usd(usd) for usd in comparison.usd), ""]))
    terms = [each for each in comparison.figures if each.is_term]
    bars = [
        amount_bar(comparison.runs[0], {each.name: each.first for each in terms}, "s"),
        amount_bar(comparison.runs[1], {each.name: each.second for each in terms}, "s"),
    ]
    columns = [Column(""), *right(*comparison.runs, "difference")]
    return [Bars(bars, has_key=False, is_compact=True), Table(columns, rows, ruled=True)]


def _loss(comparison: RunComparison) -> list[Block]:
    points = [point for curve in comparison.curves for point in curve]
    if not points:
        return []
    steps, values = [step for step, _ in points], [value for _, value in points]
    chart = Chart(
        "Loss of both runs",
        x=build_axis(0, max(steps), num_ticks=7, whole=True),
        y=build_axis(min(values), max(values)),
        x_unit="steps",
        curves=[Curve("line", comparison.curves[0]), Curve("lost-line", comparison.curves[1])],
        names=[("key", comparison.runs[0]), ("key lost-key", comparison.runs[1])],
    )
    rows = [[f"{step:,}", f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}"] for step, a, b in comparison.losses]
    table = Table(right("step", *comparison.runs, "difference"), rows)
    return [chart, *([table] if rows else [Text("no step is recorded by both runs", "dim")])]
