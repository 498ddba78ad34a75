"""What Kubernetes says of a job, in our words: conditions of its JobSet, of Kueue's Workload and of its pods.

Pure: objects come in as an API server gives them. Where several things are true, the first of these counts: the end of
the JobSet, a person's wish to stop it, Kueue's eviction, suspension, pods that cannot start, pods that run. Why a job
ended stands in the last words of its first pod, unless Kubernetes knows better.

Source: conditions and reasons of JobSet (pkg/constants), Kueue (apis/kueue/v1beta1/workload_types.go) and Kubernetes
(batch/v1 and core/v1).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainworks.backends.backend import JobStatus
from trainworks.backends.kubernetes.render import HELD, QUEUE_LABEL, STOPPED
from trainworks.jobs.state import Cause, JobState, parse_cause

__all__ = ["cause_of_pod", "has_ended", "has_failed", "is_unexplained", "job_status", "warning_about"]

Object = Mapping[str, Any]
"""As the API server writes it in JSON."""

_CAUSES_OF_EVICTION: dict[str, Cause] = {
    "Preempted": Cause.PREEMPTED,
    "PodsReadyTimeout": Cause.LAUNCH_FAILED,
    "AdmissionCheck": Cause.NO_CAPACITY,
    "ClusterQueueStopped": Cause.PREEMPTED,
    "LocalQueueStopped": Cause.PREEMPTED,
    "NodeFailures": Cause.NODE_LOST,
    "MaximumExecutionTimeExceeded": Cause.TIME_LIMIT,
}
"""Reasons of the condition Evicted of a Workload."""
_SOMEBODY_S_WISH = ("Deactivated", "InactiveWorkload")
"""How such a reason begins where somebody set `active: false`."""
_CAUSES_OF_DISRUPTION: dict[str, Cause] = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "TerminationByKubelet": Cause.PREEMPTED,
}
"""Reasons of the condition DisruptionTarget of a pod."""
_CAUSES_OF_TERMINATION: dict[str, Cause] = {
    "OOMKilled": Cause.OOM,
    "ContainerCannotRun": Cause.LAUNCH_FAILED,
    "StartError": Cause.LAUNCH_FAILED,
    "DeadlineExceeded": Cause.TIME_LIMIT,
}
_CAUSES_OF_POD: dict[str, Cause] = {
    "Evicted": Cause.DISK_FULL,
    "NodeLost": Cause.NODE_LOST,
    "NodeShutdown": Cause.NODE_LOST,
    "Terminated": Cause.NODE_LOST,
    "DeadlineExceeded": Cause.TIME_LIMIT,
    "UnexpectedAdmissionError": Cause.LAUNCH_FAILED,
    "OutOfcpu": Cause.NO_CAPACITY,
    "OutOfmemory": Cause.NO_CAPACITY,
}
"""`status.reason` of a pod that failed as a whole."""
_CANNOT_START = frozenset(
    ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
     "RunContainerError", "ErrImageNeverPull", "CrashLoopBackOff")
)  # fmt: skip
"""Reasons for which a container waits, and that do not pass by themselves."""
_ROOT_FIRST = (Cause.OOM, Cause.NODE_LOST, Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.LAUNCH_FAILED, Cause.USER_ERROR)
"""Of several pods that failed: what one was told explains the others, which only saw it leave."""
_KUBERNETES_KNOWS = (Cause.OOM, Cause.NODE_LOST, Cause.PREEMPTED, Cause.TIME_LIMIT)
"""Causes that the first pod cannot see: it only lost its connection to a pod, or was ended itself."""
_KILLED = (137, 143)
_PHASES = frozenset(("Pending", "Running", "Succeeded", "Failed"))
"""Of pods; Kubernetes' own `Unknown` says that a node does not answer, and not that the pod has ended."""
_NO_PODS = "it has no pods yet"
_SOME_PODS = "{} of {} pods run"
_UNEXPLAINED = re.compile(rf"{_NO_PODS}|{_SOME_PODS.replace('{}', '[0-9]+')}")


def job_status(
    jobset: Object, *, workload: Object | None = None, pods: Sequence[Object] = (), job: Object | None = None
) -> JobStatus:
    """The job as it is now.

    Args:
        jobset: the JobSet.
        workload: Kueue's, where a queue has the job.
        pods: of the JobSet, of all attempts.
        job: the JobSet's, where that has failed.
    """
    restarts = int(_status(jobset).get("restarts", 0))
    mine = [pod for pod in pods if _attempt(pod) in (None, restarts)]
    nodes = tuple(sorted(pod["spec"]["nodeName"] for pod in mine if pod.get("spec", {}).get("nodeName")))
    seen = (
        _ended(jobset, mine, job)
        or _stopped(jobset, mine)
        or _waiting(jobset, workload)
        or _strange(mine)
        or _placed(jobset, workload, mine, restarts)
    )
    state, raw, reason, cause, exit_code = seen
    return JobStatus(
        state=state,
        raw=raw,
        reason=reason,
        cause=cause,
        nodes=nodes,
        restarts=restarts,
        exit_code=exit_code,
        starts_at=None if state.waits else _started_at(mine),
        ended_at=_ended_at(jobset) if state.is_final else None,
        last_cause=_cause_of_the_last_turn(pod for pod in pods if _attempt(pod) == restarts - 1),
    )


def _cause_of_the_last_turn(pods: Iterable[Object]) -> Cause | None:
    """What Kubernetes knows of it, while pods of that turn are there."""
    cause, _ = _root(pods)
    return cause if cause in _KUBERNETES_KNOWS else None


def _ended_at(jobset: Object) -> float | None:
    """When the JobSet became Completed or Failed."""
    ends = (_condition(jobset, kind) or {} for kind in ("Completed", "Failed"))
    times = [str(end["lastTransitionTime"]) for end in ends if end.get("lastTransitionTime")]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=None)


def _started_at(pods: Sequence[Object]) -> float | None:
    """When the last of the pods was taken in by its node."""
    times = [str(_status(pod)["startTime"]) for pod in pods if _status(pod).get("startTime")]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=None)


_Seen = tuple[JobState, str, str | None, Cause | None, int | None]


def _status(thing: Object) -> Object:
    status: Object = thing.get("status") or {}
    return status


def _metadata(thing: Object) -> Object:
    metadata: Object = thing.get("metadata") or {}
    return metadata


def _condition(thing: Object | None, kind: str, status: str = "True") -> Object | None:
    """The condition of that name, where it is as asked."""
    conditions = _status(thing).get("conditions") or [] if thing is not None else []
    return next((found for found in conditions if found["type"] == kind and found["status"] == status), None)


def _attempt(pod: Object) -> int | None:
    label = (pod.get("metadata", {}).get("labels") or {}).get("jobset.sigs.k8s.io/restart-attempt")
    return int(label) if label is not None else None


def _words(condition: Object) -> str:
    reason, message = condition.get("reason", ""), condition.get("message", "")
    return ": ".join(filter(None, (reason, message)))


def _ended(jobset: Object, pods: Sequence[Object], job: Object | None) -> _Seen | None:
    words = _last_words(pods)
    if (done := _condition(jobset, "Completed")) is not None:
        state = JobState.STOPPED if words.get("state") == JobState.STOPPED else JobState.SUCCEEDED
        return state, "Completed", _words(done), None, 0
    if (failed := _condition(jobset, "Failed")) is None:
        return None
    cause, code = _root(pods)
    of_the_job = _condition(job, "Failed") or {}
    if of_the_job.get("reason") == "DeadlineExceeded":
        return JobState.FAILED, "Failed", _words(of_the_job), Cause.TIME_LIMIT, code
    if words.get("cause") and cause not in _KUBERNETES_KNOWS:
        cause, code = parse_cause(str(words["cause"])), words.get("exit_code") or code
        return JobState.FAILED, "Failed", _told(words), cause, code
    return JobState.FAILED, "Failed", _words(failed), cause or Cause.UNKNOWN, code


def has_failed(jobset: Object) -> bool:
    """For good."""
    return _condition(jobset, "Failed") is not None


def has_ended(jobset: Object) -> bool:
    """By itself, whatever somebody wished."""
    return has_failed(jobset) or _condition(jobset, "Completed") is not None


def _last_words(pods: Iterable[Object]) -> Object:
    """What the first pod has left; nothing where it could not."""
    for pod in pods:
        for container in _containers(pod):
            message = ((container.get("state") or {}).get("terminated") or {}).get("message")
            try:
                words = json.loads(message or "")
            except ValueError:
                continue
            if isinstance(words, dict) and "state" in words:
                return words
    return {}


def _told(words: Object) -> str:
    where = [f"rank {words['rank']}"] if words.get("rank") is not None else []
    where += [f"node {words['node']}"] if words.get("node") is not None else []
    return ": ".join(filter(None, (" on ".join(where), words.get("message"))))


def _stopped(jobset: Object, pods: Sequence[Object]) -> _Seen | None:
    """By a person: the JobSet is suspended for good, and its pods have their grace."""
    if STOPPED not in (_metadata(jobset).get("annotations") or {}):
        return None
    if any(_status(pod).get("phase") == "Running" for pod in pods):
        return JobState.RUNNING, "Stopping", "it was asked to end", None, None
    return JobState.STOPPED, "Stopped", None, None, None


def _waiting(jobset: Object, workload: Object | None) -> _Seen | None:
    """In Kueue's queue, evicted by Kueue, or held by its `suspend`."""
    if not jobset.get("spec", {}).get("suspend"):
        return None
    evicted = _condition(workload, "Evicted")
    if evicted is not None and not str(evicted.get("reason")).startswith(_SOMEBODY_S_WISH):
        cause = _CAUSES_OF_EVICTION.get(str(evicted.get("reason")), Cause.UNKNOWN)
        state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
        return state, "Evicted", _words(evicted), cause, None
    metadata = _metadata(jobset)
    if workload is None and (
        HELD in (metadata.get("annotations") or {}) or QUEUE_LABEL not in (metadata.get("labels") or {})
    ):
        return JobState.QUEUED, "Suspended", "it is held", None, None
    if workload is None:
        return JobState.QUEUED, "Pending", "Kueue has not looked at it yet", None, None
    if workload.get("spec", {}).get("active") is False:
        return JobState.QUEUED, "Inactive", "it is held: its Workload is not active", None, None
    pending = _condition(workload, "QuotaReserved", "False") or _condition(workload, "Admitted", "False")
    return JobState.QUEUED, "Pending", _words(pending) if pending else "Kueue has not looked at it yet", None, None


def _phase(pod: Object) -> str:
    return str(_status(pod).get("phase") or "Pending")


def _strange(pods: Sequence[Object]) -> _Seen | None:
    """A pod is in a phase that this version does not know."""
    found = next((_phase(pod) for pod in pods if _phase(pod) not in _PHASES), None)
    return (JobState.UNKNOWN, found, "nobody knows how a pod is", None, None) if found is not None else None


def _placed(jobset: Object, workload: Object | None, pods: Sequence[Object], restarts: int) -> _Seen:
    """Admitted, or without a queue: what its pods do."""
    wanted = sum(_num_pods(group) for group in jobset.get("spec", {}).get("replicatedJobs", []))
    phases = [_phase(pod) for pod in pods]
    if wanted and phases.count("Running") + phases.count("Succeeded") >= wanted:
        return JobState.RUNNING, "Running", None, None, None
    if "Failed" in phases:
        cause, code = _root(pods)
        return JobState.RECOVERING, "Failed", "a pod failed, and the JobSet has not decided", cause, code
    for pod in pods:
        if (stuck := _cannot_start(pod)) is not None:
            return JobState.STARTING, "Pending", stuck, Cause.LAUNCH_FAILED, None
    for pod in pods:
        if (condition := _condition(pod, "PodScheduled", "False")) is not None:
            return _not_scheduled(condition, in_queue=workload is not None)
    if not pods and workload is None and not restarts:
        return JobState.QUEUED, "Created", _NO_PODS, None, None
    state = JobState.RECOVERING if restarts and "Running" not in phases else JobState.STARTING
    return state, "Pending", _SOME_PODS.format(phases.count("Running"), wanted), None, None


def _not_scheduled(condition: Object, *, in_queue: bool) -> _Seen:
    """Without Kueue the pods themselves are the queue; behind it the nodes are taken already."""
    return JobState.STARTING if in_queue else JobState.QUEUED, "Pending", _words(condition), None, None


def is_unexplained(seen: JobStatus) -> bool:
    """It could start, and nothing but a warning can say why it does not."""
    return _UNEXPLAINED.fullmatch(seen.reason or "") is not None


def warning_about(name: str, seen: JobStatus, events: Iterable[Object]) -> JobStatus:
    """The job with the last warning about its JobSet, its Job or its pods as the reason.

    Args:
        name: of the JobSet.
        seen: the job.
        events: of the namespace.
    """
    own = re.compile(rf"{re.escape(name)}(-node-0(-.*)?)?")
    about = [event for event in events if own.fullmatch((event.get("involvedObject") or {}).get("name", ""))]
    warnings = [event for event in about if event.get("type") == "Warning"]
    if not warnings:
        return seen
    last = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return dataclasses.replace(seen, reason=f"{seen.reason}; {_words(last)}")


def _num_pods(group: Object) -> int:
    job = group.get("template", {}).get("spec", {})
    return int(group.get("replicas", 1)) * int(job.get("parallelism", 1))


def _cannot_start(pod: Object) -> str | None:
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _CANNOT_START:
            return f"{pod['metadata']['name']}: {_words(waiting)}"
    return None


def _containers(pod: Object) -> Iterator[Object]:
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from _status(pod).get(key) or []


def _root(pods: Iterable[Object]) -> tuple[Cause | None, int | None]:
    """Cause and exit code of the pod that explains the others."""
    found = [seen for seen in map(cause_of_pod, pods) if seen is not None]
    ranked = sorted(found, key=lambda seen: _ROOT_FIRST.index(seen[0]) if seen[0] in _ROOT_FIRST else len(_ROOT_FIRST))
    return ranked[0] if ranked else (None, None)


def cause_of_pod(pod: Object) -> tuple[Cause, int | None] | None:
    """Why a pod failed, and its exit code; None for one that has not.

    137 and 143 are what a pod returns that somebody killed, as a rule because another one failed.
    """
    if _status(pod).get("phase") != "Failed":
        return None
    code, reason = _termination(pod)
    if reason in _CAUSES_OF_TERMINATION:
        return _CAUSES_OF_TERMINATION[reason], code
    if (disrupted := _condition(pod, "DisruptionTarget")) is not None:
        return _CAUSES_OF_DISRUPTION.get(str(disrupted.get("reason")), Cause.UNKNOWN), code
    if (whole := str(_status(pod).get("reason", ""))) in _CAUSES_OF_POD:
        return _CAUSES_OF_POD[whole], code
    if code is None:
        return Cause.UNKNOWN, None
    return Cause.KILLED if code in _KILLED else Cause.USER_ERROR, code


def _termination(pod: Object) -> tuple[int | None, str]:
    """Exit code and reason of the first container that failed."""
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return int(ended["exitCode"]), str(ended.get("reason", ""))
    return None, ""
