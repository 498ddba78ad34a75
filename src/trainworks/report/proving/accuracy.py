"""Planned against measured over finished runs: the verdict, a picture, errors by machine and by term, and every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from trainworks.plan.score import AccuracyReport, Errors
from trainworks.record.measured.past_run import FinishedRun
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Row,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.plots import Chart, Curve, Dot, Rule
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.report.runs.part import MISSING
from trainworks.units import format_step_time

_NONE = "no run has finished yet; `trainworks run` and `trainworks submit` remember each one that does"
_NONE_THERE = "no run of these sources has finished with a plan to compare with"
_MOST_NAMED = 5
_MOST_DRAWN = 300


@build_document.register
def document(report: AccuracyReport) -> Document:
    """Figures and the picture, then machines, terms and the farthest runs, then every run, the newest first."""
    title, about = "Planned against measured", ", ".join(report.sources)
    errors = report.errors
    if errors is None:
        none = _NONE_THERE if report.sources else _NONE
        return Document(title, "accuracy", [Section("", [Text(none)])], about=about)
    return Document(
        title,
        "accuracy",
        [
            Section("", [Facts(_figures(report, errors), figures=True)]),
            Section("Error of each run", [*_picture(report.runs)]),
            Section("By kind of machine", [_machines(report)]),
            Section("By term of the step", [*_terms(report)]),
            Section("Farthest from their plans", [_runs(report.worst[:_MOST_NAMED], with_term=True)]),
            Section("Runs, the newest first", [_runs(report.runs[::-1])]),
        ],
        about=about,
        verdict=report.verdict,
    )


def _figures(report: AccuracyReport, errors: Errors) -> list[Fact]:
    inside = MISSING if errors.coverage is None else f"{errors.coverage:.0%}"
    return [
        Fact("runs", f"{errors.n:,}", f"{_date(report.runs[0])[:10]} to {_date(report.runs[-1])[:10]}"),
        Fact("median error", f"{errors.median:.1%}", "size of planned / measured - 1"),
        Fact("nine of ten within", f"{errors.p90:.1%}", ""),
        Fact("bias", f"{errors.bias:+.1%}", "mean; + is planned longer than measured"),
        Fact("inside", inside, "their 80 % interval"),
    ]


def _picture(runs: Sequence[FinishedRun]) -> list[Block]:
    """Error of each run in the order of their ends, with its interval: one that holds crosses the line at zero."""
    drawn = runs[-_MOST_DRAWN:]
    first = len(runs) - len(drawn) + 1
    errors = [100 * run.error for run in drawn]
    y = build_axis(min(0.0, *errors), max(0.0, *errors))
    low, high = y.ticks[0], y.ticks[-1]

    intervals, dots = [], []
    for number, run in enumerate(drawn, start=first):
        ends = (100 * (end / run.measured_s - 1) for end in (run.low_s, run.high_s))
        intervals.append(Curve("trial-line", [(number, min(max(end, low), high)) for end in ends]))
        times = f"{format_step_time(run.planned_s)} planned, {format_step_time(run.measured_s)} measured"
        css = "dot front" if run.is_inside else "dot chosen"
        dots.append(Dot(number, 100 * run.error, f"{Path(run.run).name}: {times}, {100 * run.error:+.1f} %", css))
    chart = Chart(
        f"errors of {len(drawn)} plans",
        x=build_axis(first, first + len(drawn) - 1, num_ticks=7, whole=True),
        y=y,
        x_unit="run",
        y_unit="% planned too long",
        curves=intervals,
        dots=dots,
        rules=[Rule("y", 0.0, "as planned")],
        names=[
            ("dot-key front", "inside its 80 % interval"),
            ("dot-key chosen", "outside"),
            ("key trial-key", "interval"),
        ],
        only="page",
    )
    cut = f"The newest {len(drawn):,} of {len(runs):,} runs." if len(drawn) < len(runs) else ""
    return [chart, *([Text(cut, "dim", only="page")] if cut else [])]


def _machines(report: AccuracyReport) -> Table:
    rows: list[Row] = [Row(_machine(name, errors)) for name, errors in report.machines.items()]
    if len(rows) > 1 and report.errors is not None:
        rows.append(Row(_machine("all machines", report.errors), "bold"))
    return Table([Column("machine", wrap=True), *right("runs", "median", "p90", "bias", "in 80 %")], rows)


def _machine(name: str, errors: Errors) -> list[Cell]:
    inside = MISSING if errors.coverage is None else f"{errors.coverage:.0%}"
    return [name, f"{errors.n:,}", f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}", inside]


def _terms(report: AccuracyReport) -> list[Block]:
    """Shares of the measured step by term; none where no run has them."""
    terms = report.terms
    if not terms:
        return []
    num_runs = next(iter(terms.values())).n
    rows = [
        Row([Styled(name, swatch=name), f"{term.planned:.1%}", f"{term.measured:.1%}", f"{term.part:+.1%}"])
        for name, term in terms.items()
    ]
    caption = (
        f"means over {num_runs:,} run{'s' if num_runs > 1 else ''}, as shares of the measured step; the parts of the "
        "bias add up to that of these runs"
    )
    return [Table([Column("term"), *right("planned", "measured", "part of the bias")], rows, caption=caption)]


def _runs(runs: Sequence[FinishedRun], *, with_term: bool = False) -> Table:
    columns = [*left("finished (UTC)", "run"), *right("planned", "80 %", "measured", "error")]
    if with_term:
        columns += [Column("machine", wrap=True), Column("most of it")]
        return Table(columns, [[*_run(run), run.machine, run.largest_term or MISSING] for run in runs])
    caption = "error: planned / measured - 1; learned from: finished runs that the plan had learned from"
    columns += [*right("learned from"), Column("layout", wrap=True)]
    return Table(columns, [[*_run(run), f"{run.learned_from}", run.layout] for run in runs], caption=caption)


def _run(run: FinishedRun) -> list[Cell]:
    error = f"{100 * run.error:+.1f} %"
    return [
        _date(run),
        Path(run.run).name,
        format_step_time(run.planned_s),
        f"{format_step_time(run.low_s)} to {format_step_time(run.high_s)}",
        format_step_time(run.measured_s),
        error if run.is_inside else Styled(error, "warning"),
    ]


def _date(run: FinishedRun) -> str:
    return f"{datetime.fromtimestamp(run.finished_at, UTC):%Y-%m-%d %H:%M}"


@to_json.register
def _(report: AccuracyReport) -> Mapping[str, object]:
    return {
        "runs": [run.model_dump(exclude={"format_version"}) | {"error": run.error} for run in report.runs],
        "machines": {machine: asdict(errors) for machine, errors in report.machines.items()},
        "terms": {name: asdict(term) | {"part_of_bias": term.part} for name, term in report.terms.items()},
        "errors": asdict(report.errors) if report.errors else None,
        "sources": list(report.sources),
    }
