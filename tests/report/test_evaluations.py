"""Evaluations in the report, the live view, trackers and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.report.conftest import RunWriter, make_plan
from trainworks.jobs.state import JobState
from trainworks.observe.metrics.runs import RunSnapshot, run_samples
from trainworks.observe.trackers.feed import point_of
from trainworks.record.metrics import EvaluationResult
from trainworks.record.resolved import PlannedEvaluation
from trainworks.report.live import LineView
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document
from trainworks.report.runs.run_comparison import compare_reports
from trainworks.report.runs.run_progress import RunFollower
from trainworks.report.wording import format_metric

RunStart = Callable[..., RunWriter]
PLANNED = PlannedEvaluation(every_steps=10, count=5, batches=4, batch_s=0.1)


@pytest.fixture
def evaluated(start_run: RunStart) -> RunWriter:
    """Twenty steps with an evaluation every ten; the second is worse; then a restart repeats the last five."""
    run = start_run(evaluation=PLANNED)
    resolved = run.run_dir.read_resolved()
    assert resolved.run_file.workload is not None
    settings = {"split": 0.05, "every": "10 steps", "patience": 1}
    workload = resolved.run_file.workload.model_validate(resolved.run_file.workload.model_dump() | {"eval": settings})
    run_file = resolved.run_file.model_copy(update={"workload": workload})
    run.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    run.launch().attempt().steps(9).steps(1, evaluation=2.5).steps(9).steps(1, evaluation=9.0)
    run.fail().attempt(from_step=15).steps(4).steps(1, evaluation=2.75)
    return run


def test_the_report_has_the_best_and_the_last_evaluation_that_counts(
    evaluated: RunWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated.event("finished", step=20, early=True).status("SUCCEEDED")
    found = evaluated.report().evaluations
    assert found is not None
    assert (found.count, found.planned_count) == (2, 5)
    assert found.best is not None
    assert (found.best.step, found.best.loss) == (10, 2.5)
    assert (found.last.step, found.last.loss) == (20, 2.75)
    assert found.best.perplexity == pytest.approx(12.18, abs=0.01)
    assert (found.measured_s, found.planned_s) == pytest.approx((0.4, 0.4))
    print_document(build_document(evaluated.report()), Console(width=100))
    text = capsys.readouterr().out
    assert "loss 2.500, perplexity 12.18 after step 10" in text
    assert "The run ended early: 1 evaluation in a row without an improvement." in text


def test_the_curve_of_the_page_has_the_held_out_loss(evaluated: RunWriter) -> None:
    curves = evaluated.report().curves
    assert curves is not None
    assert curves.eval_loss == ((10, 2.5), (20, 2.75))


def test_evaluation_is_a_category_of_the_ledger_and_no_part_of_the_step_time(evaluated: RunWriter) -> None:
    report = evaluated.report()
    assert report.ledger is not None
    assert report.ledger.evaluation_s == pytest.approx(0.8, rel=1e-6), "the undone evaluation counts as lost"
    assert report.comparison is not None
    plain = report.comparison.step_time.measured
    assert plain is not None
    assert plain < 0.5
    assert sum(report.ledger.by_category().values()) == pytest.approx(report.wall_clock_s)


def test_the_live_view_shows_the_last_evaluation(evaluated: RunWriter) -> None:
    console = Console(width=300, record=True)
    LineView(console, 300).show(RunFollower(evaluated.run_dir).look(), evaluated.at)
    assert "held-out loss 2.7500 at step 20" in console.export_text()


def test_trackers_get_loss_and_perplexity_of_the_step_that_was_evaluated(evaluated: RunWriter) -> None:
    row: Any = RunFollower(evaluated.run_dir).look().latest
    values = point_of(row, evaluated.run_dir.read_resolved()).values
    assert values["eval/loss"] == 2.75
    assert values["eval/perplexity"] == pytest.approx(15.64, abs=0.01)
    assert values["time/evaluation_s"] == pytest.approx(0.4)
    assert values["train/tokens_per_s"] == pytest.approx(row["tokens"] / (row["step_s"] - row["evaluation_s"]))


def test_the_exporter_has_the_last_evaluation(evaluated: RunWriter) -> None:
    found = EvaluationResult(loss=2.75, samples=160, accuracy=0.5)
    snapshot = RunSnapshot(
        run="demo-1", state=JobState.RUNNING, resolved=evaluated.run_dir.read_resolved(), evaluation=(20, found)
    )
    samples = {sample.family.name: sample.value for sample in run_samples(snapshot)}
    names = ("trainworks_run_held_out_loss", "trainworks_run_held_out_accuracy", "trainworks_run_held_out_step")
    assert [samples[name] for name in names] == [2.75, 0.5, 20]


SETS = [
    {"loss": 2.5, "figures": {"wiki/loss": 2.5, "wiki/f1": 0.5, "code/loss": 1.5, "code/f1": 0.25}},
    {"loss": 2.75, "figures": {"wiki/loss": 2.75, "wiki/f1": 0.625, "code/loss": 1.25, "code/f1": 0.375}},
]


@pytest.fixture
def with_sets(evaluated: RunWriter) -> RunWriter:
    """Ten more steps with two evaluations of two sets, of which the first decides; texts of an undone one, too."""
    resolved = evaluated.run_dir.read_resolved()
    workload = resolved.run_file.workload
    assert workload is not None
    settings = {"data": {"wiki": "wiki.txt", "code": "code.txt"}, "every": "5 steps"}
    workload = workload.model_validate(workload.model_dump() | {"eval": settings})
    run_file = resolved.run_file.model_copy(update={"workload": workload})
    evaluated.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    evaluated.steps(4).steps(1, evaluation=SETS[0])
    evaluated.event("sample", step=25, prompt="Once", text=" undone", evaluation=True)
    evaluated.fail().attempt(from_step=20).steps(4).steps(1, evaluation=SETS[0])
    evaluated.event("sample", step=25, prompt="Once", text=" upon", evaluation=True)
    return evaluated.steps(4).steps(1, evaluation=SETS[1])


def test_the_report_has_every_set_its_curves_and_the_texts(
    with_sets: RunWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    report = with_sets.report()
    found, curves = report.evaluations, report.curves
    assert found is not None and curves is not None
    assert found.decided_by == "loss of wiki"
    assert found.last.figures == SETS[1]["figures"]
    assert [(each.step, each.text) for each in found.texts] == [(25, " upon")]
    assert curves.eval_loss[-2:] == curves.held_out["wiki/loss"] == ((25, 2.5), (30, 2.75))
    assert curves.held_out["code/f1"] == ((25, 0.25), (30, 0.375))
    print_document(build_document(report), Console(width=100))
    text = capsys.readouterr().out
    assert "decided by   loss of wiki" in text
    assert re.search(r"code/f1 +0\.375", text.replace(" -", ""))
    assert "Once upon" in text
    page = report.to_html()
    assert "code/loss 1.2500 after step 30" in page and "code/f1 0.3750 after step 30" in page


def test_every_set_is_in_the_live_view_trackers_the_exporter_and_a_comparison(with_sets: RunWriter) -> None:
    snapshot, resolved = RunFollower(with_sets.run_dir).look(), with_sets.run_dir.read_resolved()
    console = Console(width=400, record=True)
    LineView(console, 400).show(snapshot, with_sets.at)
    assert "wiki/loss 2.75, wiki/f1 0.625, code/loss 1.25, code/f1 0.375 at step 30" in console.export_text()
    row: Any = snapshot.latest
    values = point_of(row, resolved).values
    assert values["eval/loss"] == values["eval/wiki/loss"] == 2.75
    assert values["eval/code/perplexity"] == pytest.approx(3.49, abs=0.01)
    assert values["eval/code/f1"] == 0.375
    exported = RunSnapshot(run="demo-1", state=JobState.RUNNING, resolved=resolved, evaluation=snapshot.evaluation)
    samples = [each for each in run_samples(exported) if each.family.name == "trainworks_run_held_out_figure"]
    assert {each.labels[-1]: each.value for each in samples} == SETS[1]["figures"]
    report = with_sets.report()
    compared = compare_reports([(resolved, report), (resolved, report)])
    figures = {each.name: (each.first, each.second) for each in compared.figures}
    assert figures["held-out code/f1"] == (0.375, 0.375)
    assert figures["held-out loss"] == (2.75, 2.75)


def test_figures_of_a_command_are_in_the_live_view_trackers_the_exporter_and_a_comparison(evaluated: RunWriter) -> None:
    evaluated.steps(4).steps(1, figures={"reward": 0.5}).steps(1, figures={"reward": 0.75, "length": 9.0})
    snapshot, resolved = RunFollower(evaluated.run_dir).look(), evaluated.run_dir.read_resolved()
    console = Console(width=400, record=True)
    LineView(console, 400).show(snapshot, evaluated.at)
    assert "reward 0.75 | length 9" in console.export_text()
    row: Any = snapshot.latest
    assert point_of(row, resolved).values.items() >= {"train/reward": 0.75, "train/length": 9.0}.items()
    exported = RunSnapshot(run="demo-1", state=JobState.RUNNING, resolved=resolved, figures=snapshot.figures)
    samples = [each for each in run_samples(exported) if each.family.name == "trainworks_run_figure"]
    assert {each.labels[-1]: each.value for each in samples} == {"reward": 0.75, "length": 9.0}
    report = evaluated.report()
    assert report.curves is not None and [value for _, value in report.curves.figures["reward"]] == [0.5, 0.75]
    compared = compare_reports([(resolved, report), (resolved, report)])
    assert {each.name: each.first for each in compared.figures}.items() >= {"reward": 0.75, "length": 9.0}.items()
    assert "reward" in report.to_html()


def test_an_accuracy_alone_is_shown_without_a_loss(evaluated: RunWriter) -> None:
    evaluated.steps(4).steps(1, evaluation={"accuracy": 0.5})
    found = evaluated.report().evaluations
    assert found is not None
    assert (found.last.loss, found.last.accuracy) == (None, 0.5)
    assert format_metric("loss", found.last) == "50.00%"
    console = Console(width=300, record=True)
    LineView(console, 300).show(RunFollower(evaluated.run_dir).look(), evaluated.at)
    assert "held-out accuracy 50.00% at step 25" in console.export_text()


def test_a_plan_names_number_and_cost_of_evaluations() -> None:
    assert make_plan(evaluation=PLANNED).evaluation == PLANNED
    assert PLANNED.total_s == pytest.approx(2.0)
