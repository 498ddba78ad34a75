"""The report as data: what it takes from the record, and that its JSON is whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import EnvironmentProblem
from trainworks.record.measured.finished_run import finished_run as finished_run_of
from trainworks.record.resolved import CompileChoice
from trainworks.record.step_time import ExpectedStep
from trainworks.report.runs.part import printable
from trainworks.report.runs.summary import Report, build_report
from trainworks.report.wording import key_figures

RunStart = Callable[..., Any]


def test_the_json_reads_back_as_the_same_report(finished_run: Any) -> None:
    report = finished_run.report()
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_a_loss_that_is_not_a_number_keeps_the_json_valid(start_run: RunStart) -> None:
    report = start_run().launch().steps(3).steps(1, loss=math.nan).report()
    assert json.loads(report.model_dump_json())["training"]["loss_last"]["loss"] == "NaN"
    assert report.training.loss_lowest.step == 3


def test_a_command_has_attempts_and_wall_clock_but_no_plan(start_run: RunStart) -> None:
    run = start_run(command="python train.py").event("submitted").wait(5.0).fail(attempt=1, exit_code=3)
    report = run.status("FAILED", cause="exit").wait(60.0).report()
    assert not any((report.training, report.comparison, report.ledger, report.curves))
    assert report.command == ("python train.py",)
    assert (report.state, report.wall_clock_s, len(report.failures)) == ("FAILED", 5.0, 1)


def test_the_worker_and_the_report_have_what_the_plan_chose_of_compile_auto(start_run: RunStart) -> None:
    for compiled in (False, True):
        chosen = CompileChoice(compiled=compiled, saved_s=90.0, compile_s=60.0, source="an assumption")
        run = start_run(compile_choice=chosen).launch().steps(3)
        resolved = run.run_dir.read_resolved()
        assert resolved.workload.compile is compiled
        figures = {label: (value, remark) for label, value, remark in key_figures(run.report())}
        assert figures["compile"] == ("auto", chosen.describe())
        run.event("compiled", compile_s=50.0, compiled_s=0.3, eager_s=0.4)
        figures = {label: (value, remark) for label, value, remark in key_figures(run.report())}
        assert figures["compile"][1].endswith(f"50 s to compile; planned {chosen.describe()}")


def test_tokens_without_room_are_reported_and_a_run_without_a_capacity_says_nothing(start_run: RunStart) -> None:
    run = start_run().launch().steps(1, overflow=0.0).steps(1, overflow=0.02).steps(2, overflow=0.005)
    figures = {label: (value, remark) for label, value, remark in key_figures(run.report())}
    assert figures["expert overflow"] == (
        "0.8 %", "of the copies of tokens found no room at their experts; 2.0 % at most"
    )  # fmt: skip
    assert "expert overflow" not in dict(each[:2] for each in key_figures(start_run().launch().steps(2).report()))


def test_the_time_to_compile_is_remembered_for_the_next_plan(start_run: RunStart) -> None:
    expected = ExpectedStep(low_s=0.09, high_s=0.11, by_rate_s={}, learned_from=0)
    for seconds in (None, 42.0):
        run = start_run(expected=expected).launch()
        if seconds:
            run.event("compiled", compile_s=seconds, compiled_s=0.3, eager_s=0.4)
        finished = finished_run_of(run.steps(30).run_dir, run.at)
        assert finished is not None and finished.compile_s == seconds


def test_attempts_say_what_they_did(finished_run: Any) -> None:
    first, second, third = finished_run.report().attempts
    assert (first.last_step, first.lost_steps) == (127, 27)
    assert (second.resumed_from_step, second.first_step, second.lost_steps) == (100, 101, 81)
    assert (third.last_step, third.lost_steps) == (300, 0)


def test_lost_steps_are_those_of_all_attempts(finished_run: Any) -> None:
    assert finished_run.report().training.lost_steps == 27 + 81


def test_curves_draw_lost_work_by_attempt_and_below_the_effective_steps(finished_run: Any) -> None:
    lines = finished_run.report().curves.loss
    ends = [(line.lost, line.attempt, line.points[0][0], line.points[-1][0]) for line in lines]
    assert ends == [(True, 1, 101, 127), (True, 2, 151, 231), (False, None, 1, 300)]


def test_failures_keep_their_order_and_traceback(finished_run: Any) -> None:
    failures = finished_run.report().failures
    assert [failure.cause for failure in failures] == ["killed", "out of memory", "peer_lost"]
    assert "MemoryError" in failures[1].traceback


def test_the_root_of_an_attempts_failures_is_not_the_peer_that_lost_it(start_run: RunStart) -> None:
    run = start_run().launch().steps(5).fail(cause="peer_lost", rank=0).wait(0.1).fail(cause="oom", rank=1)
    assert [failure.is_root for failure in run.report().failures] == [False, True]
    assert run.status("FAILED").report().verdict.figure.startswith("rank 1 failed after ")


def test_a_run_that_failed_without_a_failure_names_the_cause_of_its_state(start_run: RunStart) -> None:
    report = start_run().launch().status("FAILED", cause="agent_lost").report()
    assert (report.verdict.figure, report.verdict.signal) == ("the run failed, agent_lost", "stop")


def test_a_lost_run_ends_with_its_last_sign_of_life(start_run: RunStart) -> None:
    run = start_run().status("RUNNING").launch(start_s=3.0).steps(10).wait(9000.0)
    report = run.report(state="LOST")
    assert (report.state, report.wall_clock_s) == ("LOST", pytest.approx(3.0 + 10 * 0.119, abs=1e-5))


def test_attempt_numbers_that_begin_again_after_a_resume_stay_apart(start_run: RunStart) -> None:
    run = start_run().launch().steps(5).fail().event("stopped", step=5).wait(9.0)
    run.attempt_number = 0
    attempts = run.launch().steps(5).finish().report().attempts
    assert [(attempt.launch, attempt.number, attempt.first_step) for attempt in attempts] == [(1, 1, 1), (2, 1, 6)]


def test_a_report_of_nothing_but_a_resolved_run_is_possible(start_run: RunStart) -> None:
    report = start_run().report()
    assert (report.state, report.wall_clock_s, report.training.steps_done) == ("CREATED", 1.0, 0)


def test_a_missing_status_is_replaced_by_the_last_state_event(start_run: RunStart) -> None:
    run = start_run().launch().steps(3).status("FAILED", cause="killed", message="rank 1")
    run.run_dir.status_file.unlink()
    assert (run.report().state, run.report().cause) == ("FAILED", "killed")


def test_a_folder_without_a_resolved_run_is_named(start_run: RunStart) -> None:
    run = start_run()
    run.run_dir.resolved_file.unlink()
    with pytest.raises(EnvironmentProblem, match=r"no resolved\.json"):
        build_report(run.run_dir, 0.0)


def test_failed_checkpoints_are_reported(finished_run: Any) -> None:
    checkpoints = finished_run.report().checkpoints
    assert (checkpoints.steps, checkpoints.failed_steps) == ((50, 100, 150, 300), (200,))


def test_damaged_checkpoints_are_reported_with_file_and_problem(start_run: RunStart) -> None:
    run = start_run().launch().steps(50).checkpoint().steps(50).checkpoint()
    run.event("checkpoint_damaged", step=100, file=".metadata", problem="missing", fallback_step=50, folder="x")
    text = "checkpoint of step 100 is damaged: .metadata: missing; resuming from step 50"
    assert run.report().checkpoints.damaged == (text,)
    assert text in run.report().to_html()


@given(text=st.text(st.characters(exclude_categories=[])))
def test_printable_text_can_always_be_encoded_and_never_moves_the_cursor(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)


def test_every_start_of_the_ranks_has_a_root_failure_and_a_final_one_says_why(start_run: RunStart) -> None:
    run = start_run().launch().steps(3).fail(cause="killed", rank=0, rendezvous="h:1")
    run.fail(cause="peer_lost", rank=1, rendezvous="h:1").fail(cause="user_error", message="bad", rendezvous="h:2")
    run.event("restart_refused", node=0, rank=1, rendezvous="h:2", message="it is repeated")
    failures = run.report().failures
    assert [failure.is_root for failure in failures] == [True, False, True]
    assert failures[-1].message == "bad; not restarted: it is repeated"
