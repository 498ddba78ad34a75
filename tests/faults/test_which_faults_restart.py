"""Faults that may pass are restarted from; those that are proven deterministic end the run, with their cause."""

from __future__ import annotations

import pytest

from tests.faults.conftest import SHORT
from tests.faults.launcher import finished, wait_until
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TWO_NODES = {"cluster": {"engine": "local", "nodes": 2, "processes_per_node": 1}}


def events(program, kind):
    return [event for event in read_events(program.run_dir.events_file) if event["kind"] == kind]


def own_failures(program):
    return [event for event in events(program, "failure") if event["cause"] != "peer_lost"]


@pytest.mark.parametrize(
    ("nodes", "fault", "cause", "message"),
    [
        ({}, "ecc", "gpu_fault", "accelerator failed: CUDA error: uncorrectable ECC error encountered"),
        (TWO_NODES, "stale", "storage_fault", "storage failed: OSError: [Errno 116] Stale file handle"),
        (TWO_NODES, "leave", "unknown", "exited with code 13 without an error message"),
    ],
    ids=["gpu-on-one-node", "storage-on-two-nodes", "unknown-on-two-nodes"],
)
def test_a_fault_that_may_pass_is_restarted_from(
    program, write_run_file, uninterrupted_short, nodes, fault, cause, message
):
    program.hurt(f"{fault}:1:21")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT, **nodes))
    (failure,) = own_failures(program)
    assert (code, program.curve()) == (0, uninterrupted_short), stderr
    assert (failure["rank"], failure["cause"], failure["message"], failure["step"]) == (1, cause, message, 21)
    assert message in stderr
    program.assert_nothing_left()


@pytest.mark.parametrize("rank", ["1", "all"])
def test_an_exception_that_ends_two_attempts_at_the_same_step_is_final_on_all_nodes(program, write_run_file, rank):
    program.hurt(f"bug:{rank}:21")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT, **TWO_NODES))
    assert code == 1
    assert len(events(program, "attempt")) == 2
    assert {failure["step"] for failure in own_failures(program)} == {21}
    assert len({failure["fingerprint"] for failure in own_failures(program)}) == 1
    assert "ValueError: the program is wrong" in stderr and "at the same step" in stderr
    program.assert_nothing_left()


@pytest.mark.lane("test-all")
def test_an_exception_in_the_first_step_is_final(program, write_run_file):
    program.hurt("bug:0:1")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT))
    assert (code, len(events(program, "attempt"))) == (1, 1)
    assert "ValueError: the program is wrong" in stderr and "before its first step was done" in stderr
    program.assert_nothing_left()


@pytest.mark.lane("test-all")
def test_an_exit_code_without_restarts_left_is_named(program, write_run_file):
    program.hurt("leave:1:21")
    code, _, stderr = program.run("run", write_run_file(program.folder, recover={"max_restarts": 0}, **SHORT))
    assert code == 13, stderr
    assert stderr.count("error: ") == 1 and "exited with code 13" in stderr and "lost contact" not in stderr


@pytest.mark.lane("nightly")  # the last test has it on the other node
def test_a_node_agent_that_gets_sigterm_is_started_again(program, write_run_file, uninterrupted):
    program.hold(36)
    running = program.start("run", write_run_file(program.folder, **TWO_NODES))
    with program.held(36):
        program.agent(1).terminate()
        wait_until(lambda: own_failures(program))
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted), stderr
    assert [event["message"] for event in own_failures(program)] == ["the node agent was killed by SIGTERM"]
    program.assert_nothing_left()


@pytest.mark.lane("nightly")  # the last test has it on two nodes
def test_a_killed_fork_server_is_replaced_and_leaves_no_rank_behind(program, write_run_file, uninterrupted):
    program.hold(36)
    running = program.start("run", write_run_file(program.folder))
    with program.held(36):
        program.fork_server(0).kill()
        wait_until(lambda: own_failures(program))
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted), stderr
    assert [event["cause"] for event in own_failures(program)] == ["agent_lost"]
    program.assert_nothing_left()


@pytest.mark.lane("test-all")
def test_an_agent_a_rank_and_a_fork_server_of_two_nodes_end_one_after_the_other_and_cost_no_step(
    program, write_run_file, uninterrupted
):
    program.hold(23, 50, 74)
    running = program.start("run", write_run_file(program.folder, **TWO_NODES, recover={"max_restarts": 6}))
    with program.held(23):
        program.agent(0).terminate()
        wait_until(lambda: own_failures(program))
    with program.held(50):
        program.rank(0).kill()
        wait_until(lambda: len(own_failures(program)) == 2)
    with program.held(74):
        program.fork_server(0).kill()
        wait_until(lambda: len(own_failures(program)) == 3)
    code, _, stderr = finished(running)
    assert (code, program.curve()) == (0, uninterrupted), stderr
    terminated, killed, server = own_failures(program)
    assert terminated["message"] == "the node agent was killed by SIGTERM"
    assert (killed["cause"], killed["message"]) == ("killed", "killed by SIGKILL")
    assert server["cause"] == "agent_lost"
    recovering = [event for event in events(program, "state") if event["state"] == "RECOVERING"]
    assert (recovering[1]["cause"], recovering[1]["message"]) == ("killed", "killed by SIGKILL")
    program.assert_nothing_left()
