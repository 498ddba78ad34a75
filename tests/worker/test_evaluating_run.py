"""Evaluation in whole runs: training unchanged, the best checkpoint kept, early stop over kills, time accounted for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.harness import TinyRun, events
from trainworks.api.checkpointing.checkpoints import prune_checkpoints
from trainworks.api.checkpointing.exports import export_model
from trainworks.api.run_handle import Run
from trainworks.config.data import Evaluation
from trainworks.record.evaluations import EvaluatedStep, best_evaluation, read_evaluations, standing
from trainworks.record.events.log import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.history import build_history
from trainworks.record.ledger import build_ledger
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.metric_columns import read_columns
from trainworks.report.runs.summary import build_report

NewRun = Callable[..., TinyRun]


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> str:
    """Text of the same words, in another order."""
    file = tmp_path_factory.mktemp("held-out") / "text.txt"
    words = (corpus / "0.txt").read_text().split()
    file.write_text(" ".join(reversed(words[:3000])))
    return str(file)


def results(run: TinyRun) -> list[tuple[int, float]]:
    return [(row["step"], row["evaluation"]["loss"]) for row in run.rows() if "evaluation" in row]


def test_losses_are_bit_identical_with_and_without_evaluation(
    new_run: NewRun, undisturbed: NewRun, held_out: str
) -> None:
    evaluated = new_run(workload__eval={"data": held_out, "every": "5 steps", "steps": 3})
    assert evaluated.train() == [0, 0]
    assert evaluated.curve() == undisturbed().curve()
    assert [step for step, _ in results(evaluated)] == [5, 10, 15, 20, 24]
    assert results(evaluated)[-1][1] < results(evaluated)[0][1], "the held-out loss does not fall"


def test_evaluation_has_its_own_time_in_the_ledger(new_run: NewRun, held_out: str) -> None:
    run = new_run(workload__eval={"data": held_out, "every": "5 steps"})
    assert run.train() == [0, 0]
    found, columns = read_events(run.run_dir.events_file), read_columns(run.run_dir.metrics_file)
    resolved, status = run.run_dir.read_resolved(), run.run_dir.read_status()
    end = columns.steps()["t"][-1]
    history = build_history(found, columns, created_at=resolved.created_at, status=status, now=end)
    ledger = build_ledger(history)
    spent = sum(row.get("evaluation_s", 0.0) for row in run.rows())
    assert ledger.evaluation_s == pytest.approx(spent, rel=0.05)
    assert ledger.evaluation_s > 0
    assert ledger.wall_clock_s == pytest.approx(history.end_at - history.start_at)


STOPS_EARLY = {"every": "3 steps", "steps": 2, "patience": 2, "min_delta": 0.5}
"""No evaluation improves by so much twice in a row for long."""


def test_an_early_stop_is_the_same_after_kills(new_run: NewRun, held_out: str) -> None:
    settings = STOPS_EARLY | {"data": held_out}
    changes: dict[str, Any] = {"workload__eval": settings, "checkpoint__every": "2 steps"}
    untouched = new_run(**changes)
    assert untouched.train() == [0, 0]
    (finished,) = events(untouched, "finished")
    assert finished["early"]
    assert finished["step"] < 24

    killed = new_run(**changes)
    killed.train(until=killed.step_is_recorded(4))
    killed.train(until=killed.step_is_recorded(finished["step"] - 1))
    assert killed.train() == [0, 0]
    assert events(killed, "finished")[-1]["step"] == finished["step"]
    assert results(killed) == results(untouched)
    assert killed.curve() == untouched.curve()
    assert killed.train() == [0, 0], "a run that has stopped early goes on"
    assert [row["step"] for row in killed.rows()] == [row["step"] for row in untouched.rows()]


def test_the_best_checkpoint_is_kept_beside_the_newest_ones_pruned_never_and_exported(
    new_run: NewRun, tmp_path: Path
) -> None:
    """A learning rate far too high makes the model worse from some step on."""
    run = new_run(
        workload__eval={"split": 0.34, "every": "2 steps", "steps": 2},
        workload__train_for="30 steps",
        workload__optimizer={"lr": 20.0, "schedule": "constant", "warmup": "30 steps"},
        checkpoint={"every": "2 steps", "keep": 2},
    )
    assert run.train() == [0, 0]
    best = best_evaluation(run.run_dir)
    assert best is not None
    kept = [manifest.step for manifest, _ in complete_checkpoints(run.run_dir)]
    assert best.step < 28, "the planted run improves to its end"
    assert kept == [best.step, 28, 30]

    ended = Run(run.run_dir)
    prune_checkpoints(ended, keep=1)
    assert [manifest.step for manifest, _ in complete_checkpoints(run.run_dir)] == [best.step, 30]
    append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
    made = export_model(run.run_dir, tmp_path / "best", step=None, best=True, dtype="fp32", progress=lambda *_: None)
    assert made["step"] == best.step
    newest = export_model(run.run_dir, tmp_path / "newest", step=None, dtype="fp32", progress=lambda *_: None)
    assert newest["step"] == 30
    ours, other = (load_file(tmp_path / name / "model.safetensors") for name in ("best", "newest"))
    assert any(not torch.equal(ours[name], other[name]) for name in ours)


def settings(**changes: Any) -> Evaluation:
    return Evaluation.model_validate({"split": 0.1, "every": "1 steps"} | changes)


def series(*values: float) -> list[EvaluatedStep]:
    return [EvaluatedStep(step, value) for step, value in enumerate(values, 1)]


def test_a_value_improves_only_by_more_than_min_delta() -> None:
    found = standing(series(3.0, 2.9, 2.8, 2.4), settings(min_delta=0.5))
    assert found.best == EvaluatedStep(4, 2.4)
    assert found.num_without_improvement == 0
    assert standing(series(3.0, 2.9, 2.8), settings(min_delta=0.5)).num_without_improvement == 2


def test_accuracy_is_better_when_higher_and_what_is_not_finite_is_never_best() -> None:
    found = standing(series(float("nan"), 0.5, 0.7, 0.6), settings(metric="accuracy"))
    assert found.best == EvaluatedStep(3, 0.7)
    assert found.num_without_improvement == 1


def test_evaluations_that_a_restart_undid_do_not_count(new_run: NewRun, held_out: str) -> None:
    run = new_run(workload__eval={"data": held_out, "every": "3 steps", "steps": 1}, checkpoint__every="8 steps")
    run.train(until=run.step_is_recorded(12))
    assert run.train() == [0, 0]
    steps = [each.step for each in read_evaluations(run.run_dir, "loss")]
    assert steps == [3, 6, 9, 12, 15, 18, 21, 24]


OWN = """
import torch

def measure(batch):
    counted = batch.labels != -100
    right = (batch.predictions == batch.labels) & counted
    assert batch.labels.shape[1] == 32 and batch.logits is None
    return {
        "right": (right.sum(), counted.sum()),
        "bits": -batch.log_probabilities[counted].mean().item() / torch.log(torch.tensor(2.0)).item(),
        "samples-seen": (len(batch.labels), 1),
    }

def fail(batch):
    raise ValueError("no such value")

def forget(batch):
    return 3.0
"""


@pytest.fixture
def several_sets(tmp_path: Path, corpus: Path, held_out: str) -> dict[str, Any]:
    """Settings of two held-out sets with a metric of the user's own and a text, of which the second decides."""
    (tmp_path / "runs" / "own").mkdir(parents=True)
    (tmp_path / "runs" / "own" / "measures.py").write_text(OWN)
    return {
        "data": {"other": held_out, "same": {"source": str(corpus / "0.txt")}},
        "metric_of": "same",
        "every": "8 steps",
        "steps": 2,
        "metrics": ["own.measures:measure"],
        "generate": {"prompts": ["ab", "fe d"], "tokens": 5, "temperature": 0.8, "seed": 3},
    }


def outcomes(run: TinyRun) -> tuple[list[Any], dict[Any, str]]:
    evaluated = [(row["step"], row["evaluation"]) for row in run.rows() if "evaluation" in row]
    return evaluated, {(each["step"], each["prompt"]): each["text"] for each in events(run, "sample")}


def test_every_named_set_has_its_figures_and_a_text_and_training_and_kills_change_nothing(
    new_run: NewRun, undisturbed: NewRun, several_sets: dict[str, Any]
) -> None:
    run = new_run(workload__eval=several_sets)
    assert run.train() == [0, 0]
    assert run.curve() == undisturbed().curve()
    found, texts = outcomes(run)
    assert [step for step, _ in found] == [8, 16, 24]
    for _, result in found:
        figures = result["figures"]
        assert result["loss"] == figures["same/loss"] != figures["other/loss"]
        assert figures["other/bits"] == pytest.approx(figures["other/loss"] / math.log(2), rel=1e-5)
        assert 0 <= figures["same/right"] <= 1
        assert figures["same/samples-seen"] == 4, "the mean micro-batch of two ranks with 8 samples"
    assert found[-1][1]["figures"]["same/right"] > 0, "the model has learnt nothing"
    assert texts.keys() == {(step, prompt) for step in (8, 16, 24) for prompt in ("ab", "fe d")}
    best = best_evaluation(run.run_dir)
    assert best is not None
    assert best.value == min(result["figures"]["same/loss"] for _, result in found)

    report = build_report(run.run_dir, time.time())
    assert report.evaluations is not None
    assert report.evaluations.decided_by == "loss of same"
    assert [each.text for each in report.evaluations.texts] == list(texts.values())
    assert report.sample is None
    assert report.curves is not None
    assert [step for step, _ in report.curves.held_out["other/bits"]] == [8, 16, 24]

    killed = new_run(workload__eval=several_sets)
    killed.train(until=killed.step_is_recorded(9), before=18)
    assert killed.train() == [0, 0]
    assert outcomes(killed) == (found, texts)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fail", "ValueError: no such value"),
        ("forget", "something else than numbers"),
        ("lack", "has no function `lack`"),
    ],
)
def test_a_metric_that_fails_is_named_with_its_file_and_line(
    new_run: NewRun, several_sets: dict[str, Any], function: str, message: str
) -> None:
    run = new_run(
        workload__eval=several_sets | {"metrics": [f"own.measures:{function}"]}, cluster__processes_per_node=1
    )
    assert run.train() == [ExitCode.USER_ERROR]
    (failure,) = events(run, "failure")
    line = {"fail": 15, "forget": 17, "lack": 1}[function]
    assert f"own/measures.py:{line}: " in failure["message"]
    assert message in failure["message"]


def test_figures_and_texts_are_those_of_every_layout(new_run: NewRun, several_sets: dict[str, Any]) -> None:
    several_sets["generate"] = {"prompts": ["ab"], "tokens": 4}
    changes: dict[str, Any] = {"workload__eval": several_sets | {"every": "4 steps"}, "workload__train_for": "4 steps"}
    layouts = [{"dp_replicate": 2}, {"dp_shard": 2, "zero": 3}, {"tp": 2}, {"pp": 2}]
    runs = [new_run(**changes, layout=layout | {"micro_batch": 2}) for layout in layouts]
    assert [run.train() for run in runs] == [[0, 0]] * 4
    ((first, texts), *others) = [outcomes(run) for run in runs]
    for found, others_texts in others:
        assert found[0][1]["figures"] == pytest.approx(first[0][1]["figures"], abs=1e-4)
        assert others_texts == texts
