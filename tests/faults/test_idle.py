"""Real jobs that use nothing are stopped within their time; those that use anything are not."""

from __future__ import annotations

import json
import sys

import pytest

from tests.faults.launcher import finished, wait_until
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
BUSY = "import time\nwhile True: sum(range(20000)); time.sleep(0.002)\n"
STOPS = "{report_after: 1s, stop_after: 3s, network: 1 TB}"
"""Whatever else this machine downloads meanwhile."""
PATIENT_S = 30.0
"""A job that is not idle may stand still for seconds on a machine that does other things."""
PATIENT = f"{{report_after: {PATIENT_S:g}s, stop_after: {PATIENT_S:g}s, network: 1 TB}}"


@pytest.fixture
def command(program):
    """A function that writes the run file of a command with a policy."""

    def write(run: str, idle: str = STOPS, more: str = "") -> str:
        text = f"name: idle\nrun: {json.dumps(run)}\njob: {{grace: 5s, idle: {idle}}}\n{more}"
        (program.folder / "idle.yaml").write_text(text)
        return "idle.yaml"

    return write


def events(program, kind: str):
    return [event for event in read_events(program.run_dir.events_file) if event["kind"] == kind]


def runs_on(program, seconds: float) -> bool:
    """Whether the newest run still runs after so much time that was measured on its node."""
    wait_until(lambda: events(program, "attempt") and program.run_dir.read_usage(0))
    began = program.run_dir.read_usage(0).monotonic_s
    wait_until(lambda: program.run_dir.read_usage(0).monotonic_s > began + seconds)
    return program.run_dir.read_status().state == "RUNNING"


@pytest.mark.lane("test")
def test_a_job_that_sleeps_is_reported_and_stopped(program, command):
    code, _, stderr = program.run("run", command("trap 'echo saved; exit 0' TERM; sleep 60 & wait"))
    assert code == 130
    assert "idle for" in stderr and "used nothing of what it holds" in stderr
    (idle,) = events(program, "idle")
    (stopped,) = [event for event in events(program, "state") if event["state"] == "STOPPED"]
    assert stopped["cause"] == "idle"
    assert 3 <= stopped["t"] - idle["since"] < 45
    assert program.run_dir.rank_log(0).read_text().strip() == "saved"
    program.assert_nothing_left()


def test_all_nodes_of_a_job_that_sleeps_are_stopped(program, command):
    code, _, _ = program.run("run", command("sleep 60", more="cluster: {nodes: 2}"))
    assert (code, program.run_dir.read_status().cause) == (130, "idle")
    program.assert_nothing_left()


@pytest.mark.lane("test")
def test_a_busy_job_is_not_idle(program, command):
    program.start("run", command(f"{sys.executable} -c '{BUSY}'", PATIENT))
    assert runs_on(program, PATIENT_S + 5) and not events(program, "idle")


def test_a_job_with_a_busy_grandchild_is_not_idle(program, command):
    inner = f"bash -c \"{sys.executable} -c '{BUSY}'; true\" & sleep 600"
    program.start("run", command(inner, PATIENT))
    assert runs_on(program, PATIENT_S + 5) and not events(program, "idle")


def test_a_job_that_copies_data_is_not_idle(program, command):
    copies = "while sleep 0.05; do head -c 200000 /dev/zero > copy; done"
    program.start("run", command(copies, f"{{stop_after: {PATIENT_S:g}s, cpu: 8, network: 1 TB}}"))
    assert runs_on(program, PATIENT_S + 5) and not events(program, "idle")


def test_setup_is_not_judged(program, command):
    code, _, _ = program.run("run", command("true", "{report_after: 2s, stop_after: 2s}", "setup: sleep 4"))
    assert code == 0 and not events(program, "idle")


def test_a_training_run_is_not_idle(program, write_run_file):
    name = write_run_file(program.folder, job={"idle": {"report_after": "1s", "stop_after": "2s"}})
    code, _, stderr = program.run("run", name)
    assert code == 0, stderr
    assert not events(program, "idle")


def test_a_job_of_the_queue_is_shown_as_idle(program, command):
    running = program.start("submit", command("sleep 600", "{report_after: 1s, network: 1 TB}"))
    assert finished(running)[0] == 0
    wait_until(lambda: events(program, "idle"))
    assert "RUNNING, idle for" in program.run("ps")[1]
    assert "RUNNING, idle for" in program.run("describe", "idle-1")[1]
    assert "idle_for_s" in program.run("status", "idle-1")[1]
    program.run("stop", "idle-1", "--now")


def test_a_job_of_the_queue_that_was_idle_stays_stopped(program, command):
    more = "recover: {max_restarts: 3}"
    assert finished(program.start("submit", command("sleep 60", STOPS, more)))[0] == 0
    wait_until(lambda: "STOPPED" in program.run("ps", "--all")[1])
    stdout = program.run("describe", "idle-1")[1]
    assert "idle: used no accelerator or CPU" in stdout
    assert stdout.count("still at it") == 0 and len(events(program, "attempt")) == 1
