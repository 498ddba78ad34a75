"""The plan for a described cluster: the best layouts, the reasons against the others, and other numbers of nodes.

Beside it, one layout compared with the proposed one, and the plan before and after a calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from trainworks.catalog.exchange import Exchange
from trainworks.config.layout import MESH_AXES
from trainworks.plan.cluster.plan import CalibrationResult, ClusterPlan, LayoutComparison, extrapolation
from trainworks.plan.cluster.scaling import Scale, describe_rejection, format_chance, is_tight
from trainworks.plan.job import AnyJob, unit_of
from trainworks.plan.network.nccl import nccl_settings
from trainworks.plan.prediction import Prediction
from trainworks.plan.programs import describe_programs
from trainworks.plan.software import describe_software
from trainworks.record.model_shape import ModelShape
from trainworks.report.local_plan import evaluation_text
from trainworks.report.rendering.document import (
    NARROW,
    Block,
    Column,
    Document,
    Facts,
    Section,
    Table,
    Text,
    join_unbroken,
    left,
)
from trainworks.report.rendering.plots import Bar, Bars, Segment
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.units import HOUR_S, format_count, format_duration, format_gib, format_share, format_step_time

_SHOWN_SHARE = 0.005
"""Share of a step below which a term is not named."""
_SHOWN_BYTES = 0.005 * 2**30
_MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "working")
_MAX_FRONT = 5


@build_document.register
def document(plan: ClusterPlan) -> Document:
    """The best layout in full, the next ones, why the others lost, and what smaller clusters would do."""
    front = [row for row in plan.front if row not in plan.best]
    if len(front) > _MAX_FRONT:  # evenly spread, the last one included
        front = [front[round(index * (len(front) - 1) / (_MAX_FRONT - 1))] for index in range(_MAX_FRONT)]
    scales = [_scale_table(plan.scales, plan.exchange, has_goal=plan.goal is not None)] if plan.scales else []
    job = plan.job
    return Document(
        f"{format_count(job.shape.num_parameters)} parameters on {job.cluster.name}",
        "plan",
        [
            Section("", [Facts.from_mapping(_facts(plan))]),
            *_layout_bars(plan.best),
            Section("best layouts", [_layout_table(plan, plan.best)]),
            Section("less memory for more time", [_layout_table(plan, front)] if front else []),
            _rejections(plan),
            Section("how many nodes", scales),
        ],
        about=f"{plan.global_batch} sequences per step, {job.precision}",
        notes=plan.notes,
        verdict=plan.verdict,
    )


def _layout_text(prediction: Prediction) -> str:
    """The layout, with line breaks allowed only between its parts."""
    return join_unbroken(prediction.layout.describe().split(", "), ", ")


def _facts(plan: ClusterPlan) -> dict[str, str | None]:
    best, job = plan.best[0], plan.job
    count, noun = job.cluster.num_accelerators, unit_of(job.shape)
    per_sample = job.tokens_per_sample if noun == "tokens" else 1
    steps = (
        f"{plan.steps:,} step{'s' if plan.steps > 1 else ''} of {format_count(plan.global_batch * per_sample)} {noun}"
    )
    rate = best.tokens_per_s * per_sample / job.tokens_per_sample
    speed = f"{format_count(rate) if rate >= 100 else f'{rate:.3g}'} {noun}/s"
    if isinstance(job.shape, ModelShape) and job.shape.diffusion is not None:
        speed += f" of {job.tokens_per_sample:,} tokens each ({format_count(best.tokens_per_s)} tokens/s)"
    low, high = map(format_duration, plan.run_interval_s)
    mfu = f"MFU {format_share(best.mfu)} of the data sheet's peak"
    least = _SHOWN_SHARE * sum(best.terms_s.values())
    shown = {name.replace("_", " "): value for name, value in best.terms_s.items() if value > least}
    terms = join_unbroken((f"{name} {format_step_time(value)}" for name, value in shown.items()), " + ")
    return {
        "warning": extrapolation(count),
        "model": f"{format_count(job.shape.num_parameters)} parameters, {job.precision}",
        "cluster": f"{job.cluster.name}: {count:,} accelerator{'s' if count > 1 else ''}",
        "software": _software_text(job),
        "layout": _layout_text(best),
        "step time": f"{format_step_time(best.step_time_s)} (80 %: {_interval(best)}) = {terms}",
        "throughput": f"{speed}, {mfu}",
        "memory": _memory(best, job),
        "run": f"{steps} in {format_duration(plan.run_time_s)} (80 %: {low} to {high})",
        "evaluation": evaluation_text(plan.evaluation, plan.run_time_s),
        "NCCL": "; ".join(f"{each.name}={each.value}: {each.why}" for each in nccl_settings(job.cluster)),
        "goal": plan.goal,
    }


def _interval(prediction: Prediction) -> str:
    """The 80 % interval of the step time."""
    return f"{format_step_time(prediction.low_s)} to {format_step_time(prediction.high_s)}"


def _memory_terms(prediction: Prediction) -> dict[str, float]:
    return {name: getattr(prediction.memory, f"{name}_bytes") for name in _MEMORY_TERMS}


def _memory(prediction: Prediction, job: AnyJob) -> str:
    memory = prediction.memory
    shown = {name: size for name, size in _memory_terms(prediction).items() if size >= _SHOWN_BYTES}
    parts = join_unbroken((f"{name} {format_gib(size)}" for name, size in shown.items()), " + ")
    stage = f" on stage {prediction.stage}" if prediction.layout.pp > 1 else ""
    tight = ", tight" if is_tight(job, prediction) else ""
    total = f"{format_gib(memory.total_bytes)} of {format_gib(job.cluster.accelerator.memory_bytes)}{stage}{tight}"
    return f"{total}: allocated {format_gib(memory.allocated_bytes)} = {parts}"


def _layout_table(plan: ClusterPlan, predictions: Sequence[Prediction]) -> Table:
    rows = [
        [
            format_step_time(row.step_time_s),
            _interval(row),
            format_share(row.mfu),
            f"{format_gib(row.memory.total_bytes)}{' tight' if is_tight(plan.job, row) else ''}",
            _layout_text(row),
        ]
        for row in predictions
    ]
    return Table([*left("step time", "80 %", "MFU", "memory"), Column("layout", wrap=True)], rows)


def _layout_bars(predictions: Sequence[Prediction]) -> list[Section]:
    """Where the time of a step and the memory of a rank would go, by layout; bars of one section share a scale."""
    times = [
        _bar(row, row.terms_s, f"{format_step_time(row.step_time_s)} ({_interval(row)})", format_step_time)
        for row in predictions
    ]
    memories = [
        _bar(row, _memory_terms(row), format_gib(sum(_memory_terms(row).values())), format_gib) for row in predictions
    ]
    about = "Predicted seconds of one optimizer step, with the 80 % interval."
    return [
        Section("step time", [Text(about, "dim"), Bars(times)], only="page"),
        Section("memory", [Text("Allocated on the fullest rank at its peak.", "dim"), Bars(memories)], only="page"),
    ]


def _bar(row: Prediction, parts: dict[str, float], total: str, text: Callable[[float], str]) -> Bar:
    return Bar(row.layout.describe(), total, [Segment(name, value, text(value)) for name, value in parts.items()])


def _rejections(plan: ClusterPlan) -> Section:
    result = plan.result
    priced = f"{format_count(result.evaluated)} layout{'s' if result.evaluated > 1 else ''} priced"
    title = f"{priced}, {format_count(result.fitting)} fit{'' if result.fitting > 1 else 's'}"
    rows = [[describe_rejection(each), each.reason, each.nearest] for each in result.rejections]
    columns = [Column("rejected"), Column("because", wrap=True), Column("nearest", wrap=True)]
    blocks: list[Block] = [Table(columns, rows)] if rows else [Text(title, "bold")]
    return Section(title if rows else "", blocks)


def _scale_table(scales: Iterable[Scale], money: Exchange, *, has_goal: bool) -> Table:
    """One row per size. A narrow terminal leaves out the accelerators and the memory; empty columns are left out."""
    rows = [_scale_cells(scale, money) for scale in scales]
    names = [name for name in rows[0] if (has_goal or name != "chance") and any(row[name] for row in rows)]
    columns = [
        Column(name, wrap=name == "layout", min_width=NARROW if name in ("accelerators", "memory") else 0)
        for name in names
    ]
    return Table(columns, [[row[name] for name in names] for row in rows])


def _scale_cells(scale: Scale, money: Exchange) -> dict[str, str]:
    devices = math.prod(getattr(scale.best.layout, axis) for axis in MESH_AXES)
    hours = scale.run_time_s / HOUR_S * devices
    return {
        "nodes": f"{scale.num_nodes:,}",
        "accelerators": f"{devices:,}",
        "run time": format_duration(scale.run_time_s),
        "accelerator hours": f"{hours:,.0f}" if hours >= 9.5 else f"{hours:.2g}",
        "memory": format_gib(scale.best.memory.total_bytes),
        "cost": "" if scale.cost_usd is None else f"{scale.cost_usd * money.per_usd:,.0f} {money.currency}",
        "chance": format_chance(scale.chance),
        "layout": _layout_text(scale.best),
    }


def _software_text(job: AnyJob) -> str:
    programs = getattr(job, "programs", ())
    text = describe_programs(programs) if programs else describe_software(job.software, job.precision)
    attention = getattr(job, "attention", None)
    return f"{text}; {attention.describe()}" if attention else text


@to_json.register
def _(plan: ClusterPlan) -> Mapping[str, object]:
    result = plan.result
    return {
        "cluster": plan.job.cluster.model_dump(mode="json"),
        "software": _software_text(plan.job),
        "nccl": [asdict(setting) for setting in nccl_settings(plan.job.cluster)],
        "num_parameters": plan.job.shape.num_parameters,
        "steps": plan.steps,
        "run_time_s": plan.run_time_s,
        "evaluation": plan.evaluation.model_dump(mode="json") if plan.evaluation else None,
        "goal": plan.goal,
        "best": [row.model_dump(mode="json") for row in plan.best],
        "front": [row.model_dump(mode="json") for row in plan.front],
        "evaluated": result.evaluated,
        "fitting": result.fitting,
        "rejections": [asdict(rejection) for rejection in result.rejections],
        "scales": [asdict(scale) | {"best": scale.best.model_dump(mode="json")} for scale in plan.scales],
        "measured": [asdict(rate) for rate in plan.measured],
        "notes": plan.notes,
    }


@build_document.register
def comparison_document(comparison: LayoutComparison) -> Document:
    """The terms of both layouts, and their difference."""
    this, best, cluster = comparison.this.best[0], comparison.proposed.best[0], comparison.this.job.cluster
    names = {"this layout": _layout_text(this), "proposed": _layout_text(best)}
    return Document(
        f"A layout on {cluster.name}",
        "plan",
        [Section("", [Facts.from_mapping(names)]), *_layout_bars([this, best]), Section("", [_terms(this, best)])],
        about=f"{comparison.proposed.global_batch} sequences per step, {comparison.proposed.job.precision}",
        notes=comparison.this.notes,
        verdict=comparison.verdict,
    )


def _terms(this: Prediction, best: Prediction) -> Table:
    least, rows = _SHOWN_SHARE * best.step_time_s, []
    for name, value in this.terms_s.items():
        other = best.terms_s[name]
        if max(value, other) > least:
            more = _signed(value - other, format_step_time) if abs(value - other) > least / 10 else ""
            rows.append([name.replace("_", " "), format_step_time(value), format_step_time(other), more])
    change = f"{100 * (this.step_time_s / best.step_time_s - 1):+.1f} %"
    change = "" if change in ("+0.0 %", "-0.0 %") else change
    rows.append(["step", format_step_time(this.step_time_s), format_step_time(best.step_time_s), change])
    rows.append(["80 %", _interval(this), _interval(best), ""])
    memory, other_memory = format_gib(this.memory.total_bytes), format_gib(best.memory.total_bytes)
    difference = this.memory.total_bytes - best.memory.total_bytes
    rows.append(["memory", memory, other_memory, "" if memory == other_memory else _signed(difference, format_gib)])
    return Table(left("term", "this layout", "proposed", "difference"), rows)


def _signed(value: float, text: Callable[[float], str]) -> str:
    return f"{'+' if value > 0 else '-'}{text(abs(value))}"


@to_json.register
def _(comparison: LayoutComparison) -> Mapping[str, object]:
    return {
        "asked": comparison.this.best[0].model_dump(mode="json"),
        "proposed": comparison.proposed.best[0].model_dump(mode="json"),
        "notes": comparison.this.notes,
    }


@build_document.register
def calibration_document(result: CalibrationResult) -> Document:
    """The two predictions beside the measurement."""
    before = result.before.best[0]
    predictions = {"before": before, "after": result.after.best[0]}
    rows = [[name, format_step_time(each.step_time_s), _interval(each)] for name, each in predictions.items()]
    remarks = []
    if result.measured_s is not None:
        measured = format_step_time(result.measured_s)
        rows.append(["measured", measured, ""])
        if not before.low_s <= result.measured_s <= before.high_s:
            outside = "outside the 80 % interval that was planned: check the run for disturbances, or measure again"
            remarks.append(Text(f"note: {measured} is {outside}", style="warning"))
    layout = Text(f"layout  {before.layout.describe()}")
    table = Table(left("", "step time", "80 %"), rows)
    return Document("Calibration", "calibration", [Section("", [layout]), Section("", [table]), Section("", remarks)])


@to_json.register
def _(result: CalibrationResult) -> Mapping[str, object]:
    before, after = result.before.best[0], result.after.best[0]
    return {"before_s": before.step_time_s, "after_s": after.step_time_s, "measured_s": result.measured_s}
