"""Read the sweeps of a folder, also while another process runs them."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.run_handle import Run, RunDir
from trainworks.api.sweeping.sweep import TrialRun
from trainworks.errors import EnvironmentProblem, UnknownRunError, suggest
from trainworks.record.sweeps.sweep import SweepResult, sweep_dir

__all__ = ["SweepResult", "read_sweep", "sweep_names"]


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
    curves = {}
    for trial in trials:
        run_dir = RunDir(Path(folder) / str(trial.run))
        if trial.run is None or not run_dir.resolved_file.is_file():
            continue
        try:
            run = TrialRun(trial, Run(run_dir), definition.objective)
            run.read()
            curves[trial.number] = run.reports()
        except EnvironmentProblem:  # another version wrote the run
            continue
    return SweepResult(definition, trials, curves, place.path)
