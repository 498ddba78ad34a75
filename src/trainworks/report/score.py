"""The planner's predictions against the measurements of a table, by source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from trainworks.measure.scoring import CollectiveScore, Group, MemoryScore, Refusal, RunScore, ScoreReport, Sweep
from trainworks.plan.score import Errors
from trainworks.report.rendering.document import Column, Document, Row, Section, Table, Text, right
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import format_share

_percent = partial(format_share, digits=1)
_TITLES = {"yes": "step time", "moe": "step time, models with experts"}
_MAX_IDS = 3
_LONGEST_SOURCE = 80
_STATISTICS = ("n", "MAPE", "median", "p90", "bias")


@build_document.register
def document(report: ScoreReport) -> Document:
    """The errors of a table, source by source."""
    predicted = f"{len(report.rows) - len(report.refusals)} of {len(report.rows)} rows predicted"
    return Document(
        f"Predictions of {report.table}",
        "score",
        [
            Section("", [Text(f"note: {note}") for note in report.notes]),
            *_errors(report.score),
            Section("", [Text(predicted)]),
            Section("", [_refusals(report.refusals)] if report.refusals else []),
        ],
    )


def _errors(score: RunScore | MemoryScore | CollectiveScore) -> Iterator[Section]:
    if isinstance(score, RunScore):
        for kind, group in score.kinds.items():
            yield _group(_TITLES.get(kind, f"step time, rows marked `{kind}`"), group)
        yield _sweeps(score.sweeps)
        if not score.kinds:
            yield Section("", [Text("no row has a measured step time to score")])
    elif isinstance(score, MemoryScore):
        for kind, group in score.kinds.items():
            yield _group(f"memory, {kind}", group)
        fits = score.rejections
        failed = f"rejected: {fits.out_of_memory_rejected} of {fits.out_of_memory} that ran out of memory"
        fitted = f"rejected: {fits.fitting_rejected} of {fits.fitting} that fitted"
        yield Section("", [Text(failed), Text(fitted)])
    else:
        groups = {"collectives from 64 KiB": score.large, "collectives of all sizes": score.every}
        if score.every is None:
            yield Section("", [Text("no row has a measured time to score")])
        yield from (_group(title, group) for title, group in groups.items() if group is not None)


def _group(title: str, group: Group) -> Section:
    after = [f"after {count}" for count in group.calibrated]
    intervals = [] if group.rows.coverage is None else ["in 80 %"]
    rows = []
    for source, errors in group.sources.items():
        calibrated = {count: each.sources.get(source) for count, each in group.calibrated.items()}
        rows.append(Row([_shortened(source), *_cells(errors), *_mapes(calibrated)]))
    macros = {count: each.macro for count, each in group.calibrated.items()}
    every = {count: each.rows for count, each in group.calibrated.items()}
    rows.append(Row(["macro average over sources", *_cells(group.macro), *_mapes(macros)], "bold"))
    rows.append(Row(["all rows", *_cells(group.rows), *_mapes(every)], "bold"))
    caption = "after 1, 3: MAPE on a row after learning from so many others of its source and accelerator"
    columns = [Column(title, wrap=True), *right(*_STATISTICS, *intervals, *after)]
    return Section("", [Table(columns, rows, caption=caption if after else "")])


def _cells(errors: Errors) -> list[str]:
    coverage = [] if errors.coverage is None else [_percent(errors.coverage, digits=0)]
    shares = (errors.mape, errors.median, errors.p90)
    return [f"{errors.n:,}", *(_percent(share) for share in shares), f"{100 * errors.bias:+.1f} %", *coverage]


def _mapes(calibrated: Mapping[int, Errors | None]) -> list[str]:
    return ["" if errors is None else _percent(errors.mape) for errors in calibrated.values()]


def _shortened(source: str) -> str:
    return source if len(source) <= _LONGEST_SOURCE else f"{source[: _LONGEST_SOURCE - 3]}..."


def _sweeps(sweeps: Sequence[Sweep]) -> Section:
    if not sweeps:
        return Section("", [])
    rows = []
    for sweep in sweeps:
        name = f"{sweep.source}: {sweep.model}, {sweep.accelerators}"
        rows.append(Row([name, f"{sweep.layouts}", f"{sweep.rank_correlation:.2f}", _percent(sweep.regret)]))
    correlation = sum(sweep.rank_correlation for sweep in sweeps) / len(sweeps)
    regret = sum(sweep.regret for sweep in sweeps) / len(sweeps)
    rows.append(Row(["mean", "", f"{correlation:.2f}", _percent(regret)], "bold"))
    columns = [Column("layouts of one job", wrap=True), *right("layouts", "rank correlation", "regret")]
    caption = "regret: how much longer the layout predicted to be the fastest takes than the fastest one"
    return Section("", [Table(columns, rows, caption=caption)])


def _refusals(refusals: Sequence[Refusal]) -> Table:
    """Rows that were not predicted, by reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        line = f"line {refusal.line}"
        place = refusal.id if refusal.line is None or refusal.id == line else f"{refusal.id} ({line})"
        by_reason.setdefault((refusal.source, refusal.reason), []).append(place)
    rows = []
    for (source, reason), ids in by_reason.items():
        more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
        rows.append([_shortened(source), ", ".join(ids[:_MAX_IDS]) + more, reason])
    return Table([Column("refused", wrap=True), Column("rows", wrap=True), Column("reason", wrap=True)], rows)


@to_json.register
def _(report: ScoreReport) -> Mapping[str, object]:
    refused = [asdict(row) for row in report.refusals]
    counts = {"table": report.table, "rows": len(report.rows), "predicted": len(report.rows) - len(refused)}
    measured = {cluster: [asdict(rate) for rate in rates] for cluster, rates in report.measured.items()}
    return counts | asdict(report.score) | {"refused": refused, "measured": measured, "notes": report.notes}
