"""Live runs, nodes and accelerators at one moment, as a document."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainworks.backends.backend import NodeStatus
from trainworks.host.machine_load import AcceleratorLoad, MachineLoad
from trainworks.report.jobs import nodes_document
from trainworks.report.rendering.document import (
    Block,
    Cell,
    Column,
    Document,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.results import Result
from trainworks.units import format_bytes, format_count, format_duration

_QUIET_S = 60.0
"""Age of the last step from which it is coloured, at least; a slow run has a multiple of its step."""
_QUIET_STEPS = 20


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run; figures are None before its first step."""

    run: str
    state: str
    step: int | None
    num_steps: int | None
    loss: float | None
    step_s: float | None
    """Mean of the recent steps."""
    planned_step_s: float | None
    tokens_per_s: float | None
    eta_s: float | None
    last_step_age_s: float | None
    message: str | None

    @property
    def is_quiet(self) -> bool:
        """True for a running run whose last step is older than a minute and than twenty steps."""
        if self.state != "RUNNING" or self.last_step_age_s is None:
            return False
        return self.last_step_age_s > max(_QUIET_S, _QUIET_STEPS * (self.step_s or 0.0))


@dataclass(frozen=True, slots=True)
class Overview(Result):
    """What runs now, and where."""

    at: float
    """Seconds since the epoch."""
    runs: tuple[LiveRun, ...]
    nodes: tuple[NodeStatus, ...]
    machine: MachineLoad


def to_json(overview: Overview) -> dict[str, Any]:
    """All figures."""
    return dataclasses.asdict(overview)


def document(overview: Overview) -> Document:
    """Runs, then nodes, then this machine with its accelerators."""
    nodes = nodes_document(overview.nodes).sections[0].blocks if overview.nodes else []
    return Document(
        "Now",
        "overview",
        [
            Section("Runs", _runs(overview.runs)),
            Section("Nodes", nodes),
            Section("This machine", machine_blocks(overview.machine)),
        ],
    )


def _runs(runs: Sequence[LiveRun]) -> list[Block]:
    if not runs:
        return [Text("no run is waiting or running", "dim")]
    columns = [*left("run", "state"), *right("step", "loss", "step time", "planned", "rate", "ETA", "last step")]
    return [Table([*columns, Column("message", wrap=True)], [_run(run) for run in runs])]


def _run(run: LiveRun) -> list[Cell]:
    of = f"/{run.num_steps:,}" if run.num_steps else ""
    age = "" if run.last_step_age_s is None else f"{format_duration(run.last_step_age_s)} ago"
    return [
        Styled(run.run, "bold"),
        run.state.lower(),
        "" if run.step is None else f"{run.step:,}{of}",
        "" if run.loss is None else f"{run.loss:.4f}",
        _duration(run.step_s),
        _duration(run.planned_step_s),
        "" if run.tokens_per_s is None else f"{format_count(run.tokens_per_s)}/s",
        _duration(run.eta_s),
        Styled(age, "bad" if run.is_quiet else ""),
        run.message or "",
    ]


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def machine_blocks(machine: MachineLoad) -> list[Block]:
    """Busy cores and used memory in a line, and a row per accelerator."""
    cores = f"{machine.cores_busy:.1f} of {machine.cores} cores busy"
    memory = f"{format_bytes(machine.memory_used_bytes)} of {format_bytes(machine.memory_bytes)} memory used"
    blocks: list[Block] = [Text(f"{cores}, {memory}")]
    if machine.accelerators:
        columns = [*left("accelerator"), *right("busy", "memory", "power", "temperature")]
        blocks.append(Table(columns, [_accelerator(each) for each in machine.accelerators]))
    return blocks


def _accelerator(load: AcceleratorLoad) -> list[str]:
    memory = "" if load.memory_used_bytes is None else format_bytes(load.memory_used_bytes)
    whole = "" if load.memory_bytes is None else f" of {format_bytes(load.memory_bytes)}"
    limit = " W" if load.power_limit_w is None else f" of {load.power_limit_w:.0f} W"
    return [
        f"{load.index} {load.name}",
        "" if load.busy_share is None else f"{load.busy_share:.0%}",
        f"{memory}{whole}",
        "" if load.power_w is None else f"{load.power_w:.0f}{limit}",
        "" if load.temperature_c is None else f"{load.temperature_c} C",
    ]
