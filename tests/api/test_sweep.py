"""A sweep from its first trial to its table: trials end, are ended, fail, and survive the end of their sweep."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.resuming.changes import ResumeChanges
from trainworks.api.run_handle import Run
from trainworks.api.run_request import RunRequest
from trainworks.api.sweeping import sweep as sweeping
from trainworks.api.sweeping.search import OptunaSearch
from trainworks.api.sweeping.sweep import start_trial, sweep
from trainworks.config.load import parse_run_file
from trainworks.errors import UsageError
from trainworks.files import take_lock
from trainworks.plan.sweeps.space import Choice, NumberRange
from trainworks.record.status import RunStatus
from trainworks.record.sweeps.sweep import SweepTrial, sweep_dir
from trainworks.report.rendering.renderer import to_json

RUN_FILE = """
name: tiny
workload:
  task: causal-lm
  model: {architecture: llama, layers: 1, hidden: 32, heads: 2}
  data: {source: python-stdlib, sequence_length: 32}
  global_batch: 8
  train_for: 100 steps
"""
NUM_STEPS, STEPS_A_LOOK = 100, 20
SPACE = {"optimizer.lr": "1e-4,3e-3,1e-2,5.0"}


class Trainer:
    """Stands in for the queue: at every look each live run trains some steps; the loss depends on the learning rate.

    Args:
        folder: of all runs.
        looks: after which the process of the sweep ends; never when None.
    """

    def __init__(self, folder: Path, looks: int | None = None) -> None:
        self.folder, self.looks = folder, looks
        self.rates: dict[str, float] = {}
        self.writers: dict[str, RunWriter] = {}

    def start(self, trial: SweepTrial, request: RunRequest, folder: Path, *, review: bool) -> Run:
        """In the place of `start_trial`."""
        assert request.run_file.workload is not None
        run_id = f"{trial.run_name}-1"
        if run_id not in self.writers:
            self.writers[run_id] = RunWriter(folder, make_plan(num_steps=NUM_STEPS), None, trial.run_name)
            self.writers[run_id].launch()
            self.rates[run_id] = request.run_file.workload.optimizer.lr
        return Run(folder / run_id)

    def now(self) -> float:
        """The time."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """All live runs train."""
        if self.looks == 0:
            raise KeyboardInterrupt
        self.looks = None if self.looks is None else self.looks - 1
        ended = {trial.run for trial in sweep_dir(self.folder, "tiny").read_trials() if trial.state == "pruned"}
        for run_id, writer in self.writers.items():
            if run_id not in ended and writer.step < NUM_STEPS:
                for _ in range(STEPS_A_LOOK):
                    writer.steps(1, loss=2.0 + abs(self.rates[run_id] - 3e-3) * 100 - writer.step / 1000)
                state = "RUNNING" if writer.step < NUM_STEPS else "SUCCEEDED"
                writer.status(state, supervisor_host="another")


SweepNow = Callable[..., Any]


@pytest.fixture
def sweep_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepNow:
    """A function that sweeps with a trainer."""
    run_file, source = parse_run_file(RUN_FILE, name="tiny.yaml")

    def now(trainer: Trainer, space: Any = SPACE, **options: Any) -> Any:
        monkeypatch.setattr(sweeping, "start_trial", trainer.start)
        return sweep(RunRequest(run_file, source), space, folder=tmp_path, clock=trainer, **options)  # type: ignore[arg-type]

    return now


def test_a_grid_trains_every_point_once_and_names_the_best(sweep_with: SweepNow, tmp_path: Path) -> None:
    result = sweep_with(Trainer(tmp_path))
    assert [trial.state for trial in result.trials] == ["succeeded"] * 4
    assert [trial.run for trial in result.trials] == [f"tiny-t{number:03d}-1" for number in range(4)]
    assert result.best.settings == {"workload.optimizer.lr": "3e-3"}
    text = str(result)
    assert text.index("tiny-t001-1") < text.index("tiny-t000-1") < text.index("tiny-t002-1") < text.index("tiny-t003-1")
    assert to_json(result)["best"]["run"] == "tiny-t001-1"
    page = (tmp_path / "sweeps/tiny/sweep.html").read_text()
    assert "log10 workload.optimizer.lr" in page
    assert "trial-line" in page


@pytest.mark.parametrize("looks", [0, 1, 3, 7])
def test_a_sweep_that_was_killed_continues_and_trains_nothing_twice(
    sweep_with: SweepNow, tmp_path: Path, looks: int
) -> None:
    trainer = Trainer(tmp_path, looks)
    with pytest.raises(KeyboardInterrupt):
        sweep_with(trainer, parallel=2)
    trainer.looks = None
    result = sweep_with(trainer, parallel=2)
    assert [trial.state for trial in result.trials] == ["succeeded"] * 4
    assert sorted(path.name for path in tmp_path.glob("tiny-*")) == [f"tiny-t{number:03d}-1" for number in range(4)]
    assert all(trial.steps == NUM_STEPS for trial in result.trials)
    assert sweep_with(trainer, parallel=2).best.value == result.best.value, "a sweep that has ended is not the same"


def test_a_trial_that_was_only_proposed_is_started_by_the_next_process(sweep_with: SweepNow, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt):
        sweep_with(trainer, parallel=1)
    place = sweep_dir(tmp_path, "tiny")
    place.append(SweepTrial(number=1, settings={"workload.optimizer.lr": "3e-3"}, run_name="tiny-t001"))
    trainer.looks = None
    assert [trial.number for trial in sweep_with(trainer, parallel=1).trials] == [0, 1, 2, 3]


def test_a_run_directory_that_was_never_submitted_makes_room_and_a_submitted_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWORKS_STORE", f"sqlite:///{tmp_path}/jobs.db")
    run_file, source = parse_run_file(RUN_FILE, name="tiny.yaml")
    submitted = []

    def submit(request: RunRequest, *, name: str, folder: Path, review: bool) -> Run:
        submitted.append(name)
        return Run(RunWriter(folder, make_plan(), None, name).run_dir)

    monkeypatch.setattr(sweeping, "submit", submit)
    trial = SweepTrial(number=0, settings={}, run_name="tiny-t000")
    RunWriter(tmp_path, make_plan(), None, "tiny-t000")
    first = start_trial(trial, RunRequest(run_file, source), tmp_path, review=False)
    assert (first.id, submitted) == ("tiny-t000-1", ["tiny-t000"])
    first.run_dir.write_status(RunStatus(state="RUNNING", supervisor_host="another", updated_at=1.0))
    start_trial(trial, RunRequest(run_file, source), tmp_path, review=False)
    assert submitted == ["tiny-t000"]


@pytest.mark.parametrize("rule", ["median", "asha"])
def test_pruning_ends_the_worst_trial_early_and_keeps_the_best(sweep_with: SweepNow, tmp_path: Path, rule: str) -> None:
    result = sweep_with(Trainer(tmp_path), pruning=rule)
    worst = result.trials[3]
    assert worst.state == "pruned"
    assert worst.steps < NUM_STEPS
    assert result.best.settings == {"workload.optimizer.lr": "3e-3"}
    assert result.best.steps == NUM_STEPS


def test_a_record_that_is_elsewhere_is_fetched_before_its_trial_is_judged(
    sweep_with: SweepNow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(run: Run) -> Run:
        (run.path / "there").rename(run.run_dir.metrics_file)
        return run

    class Elsewhere(Trainer):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            for run_id, writer in self.writers.items():
                if writer.step >= NUM_STEPS and (file := Run(self.folder / run_id).run_dir.metrics_file).exists():
                    file.rename(file.with_name("there"))

    monkeypatch.setattr(Run, "with_record", fetch)
    result = sweep_with(Elsewhere(tmp_path))
    assert result.best.settings == {"workload.optimizer.lr": "3e-3"}
    assert [trial.steps for trial in result.trials] == [NUM_STEPS] * 4


def test_pruning_is_refused_where_no_curve_is_seen_meanwhile() -> None:
    run_file, source = parse_run_file(f"{RUN_FILE}cluster: kubernetes\n", name="tiny.yaml")
    with pytest.raises(UsageError, match="ends trials early by their curves"):
        sweep(RunRequest(run_file, source), SPACE, pruning="asha")


def test_a_setting_that_changes_the_plan_of_a_command_alone_is_refused() -> None:
    run_file, source = parse_run_file("name: tiny\nrun: python train.py\n", name="tiny.yaml")
    with pytest.raises(UsageError, match="changes the plan of the command, and not the command") as caught:
        sweep(RunRequest(run_file, source), {"trains.global_batch": "4,8", "envs.LR": "0.1,0.2"})
    assert "`--set envs.GLOBAL_BATCH=...`" in str(caught.value.hint)


def test_settings_that_no_run_can_have_fail_alone(sweep_with: SweepNow, tmp_path: Path) -> None:
    result = sweep_with(Trainer(tmp_path), {"optimizer.lr": [3e-3, -1.0]})
    assert [trial.state for trial in result.trials] == ["succeeded", "failed"]
    assert "greater than 0" in result.trials[1].message


def test_another_space_under_the_same_name_is_refused(sweep_with: SweepNow, tmp_path: Path) -> None:
    sweep_with(Trainer(tmp_path))
    with pytest.raises(UsageError, match="sweep `tiny` exists with another run file, space or search"):
        sweep_with(Trainer(tmp_path), {"optimizer.lr": "1e-4"})


def test_a_sweep_of_another_process_is_refused(sweep_with: SweepNow, tmp_path: Path) -> None:
    place = sweep_dir(tmp_path, "tiny")
    place.path.mkdir(parents=True)
    lock = take_lock(place.lock_file)
    assert lock is not None
    with pytest.raises(UsageError, match="run by another process"):
        sweep_with(Trainer(tmp_path))
    os.close(lock)


def test_a_resume_guesses_the_misspelt_key() -> None:
    with pytest.raises(UsageError) as caught:
        ResumeChanges(settings={"optimzer.lr": 1}).by_key()
    assert caught.value.hint == "did you mean `optimizer.lr`?"


def test_optuna_proposes_the_same_after_the_same_trials_and_learns_from_them() -> None:
    pytest.importorskip("optuna", reason="a sweep with Optuna needs trainworks[sweep]")
    space = {"lr": NumberRange(1e-6, 1.0, whole=False), "batch": Choice((8, 16))}
    trials: list[SweepTrial] = []
    for number in range(30):
        search = OptunaSearch(space, 30, seed=1, maximize=False)
        settings = search.propose(number, trials)
        assert settings == OptunaSearch(space, 30, seed=1, maximize=False).propose(number, trials)
        value = abs(math.log10(settings["lr"] / 1e-3)) + (settings["batch"] == 8)
        trials.append(SweepTrial(number=number, settings=settings, run_name="x", state="succeeded", value=value))
    late = [trial.value or 0.0 for trial in trials[20:]]
    early = [trial.value or 0.0 for trial in trials[:10]]
    assert sum(late) < sum(early) / 1.5
