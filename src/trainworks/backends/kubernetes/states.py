"""Status of a job from Kubernetes objects: the conditions of its JobSet, of Kueue's Workload and of its pods. Pure.

If several conditions hold, the first of these counts: the end of the JobSet, a user's stop, Kueue's eviction,
suspension, pods that cannot start, pods that run. The termination message of the first pod tells why a job ended,
unless Kubernetes knows better.

Source: conditions and reasons of JobSet (pkg/constants), Kueue (apis/kueue/v1beta1/workload_types.go) and Kubernetes
(batch/v1 and core/v1).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from trainworks.backends.backend import JobStatus
from trainworks.backends.kubernetes.client import Object
from trainworks.backends.kubernetes.facts import INDEX, annotations_of, labels_of
from trainworks.backends.kubernetes.render import HELD, STOPPED
from trainworks.jobs.formats.manifest import QUEUE_LABEL
from trainworks.jobs.state import Cause, JobState, parse_cause

_CAUSES_OF_EVICTION: dict[str, Cause] = {
    "Preempted": Cause.PREEMPTED,
    "PodsReadyTimeout": Cause.LAUNCH_FAILED,
    "AdmissionCheck": Cause.NO_CAPACITY,
    "ClusterQueueStopped": Cause.PREEMPTED,
    "LocalQueueStopped": Cause.PREEMPTED,
    "NodeFailures": Cause.NODE_LOST,
    "MaximumExecutionTimeExceeded": Cause.TIME_LIMIT,
}
"""Causes by the reason of a Workload's condition Evicted."""
_DEACTIVATED = ("Deactivated", "InactiveWorkload")
"""Prefixes of such reasons after a user has set `active: false`."""
_CAUSES_OF_DISRUPTION: dict[str, Cause] = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "TerminationByKubelet": Cause.PREEMPTED,
}
"""Causes by the reason of a pod's condition DisruptionTarget."""
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
"""Causes by `status.reason` of a failed pod."""
_START_FAILURES = frozenset(
    ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
     "RunContainerError", "ErrImageNeverPull", "CrashLoopBackOff")
)  # fmt: skip
"""Reasons of a waiting container that do not go away by themselves."""
_ROOT_FIRST = (Cause.OOM, Cause.NODE_LOST, Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.LAUNCH_FAILED, Cause.USER_ERROR)
"""Order of causes among several failed pods: the first one explains the others, which only saw a pod disappear."""
_KUBERNETES_KNOWS = (Cause.OOM, Cause.NODE_LOST, Cause.PREEMPTED, Cause.TIME_LIMIT)
"""Causes that the first pod cannot see: it only lost the connection to another pod, or was terminated itself."""
_KILLED = (137, 143)
_PHASES = frozenset(("Pending", "Running", "Succeeded", "Failed"))
"""Known phases of pods. Kubernetes' `Unknown` means that a node does not answer, not that the pod has ended."""
_NO_PODS = "no pods yet"
_SOME_PODS = "{} of {} pods running"


def job_status(
    jobset: Object, *, workload: Object | None = None, pods: Sequence[Object] = (), job: Object | None = None
) -> JobStatus:
    """Current status of a job.

    `workload` is Kueue's, if the job is in a queue. `pods` are those of all attempts. `job` is the Job of a failed
    JobSet.
    """
    restarts = int(_status(jobset).get("restarts", 0))
    mine = _present(pod for pod in pods if _attempt(pod) in (None, restarts))
    nodes = tuple(sorted(pod["spec"]["nodeName"] for pod in mine if pod.get("spec", {}).get("nodeName")))
    status = (
        _ended(jobset, mine, job)
        or _stopped(jobset, mine)
        or _waiting(jobset, workload)
        or _unknown_phase(mine)
        or _placed(jobset, workload, mine, restarts)
    )
    used = _termination_message(mine).get("restarts") if status.state.is_final else None
    ends = [_condition(jobset, kind) or {} for kind in ("Completed", "Failed")]
    # Kubernetes knows it as long as pods of that allocation exist
    cause, _ = _root_cause(_present(pod for pod in pods if _attempt(pod) == restarts - 1))
    return dataclasses.replace(
        status,
        nodes=nodes,
        restarts=restarts,
        restarts_used=used if isinstance(used, int) else None,
        starts_at=None if status.state.waits else _latest(_status(pod).get("startTime") for pod in mine),
        ended_at=_latest(one.get("lastTransitionTime") for one in ends) if status.state.is_final else None,
        last_cause=cause if cause in _KUBERNETES_KNOWS else None,
    )


def _present(pods: Iterable[Object]) -> list[Object]:
    """Pods without those that Kubernetes has replaced by another one of the same role and index."""
    found = dict[tuple[str, str], Object]()
    for pod in sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", _phase(pod) != "Failed")):
        place = (labels_of(pod).get("batch.kubernetes.io/job-name", ""), labels_of(pod).get(INDEX, ""))
        found[place if place[1] else (pod["metadata"]["name"], "")] = pod
    return list(found.values())


def _latest(times: Iterable[str | None]) -> float | None:
    return max((datetime.fromisoformat(time).timestamp() for time in times if time), default=None)


def _status(thing: Object) -> Object:
    status: Object = thing.get("status") or {}
    return status


def _condition(thing: Object | None, kind: str, status: str = "True") -> Object | None:
    conditions = _status(thing).get("conditions") or [] if thing is not None else []
    return next((one for one in conditions if one["type"] == kind and one["status"] == status), None)


def _attempt(pod: Object) -> int | None:
    label = labels_of(pod).get("jobset.sigs.k8s.io/restart-attempt")
    return int(label) if label is not None else None


def _reason(condition: Object) -> str:
    reason, message = condition.get("reason", ""), condition.get("message", "")
    return ": ".join(filter(None, (reason, message)))


def _ended(jobset: Object, pods: Sequence[Object], job: Object | None) -> JobStatus | None:
    message = _termination_message(pods)
    if (done := _condition(jobset, "Completed")) is not None:
        state = JobState.STOPPED if message.get("state") == JobState.STOPPED else JobState.SUCCEEDED
        return JobStatus(state=state, raw="Completed", reason=_reason(done), exit_code=0)
    if (failed := _condition(jobset, "Failed")) is None:
        return None
    cause, code = _root_cause(pods)
    reason, job_failure, hint = _reason(failed), _condition(job, "Failed") or {}, None
    if job_failure.get("reason") == "DeadlineExceeded":
        reason, cause = _reason(job_failure), Cause.TIME_LIMIT
    elif message.get("cause") and cause not in _KUBERNETES_KNOWS:
        where = [f"{kind} {message[kind]}" for kind in ("rank", "node") if message.get(kind) is not None]
        reason = ": ".join(filter(None, (" on ".join(where), message.get("message"))))
        cause = parse_cause(str(message["cause"]))
        code, hint = message.get("exit_code") or code, message.get("hint")
    cause = cause or Cause.UNKNOWN
    return JobStatus(state=JobState.FAILED, raw="Failed", reason=reason, cause=cause, hint=hint, exit_code=code)


def has_failed(jobset: Object) -> bool:
    """Whether the JobSet has failed for good."""
    return _condition(jobset, "Failed") is not None


def has_ended(jobset: Object) -> bool:
    """Whether the JobSet has completed or failed, rather than been stopped."""
    return has_failed(jobset) or _condition(jobset, "Completed") is not None


def _termination_message(pods: Iterable[Object]) -> Object:
    """Termination message of the first pod; empty if it could not write one."""
    for pod in pods:
        for container in _containers(pod):
            text = ((container.get("state") or {}).get("terminated") or {}).get("message")
            try:
                message = json.loads(text or "")
            except ValueError:
                continue
            if isinstance(message, dict) and "state" in message:
                return message
    return {}


def _stopped(jobset: Object, pods: Sequence[Object]) -> JobStatus | None:
    """Status of a job that a user stopped: its JobSet stays suspended, and its pods have their grace."""
    if STOPPED not in annotations_of(jobset):
        return None
    if any(_status(pod).get("phase") == "Running" for pod in pods):
        return JobStatus(state=JobState.RUNNING, raw="Stopping", reason="stop requested")
    return JobStatus(state=JobState.STOPPED, raw="Stopped")


def _waiting(jobset: Object, workload: Object | None) -> JobStatus | None:
    """Status of a suspended JobSet: in Kueue's queue, evicted by Kueue, or held."""
    if not jobset.get("spec", {}).get("suspend"):
        return None
    evicted = _condition(workload, "Evicted")
    if evicted is not None and not str(evicted.get("reason")).startswith(_DEACTIVATED):
        cause = _CAUSES_OF_EVICTION.get(str(evicted.get("reason")), Cause.UNKNOWN)
        state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
        return JobStatus(state=state, raw="Evicted", reason=_reason(evicted), cause=cause)
    if workload is None and (HELD in annotations_of(jobset) or QUEUE_LABEL not in labels_of(jobset)):
        return JobStatus(state=JobState.QUEUED, raw="Suspended", reason="held")
    if workload is not None and workload.get("spec", {}).get("active") is False:
        return JobStatus(state=JobState.QUEUED, raw="Inactive", reason="held: its Workload is not active")
    pending = _condition(workload, "QuotaReserved", "False") or _condition(workload, "Admitted", "False")
    reason = _reason(pending) if pending else "Kueue has not processed it yet"
    return JobStatus(state=JobState.QUEUED, raw="Pending", reason=reason)


def _phase(pod: Object) -> str:
    return str(_status(pod).get("phase") or "Pending")


def _unknown_phase(pods: Sequence[Object]) -> JobStatus | None:
    """Status of a job with a pod in a phase that this version does not know."""
    phase = next((_phase(pod) for pod in pods if _phase(pod) not in _PHASES), None)
    if phase is None:
        return None
    return JobStatus(state=JobState.UNKNOWN, raw=phase, reason=f"a pod is in the unknown phase `{phase}`")


def _num_pods(group: Object) -> int:
    job = group.get("template", {}).get("spec", {})
    return int(group.get("replicas", 1)) * int(job.get("parallelism", 1))


def _placed(jobset: Object, workload: Object | None, pods: Sequence[Object], restarts: int) -> JobStatus:
    """Status of an admitted job, from its pods."""
    num_pods = sum(_num_pods(group) for group in jobset.get("spec", {}).get("replicatedJobs", []))
    phases = [_phase(pod) for pod in pods]
    if num_pods and phases.count("Running") + phases.count("Succeeded") >= num_pods:
        return JobStatus(state=JobState.RUNNING, raw="Running")
    if "Failed" in phases:
        cause, code = _root_cause(pods)
        reason = "a pod failed; Kubernetes has not reacted yet"
        return JobStatus(state=JobState.RECOVERING, raw="Failed", reason=reason, cause=cause, exit_code=code)
    for pod in pods:
        if (failure := _start_failure(pod)) is not None:
            return JobStatus(state=JobState.STARTING, raw="Pending", reason=failure, cause=Cause.LAUNCH_FAILED)
    for pod in pods:
        if (condition := _condition(pod, "PodScheduled", "False")) is not None:
            # without Kueue the pods themselves are the queue; with it, the job has been admitted
            state = JobState.QUEUED if workload is None else JobState.STARTING
            return JobStatus(state=state, raw="Pending", reason=_reason(condition))
    if not pods and workload is None and not restarts:
        return JobStatus(state=JobState.QUEUED, raw="Created", reason=_NO_PODS)
    state = JobState.RECOVERING if restarts and "Running" not in phases else JobState.STARTING
    return JobStatus(state=state, raw="Pending", reason=_SOME_PODS.format(phases.count("Running"), num_pods))


def is_unexplained(status: JobStatus) -> bool:
    """Whether a job could start, and only a warning event can tell why it does not."""
    return re.fullmatch(rf"{_NO_PODS}|{_SOME_PODS.replace('{}', '[0-9]+')}", status.reason or "") is not None


def warning_about(jobset: Object, status: JobStatus, events: Iterable[Object]) -> JobStatus:
    """Status with the last warning about the JobSet, its Jobs or its pods as the reason."""
    groups = "|".join(re.escape(group["name"]) for group in jobset["spec"]["replicatedJobs"])
    names = re.compile(rf"{re.escape(jobset['metadata']['name'])}(-({groups})-0(-.*)?)?")
    about = [event for event in events if names.fullmatch((event.get("involvedObject") or {}).get("name", ""))]
    warnings = [event for event in about if event.get("type") == "Warning"]
    if not warnings:
        return status
    last = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return dataclasses.replace(status, reason=f"{status.reason}; {_reason(last)}")


def _start_failure(pod: Object) -> str | None:
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _START_FAILURES:
            return f"{pod['metadata']['name']}: {_reason(waiting)}"
    return None


def _containers(pod: Object) -> Iterator[Object]:
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from _status(pod).get(key) or []


def _root_cause(pods: Iterable[Object]) -> tuple[Cause | None, int | None]:
    """Cause and exit code of the failed pod that explains the others."""
    failures = [failure for failure in map(cause_of_pod, pods) if failure is not None]
    rank = {cause: index for index, cause in enumerate(_ROOT_FIRST)}
    ranked = sorted(failures, key=lambda failure: rank.get(failure[0], len(rank)))
    return ranked[0] if ranked else (None, None)


def cause_of_pod(pod: Object) -> tuple[Cause, int | None] | None:
    """Cause and exit code of a failed pod; None for others.

    137 and 143 are exit codes of a killed pod, usually killed because another one failed.
    """
    if _status(pod).get("phase") != "Failed":
        return None
    code, reason = _termination(pod)
    if reason in _CAUSES_OF_TERMINATION:
        return _CAUSES_OF_TERMINATION[reason], code
    if (disrupted := _condition(pod, "DisruptionTarget")) is not None:
        return _CAUSES_OF_DISRUPTION.get(str(disrupted.get("reason")), Cause.UNKNOWN), code
    if (pod_reason := str(_status(pod).get("reason", ""))) in _CAUSES_OF_POD:
        return _CAUSES_OF_POD[pod_reason], code
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
