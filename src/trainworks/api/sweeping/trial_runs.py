"""Runs of a sweep's trials: submitted once, watched through their records, stopped when they are hopeless."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from trainworks.api.run_handle import Run, backend_poller
from trainworks.api.run_request import RunRequest
from trainworks.api.runs import submit
from trainworks.errors import TrainworksError, UsageError
from trainworks.jobs.state import JobState
from trainworks.plan.sweeps.pruning import Reports, smoothed
from trainworks.record.metric_columns import MetricColumns
from trainworks.record.run_dir import RunDir
from trainworks.record.sweeps.sweep import SweepTrial

Objective = str
"""`loss`, `held-out loss` or `held-out accuracy`."""


class TrialRun:
    """The run of one trial.

    Args:
        trial: whose run it is.
        run: the run.
        objective: of the sweep.
    """

    def __init__(self, trial: SweepTrial, run: Run, objective: Objective) -> None:
        self.trial = trial
        self.run = run
        self._objective = objective
        self._poll: Callable[[], None] = backend_poller(run.run_dir)
        self._columns = MetricColumns(run.run_dir.metrics_file)

    def look(self) -> None:
        """Read what was added to the record."""
        self._poll()
        self._columns.look()

    @property
    def num_steps(self) -> int:
        """Steps of the whole trial; 0 while its nodes have not planned it."""
        plan = self.run.resolved.plan
        return plan.num_steps if plan else 0

    @property
    def steps_done(self) -> int:
        """Steps that it has trained."""
        steps = self._columns.steps()
        return int(np.nanmax(steps["step"])) if len(steps) else 0

    def reports(self) -> Reports:
        """Steps and costs so far; an accuracy counts as its negative."""
        recorded = self._columns.steps()
        steps = recorded.where(~recorded.is_lost())
        if self._objective == "loss":
            if not len(steps) or not self.num_steps:
                return []
            return smoothed(steps["loss"].tolist(), int(steps["step"][0]), self.num_steps)
        name, sign = ("eval_accuracy", -1.0) if self._objective == "held-out accuracy" else ("eval_loss", 1.0)
        evaluated = steps.where(np.isfinite(steps["evaluation_s"]))
        return [(int(s), sign * v) for s, v in zip(evaluated["step"].tolist(), evaluated[name].tolist(), strict=True)]

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
        state, message = job.state, job.row.message  # a job that could not be launched leaves no status
    if not state.is_final:
        return None
    trial_run.look()
    changes: dict[str, object] = {"steps": trial_run.steps_done}
    if state is JobState.SUCCEEDED and (value := trial_run.value()) is not None:
        return trial_run.trial.model_copy(update=changes | {"state": "succeeded", "value": value})
    message = message or f"its run ended as {state}"
    return trial_run.trial.model_copy(update=changes | {"state": "failed", "message": message})


def failed_to_start(trial: SweepTrial, error: TrainworksError) -> SweepTrial:
    """The trial of settings that no run can have."""
    return trial.model_copy(update={"state": "failed", "message": error.message})
