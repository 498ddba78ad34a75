"""The time ledger: every second has one category, and lost work is nobody's compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lanes import examples

RunStart = Callable[..., Any]

SECONDS = st.floats(min_value=0.0, max_value=500.0)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 6)),
        st.tuples(st.just("wait"), SECONDS),
        st.tuples(st.just("back"), SECONDS),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("stop"), SECONDS),
    ),
    max_size=14,
)


def live(run: Any, actions: list[tuple[str, Any]]) -> None:
    """Lead a run through a random life; `back` sets the clock back, as a time server may."""
    run.launch()
    for action, amount in actions:
        if action == "steps":
            run.steps(amount, checkpoint_s=0.1)
        elif action == "wait":
            run.wait(amount)
        elif action == "back":
            run.wait(-min(amount, run.at - 1_760_000_003.0))
        elif action == "fail":
            run.fail().wait(1.0).attempt(from_step=max(0, run.step - amount))
        else:
            run.event("stopped", step=run.step).status("STOPPED").wait(amount).launch()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_the_categories_add_up_to_the_wall_clock_and_none_is_negative(
    start_run: RunStart, actions: list[tuple[str, Any]]
) -> None:
    run = start_run()
    live(run, actions)
    report = run.report()
    assert report.ledger.wall_clock_s == pytest.approx(report.wall_clock_s, abs=1e-6)
    assert min(report.ledger.by_category().values()) >= -1e-6
    assert report.runtime_goodput is None or 0.0 <= report.runtime_goodput <= 1.0 + 1e-9


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stretches=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 12)), min_size=1, max_size=6))
def test_every_recorded_step_is_either_effective_or_lost(start_run: RunStart, stretches: list[tuple[int, int]]) -> None:
    run = start_run()
    run.launch()
    for num_steps, lost in stretches:
        run.steps(num_steps).fail().attempt(from_step=max(0, run.step - lost))
    training = run.report().training
    recorded = sum(num_steps for num_steps, _ in stretches)
    assert training.steps_done + training.lost_steps == recorded
    assert training.steps_done == run.step


def test_steps_that_are_done_again_are_lost_with_all_their_time(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).fail().attempt(from_step=6).steps(4, compute_s=1.0).finish()
    ledger = run.ledger()
    assert ledger.lost_s == pytest.approx(4 * 0.119, abs=1e-5)
    assert ledger.compute_s == pytest.approx(6 * 0.08 + 4 * 1.0, abs=1e-5)


def test_steps_are_lost_as_soon_as_an_attempt_begins_before_them(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).fail().wait(1.0).attempt(from_step=6)
    assert run.report().training.lost_steps == 4
    assert run.report().training.steps_done == 6


def test_a_resume_after_a_stop_is_idle_and_start_but_no_restart(start_run: RunStart) -> None:
    run = start_run()
    run.launch(start_s=3.0).steps(10).event("stopped", step=10).status("STOPPED").wait(3600.0)
    run.launch(start_s=2.0).steps(10).finish()
    ledger = run.ledger()
    assert ledger.idle_s == pytest.approx(3600.0)
    assert ledger.start_s == pytest.approx(5.0, abs=1e-5)
    assert ledger.restart_s == 0.0


def test_idle_time_does_not_lower_the_runtime_goodput(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).event("stopped", step=10).wait(3600.0).launch().steps(10).finish()
    assert run.ledger().runtime_goodput == pytest.approx(20 * 0.118 / (6.0 + 20 * 0.119), abs=1e-5)


def test_time_from_a_failure_to_the_next_step_is_restart(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).wait(0.5).fail().wait(4.0).attempt().wait(0.5).steps(10).finish()
    assert run.ledger().restart_s == pytest.approx(5.0, abs=1e-5)


def test_a_failure_before_the_first_step_divides_start_from_restart(start_run: RunStart) -> None:
    run = start_run()
    run.launch(start_s=3.0).wait(1.0).fail().wait(2.0).attempt().wait(1.0).steps(1).finish()
    ledger = run.ledger()
    assert ledger.start_s == pytest.approx(4.0, abs=1e-5)
    assert ledger.restart_s == pytest.approx(3.0, abs=1e-5)


def test_a_run_that_failed_before_its_first_step_has_no_productive_time(start_run: RunStart) -> None:
    run = start_run()
    run.launch(start_s=3.0).fail().status("FAILED", cause="killed").wait(100.0)
    ledger = run.ledger()
    assert ledger.start_s == pytest.approx(3.0)
    assert ledger.wall_clock_s == pytest.approx(3.0)
    assert ledger.runtime_goodput == 0.0


def test_a_run_that_is_still_going_ends_now(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).wait(7.0)
    report = run.report()
    assert report.ended_at is None
    assert report.ledger.other_s == pytest.approx(7.0 + 10 * 0.001, abs=1e-5)


def test_a_run_that_is_restarting_now_spends_its_time_on_restart(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).wait(1.0).fail().wait(7.0)
    assert run.ledger().restart_s == pytest.approx(8.0, abs=1e-5)


def test_a_supervisor_that_vanished_ends_its_launch_with_the_last_sign_of_life(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).wait(500.0).launch().steps(1).finish()
    assert run.ledger().idle_s == pytest.approx(500.0)


def test_a_status_written_by_somebody_else_ends_a_run_without_a_final_event(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(10).wait(5.0).status("FAILED").wait(1000.0)
    run.run_dir.events_file.write_text("\n".join(run.run_dir.events_file.read_text().splitlines()[:-1]) + "\n")
    assert run.ledger().other_s == pytest.approx(5.0 + 0.01, abs=1e-5)


def test_torn_lines_are_passed_over(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(5)
    for path in (run.run_dir.metrics_file, run.run_dir.events_file):
        with path.open("a") as file:
            file.write('{"step": 6, "t": 17600')
    run.steps(5).finish()
    assert run.report().training.steps_done == 10
    assert run.ledger().wall_clock_s == pytest.approx(3.0 + 10 * 0.119, abs=1e-5)


def test_steps_that_seem_to_overlap_are_cut_to_what_the_clock_allows(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(2).wait(-0.119).steps(2).finish()
    ledger = run.ledger()
    assert ledger.compute_s == pytest.approx(3 * 0.08, abs=1e-5)
    assert ledger.wall_clock_s == pytest.approx(3.0 + 3 * 0.119, abs=1e-5)


def test_terms_that_exceed_their_step_are_scaled_down_to_it(start_run: RunStart) -> None:
    run = start_run()
    run.launch().steps(1, other_s=-0.018).finish()
    ledger = run.ledger()
    assert ledger.other_s == pytest.approx(0.0, abs=1e-6)
    assert ledger.compute_s == pytest.approx(0.08 * 0.1 / 0.118, abs=1e-5)
