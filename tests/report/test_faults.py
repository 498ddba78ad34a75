"""Skipped steps and rollbacks in the report."""

from __future__ import annotations

import math

import pytest

FAULT = {"reason": "nonfinite", "loss": math.nan, "grad_norm": math.nan, "losses": [5.0, math.nan]}


@pytest.fixture
def rolled_back(start_run):
    """50 steps, a checkpoint, 10 more, of which the last is not finite; back, and 50 more."""
    run = start_run().launch().steps(50).checkpoint().steps(10).wait(0.01)
    run.event("skipped", attempt=1, step=60, **FAULT)
    run.wait(0.5).event("rollback", attempt=1, step=60, to_step=50, batches_left_out=10, **FAULT)
    run.step = 50
    return run


def test_steps_before_a_rollback_are_lost_at_once(rolled_back):
    report = rolled_back.report()
    assert (report.training.steps_done, report.training.lost_steps) == (50, 10)


def test_a_rollback_is_said_instead_of_the_skip_it_answers(rolled_back):
    assert [fault.text for fault in rolled_back.steps(50).report().faults] == [
        "step 60 is not finite: back to step 50, and on without the last 10 batches"
    ]


def test_time_to_load_after_a_rollback_is_restart_and_its_steps_are_lost(rolled_back):
    before, ledger = rolled_back.ledger(), rolled_back.steps(50).ledger()
    assert ledger.restart_s == pytest.approx(0.51)
    assert ledger.lost_s == pytest.approx(before.lost_s)
    assert ledger.lost_s > 0
    assert ledger.wall_clock_s == pytest.approx(rolled_back.report().wall_clock_s)


def test_a_skipped_step_is_lost_time_and_trains_on_no_tokens(start_run):
    run = start_run().launch().steps(5).steps(1, skipped="nonfinite", loss=math.nan).steps(4)
    ledger, training = run.ledger(), run.report().training
    assert ledger.lost_s == pytest.approx(0.119)
    assert (training.steps_done, training.tokens) == (10, 9 * 8192)


def test_what_loss_scaling_leaves_out_is_no_fault(start_run):
    report = start_run().launch().steps(2, skipped="loss_scale").steps(8).report()
    assert (report.faults, report.training.loss_scale_steps, report.ledger.lost_s) == ((), 2, 0)
    assert "2 steps left out while fp16 found its loss scale" in report.to_html()


def test_the_page_names_the_rank(start_run):
    run = start_run().launch().steps(5).event("skipped", attempt=1, step=5, **FAULT)
    assert "step 5 is not finite and was skipped: loss nan, gradient norm nan (loss of rank 1: nan)" in (
        run.report().to_html()
    )
