"""What Ray 2.60.0 said of jobs that really ran, in our words.

`recorded.json` holds answers of its dashboard, for jobs of two nodes of two cores each on a cluster of two; they are
shortened by addresses, statistics and the middle of tracebacks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainworks.backends.backend import JobStatus
from trainworks.jobs.state import Cause, JobState
from trainworks_ray.states import GROUP_STATES, JOB_STATES, job_status, node_facts

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


def seen(name: str, **changes: Any) -> JobStatus:
    """The sight of a recorded job."""
    return job_status(RECORDED[name]["job"] | changes, RECORDED[name]["groups"])


@pytest.mark.parametrize(
    ("name", "state", "cause", "exit_code"),
    [
        ("pending", JobState.QUEUED, None, None),
        ("starts", JobState.STARTING, None, None),
        ("waits", JobState.QUEUED, None, None),
        ("runs", JobState.RUNNING, None, None),
        ("succeeded", JobState.SUCCEEDED, None, 0),
        ("stopped", JobState.STOPPED, None, None),
        ("failed", JobState.FAILED, Cause.USER_ERROR, 7),
        ("misses_a_variable", JobState.FAILED, Cause.ENVIRONMENT, 3),
        ("time_limit", JobState.FAILED, Cause.TIME_LIMIT, 143),
        ("node_lost", JobState.FAILED, Cause.NODE_LOST, 75),
        ("driver_killed", JobState.FAILED, Cause.KILLED, 137),
        ("no_python", JobState.FAILED, Cause.LAUNCH_FAILED, 127),
    ],
)
def test_a_recorded_job(name: str, state: JobState, cause: Cause | None, exit_code: int | None) -> None:
    found = seen(name)
    assert (found.state, found.cause, found.exit_code) == (state, cause, exit_code)


def test_every_status_of_ray_was_recorded() -> None:
    assert set(JOB_STATES) == {entry["job"]["status"] for entry in RECORDED.values() if "job" in entry}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("waits", "waits for 3 node(s) of CPU 2: no node of this cluster is large enough"),
        ("failed", "node 1 exited with code 7"),
        ("misses_a_variable", "TOKEN is not set where Ray was started on this node (node-a)"),
        ("time_limit", "its time limit was over"),
        ("stopped", "Job was intentionally stopped."),
        ("no_python", "Job entrypoint command failed with exit code 127: /bin/sh: 1: no-such-python: not found"),
        ("starts", "the driver is starting"),
        ("succeeded", None),
    ],
)
def test_why(name: str, reason: str | None) -> None:
    assert seen(name).reason == reason


def test_where_it_runs() -> None:
    assert [node[:6] for node in seen("runs").nodes] == ["038b43", "d6d6d6"]


def test_a_status_that_nobody_knows_stays_itself() -> None:
    assert seen("runs", status="PAUSED") == JobStatus(
        state=JobState.UNKNOWN, raw="PAUSED", reason="Job is currently running."
    )


@pytest.mark.parametrize("word", [*GROUP_STATES, "THAWING"])
def test_a_running_job_is_where_its_newest_placement_group_is(word: str) -> None:
    group = RECORDED["runs"]["groups"][0]
    old = group | {"state": "REMOVED"}
    found = job_status(RECORDED["runs"]["job"], [group | {"state": word}, old])
    assert found.state is GROUP_STATES.get(word, JobState.UNKNOWN)
    assert (found.raw, found.restarts) == (f"RUNNING, placement group {word}", 1)


def test_what_the_program_itself_prints_is_not_taken_for_the_driver_s_last_word() -> None:
    forged = RECORDED["failed"]["job"]["message"] + '[node 0] trainworks: ended {"cause": "oom", "exit_code": 1}\n'
    assert seen("failed", message=forged).cause is Cause.USER_ERROR


@pytest.mark.parametrize("words", ["{", "[]", "1"])
def test_a_last_word_that_was_cut_off_is_no_word(words: str) -> None:
    found = seen("failed", message=f"x\ntrainworks: ended {words}\n")
    assert (found.cause, found.exit_code) == (Cause.CONTROLLER_ERROR, 7)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", Cause.NO_CAPACITY),
        ("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", Cause.NO_CAPACITY),
        ("RUNTIME_ENV_SETUP_FAILURE", Cause.LAUNCH_FAILED),
        ("JOB_SUPERVISOR_ACTOR_DIED", Cause.NODE_LOST),
        ("SOMETHING_NEW", Cause.UNKNOWN),
    ],
)
def test_a_job_whose_driver_never_ran(error: str, cause: Cause) -> None:
    found = job_status({"status": "FAILED", "error_type": error, "message": "Unexpected error occurred"})
    assert (found.cause, found.reason, found.exit_code) == (cause, "Unexpected error occurred", None)


def test_a_node_and_what_is_held_of_it() -> None:
    [first, _] = (node_facts(node, RECORDED["nodes"]["groups"]) for node in RECORDED["nodes"]["nodes"])
    assert (first.state, first.raw, first.cores, first.cores_taken) == ("taken", "ALIVE", 2.0, 2.0)
    assert len(first.jobs) == 1 and first.memory_bytes > 2**30


def test_nodes_that_are_free_half_taken_with_accelerators_or_dead() -> None:
    node = RECORDED["nodes"]["nodes"][0]
    name = node["node_id"]
    h100 = node | {"resources_total": {"CPU": 16.0, "GPU": 8.0, "accelerator_type:H100": 1.0}}
    bundle = {"node_id": name, "unit_resources": {"CPU": 4.0, "GPU": 2.0}}
    half = node_facts(h100, [{"state": "CREATED", "name": "a", "bundles": [bundle]}])
    assert (half.state, half.accelerators, half.accelerators_taken, half.accelerator) == ("mixed", 8, 2, "H100")
    assert node_facts(node).state == "free" and node_facts(node | {"state": "DEAD"}).state == "down"
    assert node_facts(node | {"state": "SLEEPS"}).state == "unknown"
