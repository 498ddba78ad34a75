"""The plan of a described cluster as a person reads it, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from trainworks.config.layout import MESH_AXES
from trainworks.plan.cluster.memory import describe_rejection, is_tight
from trainworks.plan.cluster.plan import ClusterPlan, LayoutComparison
from trainworks.plan.cluster.scaling import Scale
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.network.nccl import nccl_settings
from trainworks.plan.prediction import Prediction, describe_layout, extrapolation
from trainworks.plan.pricing import AnyJob
from trainworks.report.parts import GLUE, fact_table, note_lines, plain_table, print_parts, title
from trainworks.report.plan_page import PlannedLayout, write_plan_page
from trainworks.units import HOUR_S, format_count, format_duration, format_gib, format_step_time

__all__ = ["explanation_as_json", "plan_as_json", "print_cluster_plan", "print_explanation", "write_cluster_plan"]

_SHOWN_SHARE = 0.005
_SHOWN_BYTES = 0.005 * 2**30
_FRONT_LENGTH = 5
_NARROW = 100
"""Columns of a terminal below which a table leaves out what can be computed from the rest."""


def print_cluster_plan(plan: ClusterPlan, console: Console) -> None:
    """The best layout in full, the next ones, why the others lost, and what smaller clusters would do."""
    parts: list[Sequence[RenderableType]] = [[_facts(plan)]]
    parts.append([title("fastest layouts"), _layout_table(plan, plan.best)])
    if front := _thinned([row for row in plan.front if row not in plan.best]):
        parts.append([title("less memory for more time"), _layout_table(plan, front)])
    parts.append(_rejections(plan))
    if plan.scales:
        shown = _scale_table(plan.scales, narrow=console.width < _NARROW, goal=plan.goal is not None)
        parts.append([title("how many nodes"), shown])
    print_parts([*parts, note_lines(plan.notes)], console)


def _glued(text: str, separator: str) -> str:
    """A list whose lines are broken between its items alone."""
    return separator.join(item.replace(" ", GLUE) for item in text.split(separator))


def _layout(prediction: Prediction) -> str:
    return _glued(describe_layout(prediction.layout), ", ")


def _thinned(front: list[Prediction]) -> list[Prediction]:
    """Some of them, the last one among them."""
    if len(front) <= _FRONT_LENGTH:
        return front
    return [front[round(index * (len(front) - 1) / (_FRONT_LENGTH - 1))] for index in range(_FRONT_LENGTH)]


def _facts(plan: ClusterPlan) -> Table:
    best, job = plan.best[0], plan.job
    count = job.cluster.num_accelerators
    tokens = plan.global_batch * job.sequence_length
    steps = f"{plan.steps:,} step{'s' if plan.steps > 1 else ''} of {format_count(tokens)} {_unit(plan)}"
    low, high = format_duration(plan.steps * best.low_s), format_duration(plan.steps * best.high_s)
    mfu = f"MFU {_percent(best.mfu)} of the data sheet's peak"
    beyond = extrapolation(count)
    rows = ({} if beyond is None else {"warning": beyond}) | {
        "model": f"{format_count(job.shape.num_parameters)} parameters, {job.precision}",
        "cluster": f"{job.cluster.name}: {count:,} accelerator{'s' if count > 1 else ''}",
        "layout": _layout(best),
        "step time": f"{_step_time(best)} = {_terms(best)}",
        "throughput": f"{format_count(best.tokens_per_s)} {_unit(plan)}/s, {mfu}",
        "memory": _memory(best, job),
        "run": f"{steps} in {format_duration(plan.run_time_s)} (80 %: {low} to {high})",
    }
    if settings := nccl_settings(job.cluster):
        rows["NCCL"] = "; ".join(f"{each.name}={each.value}: {each.why}" for each in settings)
    return fact_table(rows | ({} if plan.goal is None else {"goal": plan.goal}))


def _unit(plan: ClusterPlan) -> str:
    return "images" if isinstance(plan.job, ConvJob) else "tokens"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _step_time(prediction: Prediction) -> str:
    return f"{format_step_time(prediction.step_time_s)} (80 %: {_between(prediction)})"


def _between(prediction: Prediction) -> str:
    return f"{format_step_time(prediction.low_s)} to {format_step_time(prediction.high_s)}"


def _terms(prediction: Prediction) -> str:
    total = sum(prediction.terms_s.values())
    shown = {name: value for name, value in prediction.terms_s.items() if value > _SHOWN_SHARE * total}
    named = (f"{name.replace('_', ' ')} {format_step_time(value)}" for name, value in shown.items())
    return _glued(" + ".join(named), " + ")


def _memory(prediction: Prediction, job: AnyJob) -> str:
    memory = prediction.memory
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "working")
    shown = {name: getattr(memory, f"{name}_bytes") for name in terms}
    parts = " + ".join(f"{name} {format_gib(value)}" for name, value in shown.items() if value >= _SHOWN_BYTES)
    stage = f" on stage {memory.stage}" if prediction.layout.pp > 1 else ""
    tight = ", tight" if is_tight(job, prediction) else ""
    used = f"{format_gib(memory.device_bytes)} of {format_gib(job.cluster.accelerator.memory_bytes)}{stage}{tight}"
    return f"{used}: allocated {format_gib(memory.allocated_bytes)} = {_glued(parts, ' + ')}"


def _layout_table(plan: ClusterPlan, rows: Sequence[Prediction]) -> Table:
    table = plain_table("step time", "80 %", "MFU", "memory", "layout")
    for row in rows:
        tight = " tight" if is_tight(plan.job, row) else ""
        table.add_row(
            format_step_time(row.step_time_s),
            _between(row),
            _percent(row.mfu),
            f"{format_gib(row.memory.device_bytes)}{tight}",
            _layout(row),
        )
    return table


def _rejections(plan: ClusterPlan) -> list[RenderableType]:
    result = plan.result
    priced = f"{format_count(result.evaluated)} layout{'s' if result.evaluated > 1 else ''} priced"
    heading = f"{priced}, {format_count(result.fitting)} fit{'' if result.fitting > 1 else 's'}"
    if not result.rejections:
        return [title(heading)]
    table = Table("rejected", "because", "nearest", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].no_wrap = True
    for rejection in result.rejections:
        table.add_row(describe_rejection(rejection), rejection.reason, rejection.nearest)
    return [title(heading), table]


def _scale_table(scales: Sequence[Scale], *, narrow: bool, goal: bool) -> Table:
    """One row per size: nothing beats one of them in time, memory and accelerators. A narrow table leaves out the
    accelerators and the memory, and any one a cost that nobody can know.
    """
    rows = [_scale_cells(scale) for scale in scales]
    left_out = ({"accelerators", "memory"} if narrow else set()) | (set() if goal else {"goal"})
    shown = [name for name in rows[0] if name not in left_out and any(row[name] for row in rows)]
    table = plain_table(*shown)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _scale_cells(scale: Scale) -> dict[str, str]:
    layout = scale.best.layout
    devices = math.prod(getattr(layout, axis) for axis in MESH_AXES)
    hours = scale.run_time_s / HOUR_S * devices
    return {
        "nodes": f"{scale.num_nodes:,}",
        "accelerators": f"{devices:,}",
        "run time": format_duration(scale.run_time_s),
        "accelerator hours": f"{hours:,.0f}" if hours >= 9.5 else f"{hours:.2g}",
        "memory": format_gib(scale.best.memory.device_bytes),
        "cost": "" if scale.cost_usd is None else f"{scale.cost_usd:,.0f} USD",
        "goal": scale.chance,
        "layout": _layout(scale.best),
    }


def print_explanation(comparison: LayoutComparison, console: Console) -> None:
    """One layout beside the fastest, term by term."""
    this, best = comparison.this.best[0], comparison.fastest.best[0]
    names = fact_table({"this layout": _layout(this), "fastest": _layout(best)})
    print_parts([[names], [_term_table(this, best)], note_lines(comparison.this.notes)], console)


def _term_table(this: Prediction, best: Prediction) -> Table:
    table = plain_table("term", "this layout", "fastest", "difference")
    least = _SHOWN_SHARE * best.step_time_s
    for name, value in this.terms_s.items():
        other = best.terms_s[name]
        if max(value, other) > least:
            more = _signed(value - other, format_step_time) if abs(value - other) > least / 10 else ""
            table.add_row(name.replace("_", " "), format_step_time(value), format_step_time(other), more)
    change = f"{100 * (this.step_time_s / best.step_time_s - 1):+.1f} %"
    same = change in ("+0.0 %", "-0.0 %")
    table.add_row(
        "step", format_step_time(this.step_time_s), format_step_time(best.step_time_s), "" if same else change
    )
    table.add_row("80 %", _between(this), _between(best))
    used, other_used = this.memory.device_bytes, best.memory.device_bytes
    more = "" if format_gib(used) == format_gib(other_used) else _signed(used - other_used, format_gib)
    table.add_row("memory", format_gib(used), format_gib(other_used), more)
    return table


def _signed(value: float, written: Callable[[float], str]) -> str:
    return f"{'+' if value > 0 else '-'}{written(abs(value))}"


def plan_as_json(plan: ClusterPlan) -> dict[str, Any]:
    """Everything that the tables show, in base units."""
    result = plan.result
    return {
        "cluster": plan.job.cluster.model_dump(mode="json"),
        "nccl": [asdict(setting) for setting in nccl_settings(plan.job.cluster)],
        "num_parameters": plan.job.shape.num_parameters,
        "steps": plan.steps,
        "run_time_s": plan.run_time_s,
        "goal": plan.goal,
        "best": [row.model_dump(mode="json") for row in plan.best],
        "front": [row.model_dump(mode="json") for row in plan.front],
        "evaluated": result.evaluated,
        "fitting": result.fitting,
        "rejections": [asdict(rejection) for rejection in result.rejections],
        "scales": [asdict(scale) | {"best": scale.best.model_dump(mode="json")} for scale in plan.scales],
        "notes": plan.notes,
    }


def explanation_as_json(comparison: LayoutComparison) -> dict[str, Any]:
    """Both layouts, and the notes on the one to explain."""
    return {
        "asked": comparison.this.best[0].model_dump(mode="json"),
        "fastest": comparison.fastest.best[0].model_dump(mode="json"),
        "notes": comparison.this.notes,
    }


def write_cluster_plan(path: Path, result: ClusterPlan | LayoutComparison, *, title: str) -> None:
    """Write a page on where time and memory go, of the best layouts or of two."""
    if isinstance(result, ClusterPlan):
        plan, rows = result, result.best
    else:
        plan, rows = result.fastest, [result.this.best[0], result.fastest.best[0]]
    about = f"{plan.job.cluster.name}, {plan.global_batch} sequences per step, {plan.job.precision}"
    write_plan_page(path, title=title, about=about, layouts=[_drawn(row) for row in rows])


def _drawn(row: Prediction) -> PlannedLayout:
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "working")
    return PlannedLayout(
        name=describe_layout(row.layout),
        step_time_s=row.step_time_s,
        low_s=row.low_s,
        high_s=row.high_s,
        terms_s=row.terms_s,
        memory_bytes={term: getattr(row.memory, f"{term}_bytes") for term in terms},
    )
