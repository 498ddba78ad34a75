"""What runs leave, as tables and lines: runs of a folder, their metrics, checkpoints and copies, profiles, trackers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainworks.observe.trackers.tracker import TrackReport
from trainworks.record.profile import read_summaries, trace_file
from trainworks.record.run_dir import RunDir
from trainworks.report.rendering.document import Document, Section, Table, left, right
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.results import Result
from trainworks.units import format_bytes, format_counted, format_duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainworks.record.metric_columns import Floats

_MOST_COLUMNS = 8
_ENDS = 5
"""Rows of metrics that are shown of the beginning and of the end."""
_WHOLE = ("step", "attempt")


class RunTable(Result, ABC):
    """Runs that show themselves as a table."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> list[Mapping[str, Any]]:
        """State, step, loss, time of the last change and cause of each run; None where a run has none."""


@build_document.register
def _(runs: RunTable) -> Document:
    """A row per run."""
    rows = runs.rows()
    return replace(runs_document(rows, time.time()), title=format_counted(len(rows), "run"))


@to_json.register
def _(runs: RunTable) -> Mapping[str, object]:
    return {"runs": runs.rows()}


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


class MetricTable(Result, dict[str, "NDArray[Any]"]):
    """Columns by name, all of one length: a row per step, in ascending order.

    A step that was done again after a restart counts once, as it was done last. Columns are those of `metrics.jsonl`
    in its units, with `tokens_per_s`, `eval_loss` and `eval_accuracy`, and own figures by their names. A value is NaN
    where a step lacks it; a column without any value is left out, but `step` and `loss`.
    """

    _repr_pretty_ = Result._repr_pretty_


def read_metric_table(run_dir: RunDir) -> MetricTable:
    """The metrics that a run has recorded so far."""
    import numpy as np  # noqa: PLC0415 - a list of runs does without

    from trainworks.record.events.log import read_events  # noqa: PLC0415
    from trainworks.record.history import returns_of  # noqa: PLC0415
    from trainworks.record.metric_columns import COLUMNS, read_columns  # noqa: PLC0415

    steps = read_columns(run_dir.metrics_file).steps()
    effective = steps.where(~steps.is_lost(returns_of(read_events(run_dir.events_file))))
    trained, evaluated = effective.trained(), effective.evaluated()
    rows = np.unique(effective["step"])

    def placed(at: Floats, values: Floats) -> Floats:
        column = np.full(len(rows), np.nan)
        column[np.searchsorted(rows, at)] = values
        return column

    columns = {name: placed(trained["step"], trained[name]) for name in COLUMNS}
    columns["step"] = rows
    columns |= {name: placed(trained["step"], trained.curve(name)) for name in ("tokens_per_s", "accuracy")}
    columns |= {name: placed(evaluated["step"], evaluated[name]) for name in ("eval_loss", "eval_accuracy")}
    for kind in ("evaluation", "program"):
        for step, figures in effective.figures(kind):
            for name, value in figures.items():
                columns.setdefault(name, np.full(len(rows), np.nan))[np.searchsorted(rows, step)] = value
    known = {name: column for name, column in columns.items() if name in ("step", "loss") or np.isfinite(column).any()}
    whole = {name: known[name].astype(np.int64) for name in _WHOLE if name in known and np.isfinite(known[name]).all()}
    return MetricTable(known | whole)


@build_document.register
def metrics_document(table: MetricTable) -> Document:
    """The first and the last steps, and the names of the columns that have no room."""
    shown, others = list(table)[:_MOST_COLUMNS], list(table)[_MOST_COLUMNS:]
    steps = len(table["step"])
    places = [*range(steps)] if steps <= 2 * _ENDS else [*range(_ENDS), *range(steps - _ENDS, steps)]
    values = [[table[name][place].item() for name in shown] for place in places]
    rows = [
        [f"{value:,}" if isinstance(value, int) else "" if isnan(value) else f"{value:.6g}" for value in row]
        for row in values
    ]
    if steps > len(places):
        rows.insert(_ENDS, ["..."] * len(shown))
    caption = f"Also: {', '.join(others)}." if others else ""
    return Document(f"{steps:,} steps", "metrics", [Section("", [Table(right(*shown), rows, caption=caption)])])


@to_json.register
def _(table: MetricTable) -> Mapping[str, object]:
    return {name: [None if isnan(value) else value for value in column.tolist()] for name, column in table.items()}
