"""Sweep: train a run with several settings through its queue, stop bad trials early, name the best."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trainworks.api.run_handle import Run, backend_poller
from trainworks.api.run_request import RunRequest, RunTarget, read_run
from trainworks.api.runs import submit
from trainworks.api.sweeping.read_sweep import trial_reports
from trainworks.api.sweeping.search import Search, SearchName, make_search
from trainworks.backends.registry import shares_files
from trainworks.config.load import full_key, parse_run_file, with_settings
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import TrainworksError, UsageError
from trainworks.files import closing_handle, take_lock
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.state import JobState
from trainworks.plan.sweeps.pruning import Pruning, Reports, should_stop
from trainworks.plan.sweeps.space import Choice, Space, parse_dimension
from trainworks.record.events.log import read_events
from trainworks.record.history import known_steps
from trainworks.record.metric_columns import MetricColumns
from trainworks.record.run_dir import RunDir
from trainworks.record.sweeps.sweep import SweepDefinition, SweepDir, SweepResult, SweepTrial, sweep_dir

_POLL_S = 0.5
_MOST_TRIALS = 10_000


SweepProgress = Callable[[int, int], None]
"""Called with the numbers of trials that have ended and that are in the queue, whenever one of them changed."""


def sweep(
    target: RunTarget,
    space: Mapping[str, Any],
    *,
    search: SearchName = "grid",
    trials: int | None = None,
    seed: int = 0,
    pruning: Pruning | None = None,
    parallel: int = 4,
    name: str | None = None,
    folder: Path | str | None = None,
    progress: SweepProgress = lambda ended, queued: None,
    clock: Clock | None = None,
) -> SweepResult:
    """Train with several settings, each as a run of its own in the queue of its cluster.

    A command gets its settings by `envs`, and its curve is what the record has of its program.

    A sweep that was killed continues when it is called again: no trial is trained twice.

    Args:
        target: a run file, as for `run`.
        space: by key of the run file a list of values, or text: `1e-4,3e-4` or the range `1e-5..1e-2`. `optimizer`,
            `eval` and other keys of the workload may stand without `workload.`.
        search: every combination, independent draws, or Optuna's proposals.
        trials: number of trials of `random` and `optuna`.
        seed: of the draws.
        pruning: rule that ends trials early.
        parallel: most trials in the queue at the same time.
        name: name of the sweep; that of the run file by default.
        folder: folder of all runs, instead of the run file's `checkpoint.to`.
        progress: follows the trials.
        clock: to wait with.

    Returns:
        The trials; those whose settings no run can have have failed, with the reason.

    Raises:
        UsageError: the space is not valid or has a key of `trains`, or another process runs this sweep.
        RunFileError: a problem in the run file.
        MissingExtraError: Optuna is not installed.
    """
    request = read_run(target)
    if pruning is not None and not shares_files(request.run_file.cluster.engine):
        hint = "leave out `--prune`: this cluster shows what a run measured at its end"
        raise UsageError("a sweep ends trials early by their curves, which have to be there meanwhile", hint=hint)
    dimensions = {full_key(key): parse_dimension(key, written) for key, written in space.items()}
    if plans := [key for key in dimensions if key.partition(".")[0] == "trains"]:
        variable = plans[0].rpartition(".")[2].upper()
        raise UsageError(
            f"`{plans[0]}` changes the plan of the command, and not the command: all trials would be the same",
            hint=f"sweep a variable that the program reads: `--set envs.{variable}=...`",
        )
    objective = _objective(request.run_file)
    chosen = make_search(search, dimensions, num_trials=trials, seed=seed, maximize=objective == "held-out accuracy")
    if not 1 <= chosen.num_trials <= _MOST_TRIALS:
        raise UsageError(f"a sweep has 1 to {_MOST_TRIALS:,} trials, not {chosen.num_trials:,}")
    definition = SweepDefinition.model_validate(
        {
            "name": name or request.run_file.name,
            "run_file": request.run_file.model_dump(mode="json", exclude_unset=True),
            "space": {key: _described(dimensions, key) for key in dimensions},
            "search": search,
            "num_trials": chosen.num_trials,
            "seed": seed,
            "objective": objective,
            "pruning": pruning,
        }
    )
    runs = Path(folder or request.run_file.checkpoint.to)
    place = sweep_dir(runs, definition.name)
    with _alone(place, definition):
        runner = _Sweeper(definition, request, chosen, place, runs, parallel=parallel, progress=progress)
        runner.run(clock or SystemClock())
        result = runner.result()
        result.write_html(place.page)
        return result


def _objective(run_file: RunFile) -> str:
    if run_file.workload is None:
        return run_file.metrics.objective
    return "loss" if run_file.workload.eval is None else f"held-out {run_file.workload.eval.metric}"


def _described(space: Space, key: str) -> Any:
    dimension = space[key]
    if isinstance(dimension, Choice):
        return list(dimension.values)
    return f"{dimension.low:g}..{dimension.high:g}"


@contextmanager
def _alone(place: SweepDir, definition: SweepDefinition) -> Iterator[None]:
    """Run the sweep in one process at a time, and as it was defined."""
    place.path.mkdir(parents=True, exist_ok=True)
    if (lock := take_lock(place.lock_file)) is None:
        raise UsageError(f"sweep `{definition.name}` is run by another process", hint="give this one another `--name`")
    with closing_handle(lock):
        before = place.read_definition()
        if before is not None and before != definition:
            raise UsageError(
                f"sweep `{definition.name}` exists with another run file, space or search",
                place=str(place.path),
                hint="give this one another `--name`, or repeat the command of before to continue it",
            )
        if before is None:
            place.write_definition(definition)
        yield


class _Sweeper:
    """Keeps up to `parallel` trials in the queue until all have ended."""

    def __init__(
        self,
        definition: SweepDefinition,
        request: RunRequest,
        search: Search,
        place: SweepDir,
        runs: Path,
        *,
        parallel: int,
        progress: SweepProgress,
    ) -> None:
        self._definition, self._request, self._search = definition, request, search
        self._place, self._runs, self._parallel, self._progress = place, runs, parallel, progress
        self._trials = {trial.number: trial for trial in place.read_trials()}
        self._going: dict[int, TrialRun] = {}
        self._curves = {
            trial.number: self._watched(trial).reports() for trial in self._trials.values() if trial.run is not None
        }

    def run(self, clock: Clock) -> None:
        """Start, watch and stop trials until all have ended."""
        for trial in self._trials.values():
            if trial.state == "pruned":  # written down before its run is stopped
                self._watched(trial).stop()
            elif not trial.has_ended or trial.run is None:  # what could not start may start now
                self._start(trial)
        while True:
            while len(self._going) < self._parallel and len(self._trials) < self._search.num_trials:
                self._start(self._next())
            if not self._going:
                return
            clock.sleep(_POLL_S)
            for each in list(self._going.values()):
                self._look(each)

    def result(self) -> SweepResult:
        """The sweep as it stands."""
        trials = tuple(self._trials[number] for number in sorted(self._trials))
        return SweepResult(self._definition, trials, dict(self._curves), self._place.path)

    def _next(self) -> SweepTrial:
        number = len(self._trials)
        earlier = [self._trials[index] for index in range(number)]
        settings = self._search.propose(number, earlier)
        return SweepTrial(number=number, settings=settings, run_name=f"{self._definition.name}-t{number:03d}")

    def _start(self, trial: SweepTrial) -> None:
        """Write the trial down, then start its run: a kill in between leaves what the next process completes."""
        self._keep(trial)
        try:
            run = start_trial(trial, self._with(trial.settings), self._runs, review=trial.number == 0)
        except TrainworksError as error:
            if not isinstance(error, UsageError) and not any(each.run for each in self._trials.values()):
                raise  # a queue that is out of reach is not the fault of the settings
            self._keep(failed_to_start(trial, error))
            return
        self._keep(trial.model_copy(update={"run": run.id, "state": "submitted"}))
        self._going[trial.number] = self._watched(self._trials[trial.number])

    def _watched(self, trial: SweepTrial) -> TrialRun:
        found = TrialRun(trial, Run(RunDir(self._runs / str(trial.run))), self._definition.objective)
        found.look()
        return found

    def _look(self, watched: TrialRun) -> None:
        number = watched.trial.number
        watched.look()
        self._curves[number] = watched.reports()
        ended = ended_as(watched)
        if ended is None and self._is_hopeless(watched):
            cost = self._curves[number][-1][1]
            value = -cost if self._definition.objective == "held-out accuracy" else cost
            changes = {"state": "pruned", "value": value if math.isfinite(value) else None, "steps": watched.steps_done}
            self._keep(watched.trial.model_copy(update=changes))
            watched.stop()
        if ended is not None:
            self._curves[number] = watched.reports()
            self._keep(ended)
        if self._trials[number].has_ended:
            del self._going[number]

    def _is_hopeless(self, watched: TrialRun) -> bool:
        if self._definition.pruning is None or not watched.num_steps:
            return False
        number = watched.trial.number
        others = [curve for other, curve in self._curves.items() if other != number]
        return should_stop(self._definition.pruning, self._curves[number], others, num_steps=watched.num_steps)

    def _keep(self, trial: SweepTrial) -> None:
        self._trials[trial.number] = trial
        self._place.append(trial)
        ended = sum(each.has_ended for each in self._trials.values())
        self._progress(ended, sum(each.state == "submitted" for each in self._trials.values()))

    def _with(self, settings: Mapping[str, Any]) -> RunRequest:
        """The request with the settings of a trial, and with a text that says them."""
        changed = with_settings(self._request.run_file, settings)
        before = self._request.source
        name = before.name if isinstance(before, Source) else "run.yaml"
        text = yaml.safe_dump(changed.model_dump(mode="json", exclude_unset=True), sort_keys=False)
        run_file, source = parse_run_file(text, name=name)
        return replace(self._request, run_file=run_file, source=source)


Objective = str
"""`loss`, `held-out loss` or `held-out accuracy`."""


class TrialRun:
    """The run of one trial."""

    def __init__(self, trial: SweepTrial, run: Run, objective: Objective) -> None:
        self.trial = trial
        self.run = run
        self._objective = objective
        self._poll: Callable[[], None] = backend_poller(run.run_dir)
        self._columns = MetricColumns(run.run_dir.metrics_file)

    def look(self) -> None:
        """Ask the backend for the state, and read what was added to the record."""
        self._poll()
        self._columns.look()

    @property
    def num_steps(self) -> int:
        """Steps of the whole trial; 0 while they are not known, at its end those that it has trained."""
        known = known_steps(self.run.resolved, read_events(self.run.run_dir.events_file))
        return known or (self.steps_done if self.run.state.is_final else 0)

    @property
    def steps_done(self) -> int:
        """Steps that it has trained."""
        steps = self._columns.steps()
        return int(np.nanmax(steps["step"])) if len(steps) else 0

    def reports(self) -> Reports:
        """Steps and costs so far; an accuracy counts as its negative."""
        return trial_reports(self._columns, self._objective, self.num_steps)

    def value(self) -> float | None:
        """The objective: the best evaluation, or the training loss of the last twentieth of the steps."""
        costs = [cost for _, cost in self.reports() if np.isfinite(cost)]
        if not costs:
            return None
        if self._objective == "loss":
            return costs[-1]
        return -min(costs) if self._objective == "held-out accuracy" else min(costs)

    def stop(self) -> None:
        """End the run without a checkpoint; one that ends by itself at this moment has ended."""
        with suppress(UsageError):
            self.run.stop(at_once=True)


def start_trial(trial: SweepTrial, request: RunRequest, folder: Path, *, review: bool) -> Run:
    """The run of a trial: submitted now, or the one that an earlier process of the sweep has submitted.

    A process that was killed between making the run and submitting it leaves a run that never trained: it goes.

    Raises:
        TrainworksError: the run cannot start with these settings.
    """
    path = folder / f"{trial.run_name}-1"
    if path.is_dir():
        earlier = Run(RunDir(path))
        if earlier.standing()[0] is not JobState.CREATED:
            return earlier
        shutil.rmtree(path)
    return submit(request, name=trial.run_name, folder=folder, review=review)


def ended_as(trial_run: TrialRun) -> SweepTrial | None:
    """The trial with its result, if its run has ended; None before."""
    state, message = trial_run.run.state, trial_run.run.status.message
    if state.waits and (job := trial_run.run.job) is not None:
        state, message = job.state, job.row.end.message  # a job that could not be launched leaves no status
    if not state.is_final:
        return None
    trial_run.run.with_record()
    trial_run.look()
    changes: dict[str, object] = {"steps": trial_run.steps_done}
    if state is JobState.SUCCEEDED and (value := trial_run.value()) is not None:
        return trial_run.trial.model_copy(update=changes | {"state": "succeeded", "value": value})
    message = message or f"its run ended as {state}"
    return trial_run.trial.model_copy(update=changes | {"state": "failed", "message": message})


def failed_to_start(trial: SweepTrial, error: TrainworksError) -> SweepTrial:
    """The trial of settings that no run can have."""
    return trial.model_copy(update={"state": "failed", "message": error.message})
