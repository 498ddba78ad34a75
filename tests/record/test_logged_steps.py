"""What a program says of its steps, as rows of the record."""

from __future__ import annotations

import numpy as np
import pytest

from trainworks.record.evaluations import evaluated_steps
from trainworks.record.metric_columns import read_columns
from trainworks.record.metrics import LoggedSteps, append_metrics


def test_a_step_has_the_mean_time_since_the_one_before() -> None:
    rows = LoggedSteps(2).rows([{"step": 10, "t": 5.0, "loss": 3.0}, {"step": 20, "t": 7.0, "loss": 2.0, "lr": 0.5}])
    assert rows[0] == {"step": 10, "attempt": 2, "t": 5.0, "num_steps": 1, "step_s": 0.0, "compute_s": 0.0, "loss": 3.0}
    assert rows[1]["num_steps"] == 10 and rows[1]["lr"] == 0.5
    assert rows[1]["step_s"] == rows[1]["compute_s"] == pytest.approx(0.2)


def test_an_evaluation_follows_its_step_and_its_time_is_no_training() -> None:
    said = [
        {"step": 10, "t": 5.0, "loss": 3.0},
        {"step": 10, "t": 8.0, "eval_loss": 2.5, "eval_accuracy": 0.5},
        {"step": 20, "t": 10.0, "loss": 2.0},
    ]
    _, evaluated, after = LoggedSteps(1).rows(said)
    assert evaluated["num_steps"] == 0 and evaluated["evaluation_s"] == evaluated["step_s"] == 3.0
    assert evaluated["evaluation"] == {"loss": 2.5, "accuracy": 0.5}
    assert after["compute_s"] == pytest.approx(0.2)


def test_an_accuracy_alone_is_an_evaluation_and_one_behind_its_loss_belongs_to_it(tmp_path) -> None:
    file, steps = tmp_path / "metrics.jsonl", LoggedSteps(1)
    said = [{"step": 1, "t": 1.0, "loss": 3.0}, {"step": 1, "t": 2.0, "eval_accuracy": 0.25}]
    said += [{"step": 2, "t": 3.0, "loss": 2.0}, {"step": 2, "t": 4.0, "eval_loss": 2.5}]
    said += [{"step": 2, "t": 4.0, "eval_accuracy": 0.5}, {"step": 3, "t": 5.0, "loss": 1.0}]
    append_metrics(file, steps.rows([*said, {"step": 3, "t": 6.0, "eval_accuracy": 0.75}]))
    append_metrics(file, steps.rows([{"step": 3, "t": 6.5, "eval_loss": 1.5}]))  # later, when the row is written
    columns = read_columns(file).steps()
    assert not columns.is_lost().any()
    counting = columns.evaluated()
    assert counting["step"].tolist() == [1, 2, 3]
    assert counting["eval_accuracy"].tolist() == [0.25, 0.5, 0.75]
    assert counting["eval_loss"].tolist() == pytest.approx([np.nan, 2.5, 1.5], nan_ok=True)
    assert [each.value for each in evaluated_steps(counting, "accuracy")] == [0.25, 0.5, 0.75]


def test_an_evaluation_of_the_same_line_has_the_time_that_the_program_says() -> None:
    said = [{"step": 1, "t": 1.0, "loss": 3.0}]
    said += [{"step": 11, "t": 4.0, "loss": 2.0, "eval_loss": 2.5, "eval_runtime": 1.0}]
    row = LoggedSteps(1).rows(said)[1]
    assert row["compute_s"] == pytest.approx(0.2) and row["step_s"] == pytest.approx(1.2)
    assert row["evaluation_s"] == 1.0


def test_a_repeated_step_is_left_out() -> None:
    said = [{"step": 5, "t": 2.0, "loss": 3.0}]
    said += [
        {"step": 5, "t": 3.0, "loss": 9.0},
        {"step": 4, "t": 3.0, "loss": 9.0},
        {"step": 4, "t": 3.0, "eval_loss": 9.0},
    ]
    assert [row["step"] for row in LoggedSteps(1).rows(said)] == [5]


def test_a_program_that_evaluates_and_says_no_loss_has_steps_and_their_time(tmp_path) -> None:
    file, steps = tmp_path / "metrics.jsonl", LoggedSteps(1)
    append_metrics(file, steps.rows([{"step": 20, "t": 1.0, "eval_loss": 1.5}]))
    append_metrics(file, steps.rows([{"step": 40, "t": 5.0, "eval_loss": 1.25}]))
    append_metrics(file, steps.rows([{"step": 40, "t": 6.0, "eval_accuracy": 0.5}]))
    columns = read_columns(file).steps()
    assert columns.num_steps.tolist() == [1, 20, 0] and not columns.is_lost().any()
    assert columns["compute_s"].tolist() == pytest.approx([0.0, 0.2, 0.0])
    assert columns["evaluation_s"].tolist() == [0.0, 0.0, 1.0]
    assert [(each.step, each.value) for each in evaluated_steps(columns, "loss")] == [(20, 1.5), (40, 1.25)]
    assert [each.value for each in evaluated_steps(columns, "accuracy")] == pytest.approx([np.nan, 0.5], nan_ok=True)
    assert len(columns.trained()) == 0


def test_an_evaluation_before_the_loss_of_its_step_counts_beside_it(tmp_path) -> None:
    file = tmp_path / "metrics.jsonl"
    said = [{"step": 0, "t": 1.0, "eval_loss": 3.0}, {"step": 0, "t": 2.0, "loss": 2.75}]
    said += [{"step": 10, "t": 3.0, "eval_loss": 2.5}, {"step": 10, "t": 4.0, "loss": 2.25}]
    append_metrics(file, LoggedSteps(1).rows(said))
    columns = read_columns(file).steps()
    assert not columns.is_lost().any()
    assert columns.evaluated()["eval_loss"].tolist() == [3.0, 2.5]
    assert columns.trained()["loss"].tolist() == [2.75, 2.25]
    append_metrics(file, LoggedSteps(2).rows([{"step": 10, "t": 9.0, "eval_loss": 2.0}]))
    assert read_columns(file).steps().is_lost().tolist() == [False, False, True, False, False]


def test_figures_stay_with_their_step(tmp_path) -> None:
    file, steps = tmp_path / "metrics.jsonl", LoggedSteps(1)
    said = [{"step": 1, "t": 1.0, "loss": 3.0, "figures/reward": 1.0}, {"step": 1, "t": 2.0, "figures/length": 7.0}]
    append_metrics(file, steps.rows([*said, {"step": 1, "t": 3.0, "eval_loss": 2.5}]))
    append_metrics(file, steps.rows([{"step": 2, "t": 4.0, "figures/reward": 2.0}]))
    append_metrics(file, steps.rows([{"step": 2, "t": 5.0, "loss": 2.0}]))
    columns = read_columns(file).steps()
    assert not columns.is_lost().any()
    assert columns.trained()["loss"].tolist() == [3.0, 2.0]
    assert columns.figures("program")[0] == (1, {"reward": 1.0, "length": 7.0})
    assert columns.figures("program")[1:] == [(2, {"reward": 2.0})]
    assert columns.figures("evaluation") == [] and [each.step for each in evaluated_steps(columns, "loss")] == [1]


def test_an_evaluation_does_not_undo_its_step_and_a_restart_undoes_both(tmp_path) -> None:
    file = tmp_path / "metrics.jsonl"
    first, second = LoggedSteps(1), LoggedSteps(2)
    said = [
        {"step": 10, "t": 1.0, "loss": 3.0},
        {"step": 20, "t": 2.0, "loss": 2.5},
        {"step": 20, "t": 3.0, "eval_loss": 3.0},
    ]
    append_metrics(file, first.rows(said))
    steps = read_columns(file).steps()
    assert steps.num_steps.tolist() == [1, 10, 0]
    assert steps.is_lost().tolist() == [False, False, False]
    append_metrics(file, second.rows([{"step": 20, "t": 9.0, "loss": 2.4}]))
    assert read_columns(file).steps().is_lost().tolist() == [False, True, True, False]


def test_an_evaluation_beside_the_loss_of_a_step_that_is_known_counts() -> None:
    said = [{"step": 500, "t": 5.0, "loss": 2.5}, {"step": 500, "t": 6.0, "loss": 2.0, "lr": 0.5, "eval_loss": 2.25}]
    trained, evaluated = LoggedSteps(1).rows(said)
    assert trained["loss"] == 2.5
    assert evaluated["evaluation"] == {"loss": 2.25}
    assert evaluated["num_steps"] == 0
    assert "loss" not in evaluated and "lr" not in evaluated
