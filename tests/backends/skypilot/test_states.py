"""What SkyPilot 0.14.1 printed of managed jobs, in our words.

`queue.json` is `sky jobs queue --output json --verbose --all` of that version, without keys that were null in all
records. Jobs 1 and 2 were submitted, without access to any cloud; the statuses of the others were put into the queue's
database by hand, one each.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainworks.backends.backend import JobStatus
from trainworks.backends.skypilot.states import JOB_STATES, job_status
from trainworks.jobs.state import Cause, JobState

QUEUE = json.loads(Path(__file__).with_name("queue.json").read_text())
RECORDS = {record["job_id"]: record for record in QUEUE}
SEEN = {
    "PENDING": (JobState.QUEUED, None),
    "SUBMITTED": (JobState.STARTING, None),
    "STARTING": (JobState.STARTING, None),
    "RUNNING": (JobState.RUNNING, None),
    "WINDING_DOWN": (JobState.RUNNING, None),
    "RECOVERING": (JobState.RECOVERING, Cause.NODE_LOST),
    "CANCELLING": (JobState.RUNNING, None),
    "SUCCEEDED": (JobState.SUCCEEDED, None),
    "CANCELLED": (JobState.STOPPED, None),
    "FAILED": (JobState.FAILED, Cause.USER_ERROR),
    "FAILED_SETUP": (JobState.FAILED, Cause.USER_ERROR),
    "FAILED_PRECHECKS": (JobState.FAILED, Cause.ENVIRONMENT),
    "FAILED_NO_RESOURCE": (JobState.FAILED, Cause.NO_CAPACITY),
    "FAILED_CONTROLLER": (JobState.FAILED, Cause.AGENT_LOST),
}


@pytest.mark.parametrize(
    "record", [record for record in QUEUE if record["job_id"] >= 10], ids=lambda one: one["status"]
)
def test_every_status_that_skypilot_has_is_a_state(record) -> None:
    seen = job_status([record])
    assert (seen.state, seen.cause, seen.raw) == (*SEEN[record["status"]], record["status"])


def test_the_table_has_no_status_that_was_not_recorded() -> None:
    assert set(JOB_STATES) == {record["status"] for record in QUEUE} == set(SEEN)


def test_a_status_that_nobody_knows_stays_itself() -> None:
    assert job_status([{"job_id": 1, "status": "HIBERNATING"}]) == JobStatus(state=JobState.UNKNOWN, raw="HIBERNATING")


def test_why_a_job_failed_is_said_without_colours() -> None:
    words = "[sky.exceptions.NoCloudAccessError] Cloud access is not set up. Run: sky check"
    assert job_status([RECORDS[1]]) == JobStatus(
        state=JobState.FAILED,
        raw="FAILED_PRECHECKS",
        reason=words,
        cause=Cause.ENVIRONMENT,
        starts_at=RECORDS[1]["start_at"],
        ended_at=RECORDS[1]["end_at"],
    )


def test_why_a_job_waits() -> None:
    assert job_status([RECORDS[2]]).reason == "Job is in backoff"


def test_recoveries_are_counted() -> None:
    assert (job_status([RECORDS[13]]).restarts, job_status([RECORDS[10]]).restarts) == (2, 0)


def test_where_a_job_runs() -> None:
    running = RECORDS[13] | {"details": None, "infra": "AWS (us-east-1a)"}
    assert job_status([running]).reason == "AWS (us-east-1a)"


def test_a_job_ends_when_its_controller_has_seen_that_its_machines_are_gone() -> None:
    record = {"job_id": 1, "job_name": "a", "status": "SUCCEEDED", "schedule_state": "ALIVE"}
    returning = job_status([record])
    assert (returning.state, returning.reason) == (JobState.RUNNING, "SkyPilot returns the machines of the job")
    assert job_status([record | {"schedule_state": "DONE"}]).state is JobState.SUCCEEDED


def test_machines_that_could_not_be_deleted_are_named_with_what_ends_them() -> None:
    reason = "Failed to clean up, resources may have leaked: a-1 is not down"
    seen = job_status([{"status": "FAILED_CONTROLLER", "failure_reason": reason, "schedule_state": "DONE"}])
    assert seen.reason == reason and seen.hint is not None and "sky down" in seen.hint


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Job exited with exit code 3. To see the details, run: sky jobs logs 1", 3),
        ("Job exited with exit codes [0, 137]", 137),
        ("Job failed (FAILED_DRIVER)", None),
    ],
)
def test_the_exit_code_of_a_failed_job(reason: str, code: int | None) -> None:
    assert job_status([{"status": "FAILED", "failure_reason": reason}]).exit_code == code


@pytest.mark.parametrize(
    ("facts", "nodes"),
    [
        ({"node_names": "i-1, i-2"}, ("i-1", "i-2")),
        ({"resources": "2x[CPU:2+][Spot]"}, ("demo-0", "demo-1")),
        ({"resources": "2x[CPU:2+]", "current_cluster_name": "demo-7"}, ("demo-7-0", "demo-7-1")),
    ],
)
def test_a_job_that_runs_has_all_of_its_nodes(facts: dict[str, str], nodes: tuple[str, ...]) -> None:
    record = {"status": "RUNNING", "job_name": "demo", "node_names": None} | facts
    assert job_status([record]).nodes == nodes
    assert job_status([record | {"status": "STARTING"}]).nodes == ()
