"""One layout beside the proposed one, term by term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainworks.plan.cluster.plan import LayoutComparison
from trainworks.plan.prediction import Prediction
from trainworks.report.cluster_plan import SHOWN_SHARE, format_interval, layout_bars, layout_text
from trainworks.report.rendering.document import Document, Facts, Section, Table, left
from trainworks.units import format_gib, format_step_time


def document(comparison: LayoutComparison) -> Document:
    """The terms of both layouts, and their difference."""
    this, best, cluster = comparison.this.best[0], comparison.proposed.best[0], comparison.this.job.cluster
    names = {"this layout": layout_text(this), "proposed": layout_text(best)}
    return Document(
        f"A layout on {cluster.name}",
        "plan",
        [Section("", [Facts.from_mapping(names)]), *layout_bars([this, best]), Section("", [_terms(this, best)])],
        about=f"{comparison.proposed.global_batch} sequences per step, {comparison.proposed.job.precision}",
        notes=comparison.this.notes,
    )


def _terms(this: Prediction, best: Prediction) -> Table:
    least, rows = SHOWN_SHARE * best.step_time_s, []
    for name, value in this.terms_s.items():
        other = best.terms_s[name]
        if max(value, other) > least:
            more = _signed(value - other, format_step_time) if abs(value - other) > least / 10 else ""
            rows.append([name.replace("_", " "), format_step_time(value), format_step_time(other), more])
    change = f"{100 * (this.step_time_s / best.step_time_s - 1):+.1f} %"
    change = "" if change in ("+0.0 %", "-0.0 %") else change
    rows.append(["step", format_step_time(this.step_time_s), format_step_time(best.step_time_s), change])
    rows.append(["80 %", format_interval(this), format_interval(best), ""])
    memory, other_memory = format_gib(this.memory.device_bytes), format_gib(best.memory.device_bytes)
    difference = this.memory.device_bytes - best.memory.device_bytes
    rows.append(["memory", memory, other_memory, "" if memory == other_memory else _signed(difference, format_gib)])
    return Table(left("term", "this layout", "proposed", "difference"), rows)


def _signed(value: float, text: Callable[[float], str]) -> str:
    return f"{'+' if value > 0 else '-'}{text(abs(value))}"


def to_json(comparison: LayoutComparison) -> dict[str, Any]:
    """Both layouts, and the notes on the one to explain."""
    return {
        "asked": comparison.this.best[0].model_dump(mode="json"),
        "proposed": comparison.proposed.best[0].model_dump(mode="json"),
        "notes": comparison.this.notes,
    }
