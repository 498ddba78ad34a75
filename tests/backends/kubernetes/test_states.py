"""What an API server says of a job, in our words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.backends.backend import JobStatus
from trainworks.backends.kubernetes.states import cause_of_pod, is_unexplained, job_status, warning_about
from trainworks.jobs.state import Cause, JobState


def condition(kind: str, reason: str = "", message: str = "", status: str = "True") -> dict[str, Any]:
    """As in `status.conditions`."""
    at = {"lastTransitionTime": "2026-11-22T06:00:00Z"}
    return {"type": kind, "status": status, "reason": reason, "message": message} | at


def jobset(*conditions: dict[str, Any], suspend: bool = False, restarts: int = 0, nodes: int = 2) -> dict[str, Any]:
    """A JobSet of two pods."""
    group = {"name": "node", "replicas": 1, "template": {"spec": {"parallelism": nodes, "completions": nodes}}}
    return {
        "metadata": {"name": "demo"},
        "spec": {"suspend": suspend, "replicatedJobs": [group]},
        "status": {"conditions": list(conditions), "restarts": restarts},
    }


def workload(*conditions: dict[str, Any], active: bool = True) -> dict[str, Any]:
    """Kueue's."""
    return {"spec": {"active": active}, "status": {"conditions": list(conditions)}}


def pod(phase: str, index: int = 0, *, attempt: int = 0, **status: Any) -> dict[str, Any]:
    """One pod on its node."""
    return {
        "metadata": {"name": f"demo-node-0-{index}-x", "labels": {"jobset.sigs.k8s.io/restart-attempt": str(attempt)}},
        "spec": {} if phase == "Pending" else {"nodeName": f"node{index}"},
        "status": {"phase": phase, **status},
    }


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    """Status of the container of a pod that ended."""
    return {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": code, "reason": reason}}}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """Status of the container of a pod that cannot start."""
    return {"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": reason, "message": message}}}]}


QUOTA = condition("QuotaReserved", "Pending", "couldn't assign flavors: insufficient quota", "False")
UNSCHEDULABLE = {"conditions": [condition("PodScheduled", "Unschedulable", "0/4 nodes are available", "False")]}
FAILED = condition("Failed", "FailedJobs", "jobset failed due to one or more job failures")


@pytest.mark.parametrize(
    ("seen", "state", "raw", "reason"),
    [
        (job_status(jobset()), JobState.QUEUED, "Created", "no pods yet"),
        (job_status(jobset(suspend=True)), JobState.QUEUED, "Suspended", "held"),
        (
            job_status(jobset(suspend=True), workload=workload()),
            JobState.QUEUED,
            "Pending",
            "Kueue has not processed it yet",
        ),
        (
            job_status(jobset(suspend=True), workload=workload(QUOTA)),
            JobState.QUEUED,
            "Pending",
            "Pending: couldn't assign flavors: insufficient quota",
        ),
        (
            job_status(jobset(suspend=True), workload=workload(active=False)),
            JobState.QUEUED,
            "Inactive",
            "held: its Workload is not active",
        ),
        (
            job_status(jobset(), pods=[pod("Pending", **UNSCHEDULABLE)]),
            JobState.QUEUED,
            "Pending",
            "Unschedulable: 0/4 nodes are available",
        ),
        (
            job_status(jobset(), workload=workload(condition("Admitted")), pods=[pod("Pending", **UNSCHEDULABLE)]),
            JobState.STARTING,
            "Pending",
            "Unschedulable: 0/4 nodes are available",
        ),
        (
            job_status(jobset(), pods=[pod("Running"), pod("Pending", 1)]),
            JobState.STARTING,
            "Pending",
            "1 of 2 pods running",
        ),
        (job_status(jobset(), pods=[pod("Running"), pod("Running", 1)]), JobState.RUNNING, "Running", None),
        (job_status(jobset(), pods=[pod("Succeeded"), pod("Running", 1)]), JobState.RUNNING, "Running", None),
        (job_status(jobset(restarts=1), pods=[pod("Failed")]), JobState.RECOVERING, "Pending", "0 of 2 pods running"),
        (
            job_status(jobset(condition("Completed", "AllJobsCompleted", "jobset completed successfully"))),
            JobState.SUCCEEDED,
            "Completed",
            "AllJobsCompleted: jobset completed successfully",
        ),
    ],
)
def test_a_job_stands_where_its_objects_say(seen: JobStatus, state: JobState, raw: str, reason: str | None) -> None:
    assert (seen.state, seen.raw, seen.reason) == (state, raw, reason)


@pytest.mark.parametrize(
    ("reason", "state", "cause"),
    [
        ("Preempted", JobState.PREEMPTED, Cause.PREEMPTED),
        ("ClusterQueueStopped", JobState.PREEMPTED, Cause.PREEMPTED),
        ("PodsReadyTimeout", JobState.QUEUED, Cause.LAUNCH_FAILED),
        ("NodeFailures", JobState.QUEUED, Cause.NODE_LOST),
        ("SomethingNew", JobState.QUEUED, Cause.UNKNOWN),
    ],
)
def test_an_evicted_job_waits_and_says_why(reason: str, state: JobState, cause: Cause) -> None:
    evicted = workload(QUOTA, condition("Evicted", reason, "told by Kueue"))
    seen = job_status(jobset(suspend=True), workload=evicted)
    assert (seen.state, seen.cause, seen.reason) == (state, cause, f"{reason}: told by Kueue")


@pytest.mark.parametrize("reason", ["Deactivated", "InactiveWorkload"])
def test_a_job_that_somebody_deactivated_is_held(reason: str) -> None:
    seen = job_status(jobset(suspend=True), workload=workload(condition("Evicted", reason), active=False))
    assert (seen.state, seen.raw, seen.cause) == (JobState.QUEUED, "Inactive", None)


def test_a_job_that_was_evicted_once_and_runs_again_runs() -> None:
    old = workload(condition("Admitted"), condition("Evicted", "Preempted"))
    assert job_status(jobset(), workload=old, pods=[pod("Running"), pod("Running", 1)]).state is JobState.RUNNING


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "InvalidImageName"])
def test_a_container_that_cannot_start_is_named(reason: str) -> None:
    seen = job_status(jobset(), pods=[pod("Running"), pod("Pending", 1, **waiting(reason, "no such thing"))])
    assert (seen.state, seen.cause) == (JobState.STARTING, Cause.LAUNCH_FAILED)
    assert seen.reason == f"demo-node-0-1-x: {reason}: no such thing"


@pytest.mark.parametrize(
    ("status", "cause", "code"),
    [
        (ended(1), Cause.USER_ERROR, 1),
        (ended(137, "OOMKilled"), Cause.OOM, 137),
        (ended(137), Cause.KILLED, 137),
        (ended(128, "StartError"), Cause.LAUNCH_FAILED, 128),
        ({"conditions": [condition("DisruptionTarget", "PreemptionByScheduler")]} | ended(143), Cause.PREEMPTED, 143),
        ({"conditions": [condition("DisruptionTarget", "DeletionByTaintManager")]}, Cause.NODE_LOST, None),
        ({"conditions": [condition("DisruptionTarget", "NewReason")]}, Cause.UNKNOWN, None),
        ({"reason": "DeadlineExceeded"}, Cause.TIME_LIMIT, None),
        ({"reason": "Evicted", "message": "The node was low on ephemeral-storage"}, Cause.DISK_FULL, None),
        ({}, Cause.UNKNOWN, None),
    ],
)
def test_a_pod_says_why_it_failed(status: dict[str, Any], cause: Cause, code: int | None) -> None:
    assert cause_of_pod(pod("Failed", **status)) == (cause, code)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Unknown"])
def test_a_pod_that_has_not_failed_has_no_cause(phase: str) -> None:
    assert cause_of_pod(pod(phase)) is None


def test_the_pod_that_explains_the_others_gives_the_cause() -> None:
    pods = [pod("Failed", 0, **ended(143)), pod("Failed", 1, **ended(3)), pod("Failed", 2, **ended(137, "OOMKilled"))]
    seen = job_status(jobset(FAILED), pods=pods)
    assert (seen.state, seen.cause, seen.exit_code) == (JobState.FAILED, Cause.OOM, 137)
    seen = job_status(jobset(FAILED), pods=pods[:2])
    assert (seen.cause, seen.exit_code) == (Cause.USER_ERROR, 3)


def test_a_job_beyond_its_time_limit_says_so() -> None:
    job = {"status": {"conditions": [condition("Failed", "DeadlineExceeded", "Job was active longer than specified")]}}
    seen = job_status(jobset(FAILED), pods=[], job=job)
    assert (seen.state, seen.cause) == (JobState.FAILED, Cause.TIME_LIMIT)


def test_an_unexplained_failure_has_an_unknown_cause() -> None:
    assert job_status(jobset(FAILED)).cause is Cause.UNKNOWN


def test_nodes_and_restarts_are_those_of_this_attempt() -> None:
    pods = [pod("Failed", 7, attempt=0), pod("Running", 1, attempt=1), pod("Running", 2, attempt=1)]
    seen = job_status(jobset(restarts=1), pods=pods)
    assert (seen.nodes, seen.restarts, seen.state) == (("node1", "node2"), 1, JobState.RUNNING)


NAMES = st.sampled_from(
    ["Completed", "Failed", "Suspended", "Evicted", "Admitted", "QuotaReserved", "PodScheduled", "New"]
)
CONDITIONS = st.lists(st.builds(condition, NAMES, st.text(max_size=5), st.text(max_size=5), st.sampled_from(["True", "False", "Unknown"])), max_size=4)  # fmt: skip  # noqa: E501


@given(
    CONDITIONS,
    CONDITIONS,
    st.booleans(),
    st.lists(st.sampled_from(["Pending", "Running", "Failed", "New"]), max_size=3),
)
def test_no_combination_of_words_is_an_error(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], suspend: bool, phases: list[str]
) -> None:
    pods = [pod(phase, index) for index, phase in enumerate(phases)]
    assert isinstance(job_status(jobset(*ours, suspend=suspend), workload=workload(*theirs), pods=pods).state, JobState)


def test_objects_without_a_status_are_new() -> None:
    assert job_status({"spec": {}}, pods=[{"metadata": {"name": "x"}}]).state is JobState.STARTING


def said(code: int, **words: Any) -> dict[str, Any]:
    """Status of the container of a first pod that has left its last words."""
    terminated = {"exitCode": code, "reason": "Error", "message": json.dumps(words)}
    return {"containerStatuses": [{"name": "node", "state": {"terminated": terminated}}]}


WORDS = {"state": "FAILED", "cause": "diverged", "message": "loss is nan", "exit_code": 1, "rank": 3, "node": 1}


def test_the_first_pod_says_why_the_job_has_failed() -> None:
    seen = job_status(jobset(FAILED), pods=[pod("Failed", 0, **said(1, **WORDS)), pod("Succeeded", 1)])
    assert (seen.state, seen.cause, seen.exit_code) == (JobState.FAILED, Cause.DIVERGED, 1)
    assert seen.reason == "rank 3 on node 1: loss is nan"


def test_a_pod_that_was_out_of_memory_explains_the_words_of_the_first_one() -> None:
    words = WORDS | {"cause": "peer_lost", "message": "the connection was lost"}
    seen = job_status(
        jobset(FAILED), pods=[pod("Failed", 0, **said(1, **words)), pod("Failed", 1, **ended(137, "OOMKilled"))]
    )
    assert seen.cause is Cause.OOM


def test_the_record_of_an_ended_job_counts_restarts_in_place_too() -> None:
    seen = job_status(jobset(FAILED, restarts=1), pods=[pod("Failed", attempt=1, **said(1, **WORDS, restarts=4))])
    assert (seen.restarts, seen.restarts_used) == (1, 4)
    last = pod("Failed", **said(75, **WORDS, restarts=4))
    running = job_status(jobset(restarts=1), pods=[last, pod("Running", 1, attempt=1)])
    assert (running.restarts, running.restarts_used) == (1, None)


@pytest.mark.parametrize("message", ["", "7", "[]", "{", "Segmentation fault", '{"cause": "oom"}'])
def test_a_message_of_another_image_is_ignored(message: str) -> None:
    status = ended(7)
    status["containerStatuses"][0]["state"]["terminated"]["message"] = message
    seen = job_status(jobset(FAILED), pods=[pod("Failed", 0, **status)])
    assert (seen.cause, seen.exit_code) == (Cause.USER_ERROR, 7)


def test_a_workload_that_ended_on_request_did_not_succeed() -> None:
    stopped = said(0, state="STOPPED", message=None)
    seen = job_status(jobset(condition("Completed", "AllJobsCompleted")), pods=[pod("Succeeded", 0, **stopped)])
    assert seen.state is JobState.STOPPED


def test_a_job_that_was_stopped_runs_as_long_as_its_pods() -> None:
    asked = jobset(suspend=True)
    asked["metadata"]["annotations"] = {"trainworks/stopped": "true"}
    seen = job_status(asked, pods=[pod("Running"), pod("Succeeded", 1)])
    assert (seen.state, seen.raw, seen.reason) == (JobState.RUNNING, "Stopping", "stop requested")
    assert job_status(asked, pods=[pod("Failed")]).state is job_status(asked).state is JobState.STOPPED
    assert job_status(asked, workload=workload(active=False)).state is JobState.STOPPED


def test_a_job_for_a_queue_that_kueue_has_not_seen_is_not_held() -> None:
    queued = jobset(suspend=True)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "train"}
    assert job_status(queued).reason == "Kueue has not processed it yet"
    queued["metadata"]["annotations"] = {"trainworks/held": "true"}
    assert job_status(queued).reason == "held"


def warning(name: str, at: str, message: str, kind: str = "Warning") -> dict[str, Any]:
    return {"involvedObject": {"name": name}, "type": kind, "reason": "R", "message": message, "lastTimestamp": at}


def test_the_last_warning_says_why_there_are_no_pods() -> None:
    events = [
        warning("demo-node-0", "2026-11-22T06:00:01Z", "exceeded quota"),
        warning("demo-node-0-1-abcde", "2026-11-22T06:00:03Z", "no such volume"),
        warning("demo-node-0-1-abcde", "2026-11-22T06:00:04Z", "pulled", "Normal"),
        warning("demo-2", "2026-11-22T06:00:05Z", "of another job"),
    ]
    seen = job_status(jobset())
    assert is_unexplained(seen)
    assert warning_about(jobset(), seen, events).reason == "no pods yet; R: no such volume"
    assert warning_about(jobset(), seen, events[3:]) == seen


def test_a_reason_of_the_scheduler_needs_no_warning() -> None:
    assert not is_unexplained(job_status(jobset(), pods=[pod("Pending", **UNSCHEDULABLE)]))


def pod_of_role(phase: str, made: str, role: str = "server", **status: Any) -> dict[str, Any]:
    """The pod of index 0 of a role, made at a second."""
    found = pod(phase, **status)
    found["metadata"]["labels"] |= {"batch.kubernetes.io/job-name": f"demo-{role}-0"}
    found["metadata"]["labels"] |= {"batch.kubernetes.io/job-completion-index": "0"}
    found["metadata"]["creationTimestamp"] = f"2026-11-22T06:00:0{made}Z"
    return found


def test_a_pod_that_was_replaced_says_nothing_of_its_job() -> None:
    lost = pod_of_role("Failed", "1", conditions=[condition("DisruptionTarget", "DeletionByTaintManager")])
    trainer, server = pod_of_role("Running", "1", role="trainer"), pod_of_role("Running", "3")
    assert job_status(jobset(), pods=[trainer, lost]).state is JobState.RECOVERING
    seen = job_status(jobset(), pods=[server, trainer, lost])
    assert (seen.state, seen.nodes, seen.cause) == (JobState.RUNNING, ("node0", "node0"), None)
    failed = pod_of_role("Failed", "1", role="trainer", **ended(7))
    ends = job_status(jobset(FAILED), pods=[lost, server, failed])
    assert (ends.state, ends.cause, ends.exit_code) == (JobState.FAILED, Cause.USER_ERROR, 7)


def test_a_warning_about_a_pod_of_any_role_is_the_reason_why_a_job_does_not_start() -> None:
    roles = jobset()
    roles["spec"]["replicatedJobs"] = [{"name": "server", "template": {}}, {"name": "trainer", "template": {}}]
    seen = job_status(roles)
    event = {"type": "Warning", "reason": "R", "message": "no such volume", "lastTimestamp": "1"}

    def reason(name: str) -> str | None:
        return warning_about(roles, seen, [event | {"involvedObject": {"name": name}}]).reason

    assert reason("demo-trainer-0-1-xyz") == reason("demo-server-0") == "no pods yet; R: no such volume"
    assert reason("demo-other-0-1-xyz") == seen.reason
