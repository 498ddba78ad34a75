"""The plan as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from trainworks.api.precision import emulation_note
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.units import format_bytes, format_count, format_duration

__all__ = ["print_plan"]


def print_plan(resolved: ResolvedRun, console: Console) -> None:
    """Print the plan of a workload."""
    plan = resolved.plan
    assert plan is not None and resolved.run_file.workload is not None
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, text in _rows(resolved, plan):
        table.add_row(name, text)
    console.print(table)
    note = emulation_note(resolved.run_file.workload.precision, resolved.host, resolved.processes.device)
    if note is not None:
        console.print(f"warning: {note}", style="yellow")
    deadline = resolved.run_file.goal.deadline
    if deadline is not None and plan.run_time_s > deadline:
        console.print(
            f"warning: the run is predicted to take {format_duration(plan.run_time_s)}, "
            f"the deadline is {format_duration(deadline)}",
            style="yellow",
        )


def _rows(resolved: ResolvedRun, plan: Plan) -> list[tuple[str, str]]:
    processes, workload = resolved.processes, resolved.run_file.workload
    assert workload is not None
    time, memory = plan.step_time, plan.memory
    states = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    name = workload.model.title
    unit = workload.unit
    where = f"{processes.world_size} rank(s) on {processes.nodes} node(s), {processes.device}"
    return [
        ("model", f"{name}, {format_count(plan.model.num_parameters)} parameters, {workload.precision}"),
        ("layout", f"{where}: {plan.layout.describe()}"),
        ("training", f"{plan.num_steps:,} steps of {format_count(plan.tokens_per_step)} {unit}"),
        (
            "step time",
            f"{format_duration(time.total_s)} = compute {format_duration(time.compute_s)}"
            f" + communication {format_duration(time.communication_s)}"
            f" + optimizer {format_duration(time.optimizer_s)} + data {format_duration(time.data_s)}",
        ),
        ("throughput", f"{format_count(plan.tokens_per_s)} {unit}/s"),
        (
            "memory",
            f"{format_bytes(memory.total_bytes)} per rank = program {format_bytes(memory.baseline_bytes)}"
            f" + states {format_bytes(states)} + activations {format_bytes(memory.activations_bytes)}"
            f" + logits {format_bytes(memory.logits_bytes)} + allocator {format_bytes(memory.allocator_bytes)}"
            f" + checkpoint copy {format_bytes(memory.checkpoint_bytes)}",
        ),
        ("checkpoints", f"{format_bytes(plan.checkpoint_bytes)} each, {_interval(plan)}"),
        ("run time", f"{format_duration(plan.run_time_s)} predicted"),
        *_basis(plan),
    ]


def _basis(plan: Plan) -> list[tuple[str, str]]:
    """Said where no formula stands behind the figures."""
    if plan.model.is_described:
        return []
    return [("basis", "step time and memory as measured in a few steps of the model itself")]


def _interval(plan: Plan) -> str:
    if plan.checkpoint_every_steps is not None:
        return f"every {plan.checkpoint_every_steps:,} steps"
    return f"every {format_duration(plan.checkpoint_every_s or 0.0)}"
