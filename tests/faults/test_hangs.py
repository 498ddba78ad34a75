"""A rank that stands still is found and named in seconds; the run goes on to the same losses."""

from __future__ import annotations

import signal

import pytest

from tests.fakes import read_rows
from tests.faults.conftest import SHORT
from tests.faults.launcher import finished
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
TIMEOUT = {"recover__hang_timeout": "10s"}
"""More than a step takes on a machine that does ten other things."""
TWO_NODES = {"cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1}}


def hangs(program):
    events = read_events(program.run_dir.events_file)
    return [event for event in events if event["kind"] == "failure" and event["cause"] == "hang"]


@pytest.mark.lane("test")
def test_a_stopped_rank_is_named_and_the_run_goes_on(program, write_run_file, uninterrupted):
    program.hold(36)
    running = program.start("run", write_run_file(program.folder, **TIMEOUT))
    with program.held(36):
        program.rank(1).send_signal(signal.SIGSTOP)
    code, _, stderr = finished(running)
    (hang,) = hangs(program)
    assert (code, program.curve()) == (0, uninterrupted)
    assert hang["rank"] == 1 and "rank 1 was stopped by a signal for" in hang["message"]
    assert "was stopped by a signal" in stderr
    program.assert_nothing_left()


def test_a_rank_whose_disk_does_not_answer_is_named_with_its_stack(program, write_run_file, uninterrupted_short):
    program.hurt("read:1:21")
    code, _, _ = program.run("run", write_run_file(program.folder, **TIMEOUT, **SHORT))
    (hang,) = hangs(program)
    assert (code, program.curve()) == (0, uninterrupted_short)
    assert (hang["rank"], hang["step"], hang["phase"]) == (1, 21, "data")
    assert "rank 0 waited for it" in hang["message"] and "in read" in hang["traceback"]
    assert "all_reduce" in hang["waiting"]["0"]
    program.assert_nothing_left()


def test_a_rank_that_sleeps_in_forward_is_told_from_those_that_wait_in_it(program, write_run_file):
    program.hurt("forward:0:21")
    shards = {"layout": {"dp_shard": 2}}  # their ranks gather weights, and so wait, in forward
    code, _, _ = program.run("run", write_run_file(program.folder, **TIMEOUT, **SHORT, **shards))
    (hang,) = hangs(program)
    assert code == 0
    assert (hang["rank"], hang["step"], hang["phase"]) == (0, 21, "forward and backward")


def test_a_rank_that_never_lets_go_of_its_interpreter_is_named_with_its_stack(program, write_run_file):
    program.hurt("hold:1:21")
    code, _, _ = program.run("run", write_run_file(program.folder, **TIMEOUT, **SHORT))
    (hang,) = hangs(program)
    assert code == 0
    assert hang["rank"] == 1 and "interpreter blocked" in hang["message"] and "in hold" in hang["traceback"]


def test_ranks_that_wait_for_different_things_are_told_what(program, write_run_file):
    program.hurt("deadlock:all:21")
    code, _, _ = program.run("run", write_run_file(program.folder, **TIMEOUT, **SHORT, **TWO_NODES))
    (hang,) = hangs(program)
    assert code == 0
    assert "all ranks have waited for different things" in hang["message"]
    assert "rank 0 in `recv`" in hang["message"] and "rank 1 in gloo:all_reduce" in hang["message"]
    program.assert_nothing_left()


def test_a_hang_without_restarts_left_is_one_clear_error(program, write_run_file):
    program.hurt("read:1:21")
    code, _, stderr = program.run(
        "run", write_run_file(program.folder, recover={"hang_timeout": "10s", "max_restarts": 0}, **SHORT)
    )
    assert code == 76
    assert stderr.count("error: ") == 1 and "Traceback" not in stderr
    assert "rank 1 hung" in stderr and "recover.hang_timeout" in stderr
    program.assert_nothing_left()


def test_a_rank_that_is_only_slow_is_left_alone(program, write_run_file):
    program.hurt("straggle:1:0")
    code, _, _ = program.run("run", write_run_file(program.folder, **TIMEOUT, **SHORT))
    assert sum(row["step_s"] for row in read_rows(program.run_dir.metrics_file)) > 10  # longer than a hang
    assert (code, hangs(program)) == (0, [])


@pytest.mark.lane("test")
def test_a_start_that_hangs_names_phase_and_rank_and_has_the_stacks_of_all(program, write_run_file):
    program.hurt("links:1:0")
    limits = {"recover": {"start_timeout": "5s", "max_restarts": 0}}
    code, _, stderr = program.run("run", write_run_file(program.folder, **limits, **SHORT))
    (hang,) = hangs(program)
    assert code == 76
    assert (hang["rank"], hang["phase"]) == (1, "process groups")
    assert "rank 1 hung at" in stderr and "in process groups; rank 0 waited for it" in stderr
    assert "recover.start_timeout" in stderr and stderr.count("error: ") == 1
    assert "all_reduce" in hang["stacks"]["0"] and "read" in hang["stacks"]["1"]
    assert "rank 0, innermost line last:" in program.run_dir.rank_log(1).read_text()
    program.assert_nothing_left()
