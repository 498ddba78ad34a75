"""What Kubernetes says of a job, in our words: conditions of its JobSet, of Kueue's Workload and of its pods.

Pure: objects come in as an API server gives them. Where several things are true, the first of these counts: the end of
the JobSet, Kueue's eviction, suspension, pods that cannot start, pods that run.

Source: conditions and reasons of JobSet (pkg/constants), Kueue (apis/kueue/v1beta1/workload_types.go) and Kubernetes
(batch/v1 and core/v1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainworks.job.state import Cause, JobState
from trainworks.scheduler.engine import Sight

__all__ = ["cause_of_pod", "sight"]

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
_KILLED = (137, 143)


def sight(jobset: Object, *, workload: Object | None = None, pods: Sequence[Object] = ()) -> Sight:
    """The job as it is now.

    Args:
        jobset: the JobSet.
        workload: Kueue's, where a queue has the job.
        pods: of the JobSet, of all attempts.
    """
    restarts = int(_status(jobset).get("restarts", 0))
    mine = [pod for pod in pods if _attempt(pod) in (None, restarts)]
    nodes = tuple(sorted({pod["spec"]["nodeName"] for pod in mine if pod.get("spec", {}).get("nodeName")}))
    seen = _ended(jobset, mine) or _waiting(jobset, workload) or _placed(jobset, workload, mine, restarts)
    state, raw, reason, cause, exit_code = seen
    return Sight(state=state, raw=raw, reason=reason, cause=cause, nodes=nodes, restarts=restarts, exit_code=exit_code)


_Seen = tuple[JobState, str, str | None, Cause | None, int | None]


def _status(thing: Object) -> Object:
    status: Object = thing.get("status") or {}
    return status


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


def _ended(jobset: Object, pods: Sequence[Object]) -> _Seen | None:
    if (done := _condition(jobset, "Completed")) is not None:
        return JobState.SUCCEEDED, "Completed", _words(done), None, 0
    if (failed := _condition(jobset, "Failed")) is None:
        return None
    cause, code = _root(pods)
    if "DeadlineExceeded" in _words(failed):
        cause = Cause.TIME_LIMIT
    return JobState.FAILED, "Failed", _words(failed), cause or Cause.UNKNOWN, code


def _waiting(jobset: Object, workload: Object | None) -> _Seen | None:
    """In Kueue's queue, evicted by Kueue, or held by its `suspend`."""
    if not jobset.get("spec", {}).get("suspend"):
        return None
    evicted = _condition(workload, "Evicted")
    if evicted is not None and not str(evicted.get("reason")).startswith(_SOMEBODY_S_WISH):
        cause = _CAUSES_OF_EVICTION.get(str(evicted.get("reason")), Cause.UNKNOWN)
        state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
        return state, "Evicted", _words(evicted), cause, None
    if workload is None:
        return JobState.QUEUED, "Suspended", "it is held", None, None
    if workload.get("spec", {}).get("active") is False:
        return JobState.QUEUED, "Inactive", "it is held: its Workload is not active", None, None
    pending = _condition(workload, "QuotaReserved", "False") or _condition(workload, "Admitted", "False")
    return JobState.QUEUED, "Pending", _words(pending) if pending else "Kueue has not looked at it yet", None, None


def _placed(jobset: Object, workload: Object | None, pods: Sequence[Object], restarts: int) -> _Seen:
    """Admitted, or without a queue: what its pods do."""
    wanted = sum(_num_pods(group) for group in jobset.get("spec", {}).get("replicatedJobs", []))
    phases = [str(_status(pod).get("phase")) for pod in pods]
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
        return JobState.QUEUED, "Created", "it has no pods yet", None, None
    state = JobState.RECOVERING if restarts and "Running" not in phases else JobState.STARTING
    return state, "Pending", f"{phases.count('Running')} of {wanted} pods run", None, None


def _not_scheduled(condition: Object, *, in_queue: bool) -> _Seen:
    """Without Kueue the pods themselves are the queue; behind it the nodes are taken already."""
    return JobState.STARTING if in_queue else JobState.QUEUED, "Pending", _words(condition), None, None


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
