"""The plan of a described cluster as a person reads it, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainworks.cli.cluster_planning import ClusterPlan, Scale
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.prediction import Prediction, describe_layout
from trainworks.units import format_bytes, format_count, format_duration

__all__ = ["plan_as_json", "print_cluster_plan", "print_explanation"]

_SHOWN_SHARE = 0.005


def print_cluster_plan(plan: ClusterPlan, console: Console) -> None:
    """The best layout in full, the next ones, why the others lost, and what smaller clusters would do."""
    console.print(_facts(plan))
    console.print(_layout_table("fastest layouts", plan.best))
    if len(plan.front) > 1:
        console.print(_layout_table("less memory for more time", _thinned(plan.front)))
    console.print(_rejections(plan))
    if plan.scales:
        console.print(_scale_table(plan.scales))
    for note in plan.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _thinned(front: list[Prediction]) -> list[Prediction]:
    step = max(1, len(front) // 5)
    return front[::step][:6]


def _facts(plan: ClusterPlan) -> Table:
    best, job = plan.best[0], plan.job
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    tokens = plan.global_batch * job.sequence_length
    run = f"{plan.steps:,} steps of {format_count(tokens)} {_unit(plan)} in {format_duration(plan.run_time_s)}"
    between = f"80 %: {format_duration(plan.steps * best.low_s)} to {format_duration(plan.steps * best.high_s)}"
    rows = {
        "model": f"{format_count(job.shape.num_parameters)} parameters, {job.precision}",
        "cluster": f"{job.cluster.name}: {job.cluster.num_accelerators} accelerators",
        "layout": describe_layout(best.layout),
        "step time": f"{_step_time(best)}  = {_terms(best)}",
        "throughput": f"{format_count(best.tokens_per_s)} {_unit(plan)}/s, MFU {best.mfu:.0%} of the data sheet's peak",
        "memory": _memory(best, job.cluster.accelerator.memory_bytes),
        "run": f"{run} ({between})",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _unit(plan: ClusterPlan) -> str:
    return "images" if isinstance(plan.job, ConvJob) else "tokens"


def _step_time(prediction: Prediction) -> str:
    low, high = format_duration(prediction.low_s), format_duration(prediction.high_s)
    return f"{format_duration(prediction.step_time_s)} (80 %: {low} to {high})"


def _terms(prediction: Prediction) -> str:
    total = sum(prediction.terms_s.values())
    shown = {name: value for name, value in prediction.terms_s.items() if value > _SHOWN_SHARE * total}
    return " + ".join(f"{name.replace('_', ' ')} {format_duration(value)}" for name, value in shown.items())


def _memory(prediction: Prediction, available: int) -> str:
    memory = prediction.memory
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "working")
    shown = {name: getattr(memory, f"{name}_bytes") for name in terms}
    parts = " + ".join(f"{name} {format_bytes(value)}" for name, value in shown.items() if value)
    stage = f" on stage {memory.stage}" if prediction.layout.pp > 1 else ""
    used = f"{format_bytes(memory.device_bytes)} of {format_bytes(available)}{stage}"
    return f"{used}: allocated {format_bytes(memory.allocated_bytes)} = {parts}"


def _layout_table(title: str, rows: list[Prediction]) -> Table:
    table = Table("step time", "80 %", "MFU", "memory", "layout", title=title, title_justify="left", box=None)
    for row in rows:
        table.add_row(
            format_duration(row.step_time_s),
            f"{format_duration(row.low_s)} to {format_duration(row.high_s)}",
            f"{row.mfu:.0%}",
            format_bytes(row.memory.device_bytes),
            describe_layout(row.layout),
        )
    return table


def _rejections(plan: ClusterPlan) -> Table | Text:
    result = plan.result
    title = f"{format_count(result.evaluated)} layouts priced, {format_count(result.fitting)} fit"
    if not result.rejections:
        return Text(title)
    table = Table("rejected", "", "because", "nearest", title=title, title_justify="left", box=None)
    for rejection in result.rejections:
        table.add_row(format_count(rejection.count), rejection.unit, rejection.reason, rejection.nearest)
    return table


def _scale_table(scales: list[Scale]) -> Table:
    columns = ("nodes", "accelerators", "run time", "accelerator hours", "cost", "goal", "layout")
    table = Table(*columns, title="how many nodes", title_justify="left", box=None)
    for scale in scales:
        world = scale.best.layout
        devices = world.dp_replicate * world.dp_shard * world.cp * world.tp * world.pp
        table.add_row(
            str(scale.num_nodes),
            str(devices),
            format_duration(scale.run_time_s),
            f"{scale.run_time_s / 3600 * devices:,.0f}",
            "" if scale.cost_usd is None else f"{scale.cost_usd:,.0f} USD",
            "met" if scale.meets_goal else "missed",
            describe_layout(scale.best.layout),
        )
    return table


def print_explanation(asked: Prediction, best: Prediction, console: Console) -> None:
    """One layout beside the fastest, term by term."""
    table = Table("term", "this layout", "fastest", "difference", box=None, padding=(0, 2, 0, 0))
    for name, value in asked.terms_s.items():
        other = best.terms_s[name]
        if max(value, other) > _SHOWN_SHARE * best.step_time_s:
            sign = "+" if value >= other else "-"
            row = (format_duration(value), format_duration(other), sign + format_duration(abs(value - other)))
            table.add_row(name.replace("_", " "), *row)
    table.add_row("step", _step_time(asked), _step_time(best), f"{asked.step_time_s / best.step_time_s - 1:+.1%}")
    table.add_row("memory", format_bytes(asked.memory.device_bytes), format_bytes(best.memory.device_bytes), "")
    console.print(Text(f"this layout  {describe_layout(asked.layout)}"))
    console.print(Text(f"fastest      {describe_layout(best.layout)}"))
    console.print(table)


def plan_as_json(plan: ClusterPlan) -> dict[str, Any]:
    """Everything that the tables show, in base units."""
    result = plan.result
    return {
        "cluster": plan.job.cluster.model_dump(mode="json"),
        "num_parameters": plan.job.shape.num_parameters,
        "steps": plan.steps,
        "run_time_s": plan.run_time_s,
        "best": [row.model_dump(mode="json") for row in plan.best],
        "front": [row.model_dump(mode="json") for row in plan.front],
        "evaluated": result.evaluated,
        "fitting": result.fitting,
        "rejections": [asdict(rejection) for rejection in result.rejections],
        "scales": [asdict(scale) | {"best": scale.best.model_dump(mode="json")} for scale in plan.scales],
        "notes": plan.notes,
    }
