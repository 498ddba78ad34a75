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
from trainworks.backends.skypilot.backend import JOB_STATES, job_status
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
    seen = job_status(record)
    assert (seen.state, seen.cause, seen.raw) == (*SEEN[record["status"]], record["status"])


def test_the_table_has_no_status_that_was_not_recorded() -> None:
    assert set(JOB_STATES) == {record["status"] for record in QUEUE} == set(SEEN)


def test_a_status_that_nobody_knows_stays_itself() -> None:
    assert job_status({"job_id": 1, "status": "HIBERNATING"}) == JobStatus(state=JobState.UNKNOWN, raw="HIBERNATING")


def test_why_a_job_failed_is_said_without_colours() -> None:
    words = "[sky.exceptions.NoCloudAccessError] Cloud access is not set up. Run: sky check"
    assert job_status(RECORDS[1]) == JobStatus(
        state=JobState.FAILED,
        raw="FAILED_PRECHECKS",
        reason=words,
        cause=Cause.ENVIRONMENT,
        starts_at=RECORDS[1]["start_at"],
        ended_at=RECORDS[1]["end_at"],
    )


def test_why_a_job_waits() -> None:
    assert job_status(RECORDS[2]).reason == "Job is in backoff"


def test_recoveries_are_counted() -> None:
    assert (job_status(RECORDS[13]).restarts, job_status(RECORDS[10]).restarts) == (2, 0)


def test_where_a_job_runs() -> None:
    running = RECORDS[13] | {"details": None, "infra": "AWS (us-east-1a)"}
    assert job_status(running).reason == "AWS (us-east-1a)"
