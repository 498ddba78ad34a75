"""Finished runs of this user: what was predicted of each, what it measured, and what the next plan learns from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from trainworks.errors import TrainworksError
from trainworks.files import append_text
from trainworks.record.environment import HostFacts
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.events.training import CompiledEvent
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.measured.step_anchor import log_spread
from trainworks.record.metric_columns import Steps, read_columns
from trainworks.record.metrics import warmup_steps
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import list_runs

_FEWEST_STEPS = 8
OF_COMMAND = "command "
"""Begins the name of a program that is not Trainworks."""


def machine_of(host: HostFacts) -> str:
    """Kind of machine: its accelerator, or its processor with the number of cores.

    Plans of one kind learn from each other's runs of any number of ranks.
    """
    name = host.accelerators[0].name if host.accelerators else f"{host.processor} {host.num_cores} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def software_of(resolved: ResolvedRun) -> str:
    """Program that trains: Trainworks on a version of torch, and whether formulas describe the model; or a command."""
    if not resolved.is_workload:
        return f"{OF_COMMAND}{resolved.run_file.name}"
    described = resolved.plan is None or resolved.plan.model.is_described
    return f"trainworks, torch {resolved.host.packages.get('torch', '')}{'' if described else ', own model'}"


def finished_run(run_dir: RunDir, finished_at: float) -> FinishedRun | None:
    """The record of a run that has ended.

    None if it had no plan with an interval, or too few steps of its layout; and for a command whose plan has the rates
    of the catalogue.
    """
    resolved = run_dir.read_resolved()
    plan, workload = resolved.plan, resolved.run_file.as_planned.workload
    recorded = read_columns(run_dir.metrics_file).steps()
    steps = recorded.where(~recorded.is_lost() & (recorded.num_steps > 0))
    attempts = np.unique(steps["attempt"])
    steady = steps.where(slice(warmup_steps(len(steps)), None))
    if plan is None or plan.expected is None or workload is None or len(attempts) != 1 or len(steady) < _FEWEST_STEPS:
        return None
    if plan.of_command and resolved.calibration is None:
        return None
    compiled = of_kind(read_events(run_dir.events_file), CompiledEvent)
    measured_s = float(np.median(steady.training_s))
    return FinishedRun(
        run=str(run_dir.path.resolve()),
        finished_at=finished_at,
        machine=machine_of(resolved.host),
        software=software_of(resolved),
        model=workload.model.title,
        layout=plan.layout.describe(),
        by_rate_s=plan.expected.by_rate_s,
        planned_s=plan.step_time.total_s,
        low_s=plan.expected.low_s,
        high_s=plan.expected.high_s,
        learned_from=plan.expected.learned_from,
        measured_s=measured_s,
        spread=log_spread(steady.training_s.tolist(), measured_s),
        num_steps=len(steady),
        compile_s=compiled[-1]["compile_s"] if compiled else None,
        terms_s=_terms_s(plan, steady, measured_s),
    )


def _terms_s(plan: Plan, steady: Steps, measured_s: float) -> dict[str, tuple[float, float]]:
    """Planned and measured time by term; `other` is what the terms leave of the step, on either side."""
    groups = plan.groups.model_dump()
    terms = {
        name.removesuffix("_s"): (float(planned), float(np.median(steady[name])))
        for name, planned in groups.items()
        if planned or not plan.of_command
    }
    planned_rest = plan.step_time.total_s - sum(planned for planned, _ in terms.values())
    return terms | {"other": (planned_rest, measured_s - sum(measured for _, measured in terms.values()))}


def finished_in(folder: Path) -> Iterator[FinishedRun]:
    """Runs of a folder that have succeeded, from their records, oldest first.

    Left out are those that `finished_run` leaves out, and records that cannot be read.
    """
    for run_dir in list_runs(folder):
        status = run_dir.read_status()
        if status.state != "SUCCEEDED":
            continue
        with suppress(OSError, TrainworksError, ValidationError):
            if (found := finished_run(run_dir, status.updated_at)) is not None:
                yield found


def remember_finished(file: Path, finished: FinishedRun) -> None:
    """Add a run to the user's finished runs; a run that was resumed counts with its last end.

    Raises:
        DiskFullError: no space left; earlier runs stay.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    append_text(file, finished.model_dump_json() + "\n")


def read_finished(file: Path, machine: str | None = None) -> list[FinishedRun]:
    """Finished runs in a file, on one kind of machine if it is given, oldest first; torn lines and those of other
    versions are skipped.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found: dict[str, FinishedRun] = {}
    for line in lines:
        try:
            finished = FinishedRun.model_validate_json(line)
        except ValidationError:
            continue
        if machine is None or finished.machine == machine:
            found.pop(finished.run, None)
            found[finished.run] = finished
    return list(found.values())
