"""Read the sweeps of a folder, also while another process runs them, and the curves of their trials."""

from __future__ import annotations

from pathlib import Path

from trainworks.errors import EnvironmentProblem, UnknownRunError, suggest
from trainworks.plan.sweeps.pruning import Reports, smoothed
from trainworks.record.events.log import read_events
from trainworks.record.history import known_steps
from trainworks.record.metric_columns import MetricColumns, read_columns
from trainworks.record.run_dir import RunDir
from trainworks.record.sweeps.sweep import SweepResult, SweepTrial, sweep_dir

__all__ = ["SweepResult", "read_sweep", "sweep_names", "trial_reports"]


def sweep_names(folder: Path | str = "runs") -> list[str]:
    """Names of the sweeps of a folder of runs, the newest first."""
    found = [path for path in (Path(folder) / "sweeps").glob("*/sweep.json") if path.is_file()]
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def read_sweep(name: str, *, folder: Path | str = "runs") -> SweepResult:
    """A sweep as its folder has it now, with the curves of the trials whose runs are in the folder.

    Raises:
        UnknownRunError: no such sweep.
        EnvironmentProblem: another version wrote it.
    """
    known = sweep_names(folder)
    place = sweep_dir(Path(folder), name)
    definition = place.read_definition() if name in known else None
    if definition is None:
        raise UnknownRunError(f"no sweep `{name}`", hint=suggest(name, known))
    trials = tuple(place.read_trials())
    found = {trial.number: _recorded(trial, Path(folder), definition.objective) for trial in trials if trial.run}
    curves = {number: curve for number, curve in found.items() if curve}
    return SweepResult(definition, trials, curves, place.path)


def _recorded(trial: SweepTrial, folder: Path, objective: str) -> Reports:
    """The curve of a trial; empty where its run is elsewhere, or another version wrote it."""
    run_dir = RunDir(folder / str(trial.run))
    try:
        known = known_steps(run_dir.read_resolved(), read_events(run_dir.events_file))
    except EnvironmentProblem:
        return []
    return trial_reports(
        read_columns(run_dir.metrics_file), objective, known or (trial.steps if trial.has_ended else 0)
    )


def trial_reports(columns: MetricColumns, objective: str, num_steps: int) -> Reports:
    """Steps and costs of a trial so far; an accuracy counts as its negative.

    Args:
        columns: what the trial has recorded.
        objective: `loss`, `held-out loss` or `held-out accuracy`.
        num_steps: steps of the whole trial, over a share of which a loss is smoothed; 0 while they are not known.
    """
    recorded = columns.steps()
    steps = recorded.where(~recorded.is_lost())
    if objective == "loss":
        trained = steps.trained()
        done = trained["step"].astype(int).tolist()
        return smoothed(done, trained["loss"].tolist(), num_steps) if num_steps else []
    name, sign = ("eval_accuracy", -1.0) if objective == "held-out accuracy" else ("eval_loss", 1.0)
    evaluated = steps.evaluated()
    return [(int(s), sign * v) for s, v in zip(evaluated["step"].tolist(), evaluated[name].tolist(), strict=True)]
