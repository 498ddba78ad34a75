"""A JobSet as a run file: pods that are alike, in one group or several, each of which is a node.

Source: JobSet's API `jobset.x-k8s.io/v1alpha2` (0.13), and batch/v1 Jobs.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from trainworks.config.manifests.own_job import OwnJob
from trainworks.config.manifests.pod import PodPlace, read_template
from trainworks.config.manifests.reading import Handler, ManifestReading, at, drop_none, time_limit
from trainworks.config.source import FieldPath

_ALIKE = "all nodes of a run are alike"
_TOGETHER = "the nodes of a job start, restart and end together"
_INDEX = "JOB_COMPLETION_INDEX|job-completion-index|job-index|job-global-index"
_ATTEMPT = "a failed pod ends the attempt; `recover.max_restarts` says how many there are"


def read_jobset(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a JobSet."""
    groups = reading.entries(at(spec, "replicatedJobs"), (*key, "replicatedJobs"))
    handlers: dict[str, Handler] = {
        "replicatedJobs": None,
        "suspend": partial(hold, reading),
        "ttlSecondsAfterFinished": partial(keep, reading),
        "failurePolicy": partial(_failure_policy, reading),
        "network": partial(_network, reading),
        "successPolicy": partial(_success_policy, reading, len(groups)),
        "startupPolicy": _TOGETHER,
        "coordinator": "the first pod coordinates the others",
        "managedBy": "JobSet's own controller runs the job",
        "gangPolicy": "Kueue admits all pods of a job, or none",
        "volumeClaimPolicies": lambda _, place: reading.refuse(
            place, "Trainworks creates no volumes", "create the claim, and mount it in `volumes`"
        ),
    }
    reading.each(spec, key, handlers)
    pods = [_without_count(group) for group, _ in groups]
    if not groups or any(one != pods[0] for one in pods):
        names = ", ".join(f"`{group.get('name')}`" for group, _ in groups) or "none"
        hint = "write one with as many pods as nodes, or a job of its own for each"
        reading.refuse((*key, "replicatedJobs"), f"{_ALIKE}, and `replicatedJobs` has {len(groups)}: {names}", hint)
        return
    counts = [_read_group(reading, group, place) for group, place in groups]
    group, place = groups[0]
    at_pods, template = (*place, "template", "spec"), at(group, "template", "spec", "template")
    jobs = sum(one for other, _ in groups if isinstance(one := other.get("replicas", 1), int))
    if jobs > 1 and re.search(_INDEX, json.dumps(template, default=str)):
        message = f"the pods number themselves in each of {jobs} jobs, and Trainworks makes one job of them"
        reading.refuse((*place, "replicas"), message, "use `$NODE_RANK`, which counts all nodes")
    whole = [count for count in counts if isinstance(count, int)]
    number = sum(whole) if len(whole) == len(counts) else next(one for one in counts if not isinstance(one, int))
    reading.put(("num_nodes",), number, (*at_pods, "parallelism") if at(group, "template", "spec") else place)
    known = "|".join(re.escape(str(one.get("name"))) for one, _ in groups)
    hosts = rf"[\w.$()-]*-(?:{known})-\d+-\d+(\.[\w.$()-]+)?"
    main = PodPlace(main=("node", "trainer", "pytorch"), own=own, hosts="" if own.run else hosts)
    read_template(reading, template, (*at_pods, "template"), main)


def _without_count(group: dict[str, Any]) -> dict[str, Any]:
    """Pods of a group, to be compared: without their number, and without the name of a container that is alone."""
    job = dict(at(group, "template", "spec") or {}) if isinstance(at(group, "template", "spec"), dict | None) else {}
    containers = at(job, "template", "spec", "containers")
    if isinstance(containers, list) and len(containers) == 1 and isinstance(containers[0], dict):
        spec = job["template"]["spec"] | {"containers": [containers[0] | {"name": None}]}
        job["template"] = job["template"] | {"spec": spec}
    return drop_none(job | {"parallelism": None, "completions": None})


def _read_group(reading: ManifestReading, group: dict[str, Any], key: FieldPath) -> Any:
    """Read all of a group but its pods; returns their number, or a value that is none."""
    job, place = at(group, "template", "spec"), (*key, "template", "spec")
    handlers: dict[str, Handler] = {
        "name": None,
        "replicas": None,
        "template": None,
        "groupName": "a job has one group of nodes",
        "dependsOn": lambda _, at_key: reading.refuse(at_key, "a job with one group of pods depends on no other group"),
    }
    reading.each(group, key, handlers)
    replicas, pods = group.get("replicas", 1), at(job, "parallelism")
    pods = 1 if pods is None else pods
    _read_job(reading, job, place, pods)
    return replicas * pods if isinstance(replicas, int) and isinstance(pods, int) else pods


def _read_job(reading: ManifestReading, job: Any, key: FieldPath, pods: Any) -> None:
    handlers: dict[str, Handler] = {
        "parallelism": None,
        "completions": partial(_completions, reading, pods),
        "completionMode": None if at(job, "completionMode") == "Indexed" else "the pods of a job are numbered",
        "backoffLimit": None if at(job, "backoffLimit") == 0 else _ATTEMPT,
        "activeDeadlineSeconds": partial(time_limit, reading),
        "podFailurePolicy": partial(_pod_failure_policy, reading),
        "template": None,
        **dict.fromkeys(("backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy"), _ATTEMPT),
        "successPolicy": _TOGETHER,
        "suspend": "the job is suspended as a whole",
        "ttlSecondsAfterFinished": "the JobSet's own `ttlSecondsAfterFinished` counts",
        "manualSelector": "Kubernetes selects the pods",
        "selector": "Kubernetes selects the pods",
        "managedBy": "JobSet's own controller runs the job",
    }
    reading.each(job, key, handlers)


def _completions(reading: ManifestReading, pods: Any, value: Any, key: FieldPath) -> None:
    if value != pods:
        message = f"{value} completions of {pods} pods at a time are a queue of tasks"
        reading.refuse(key, message, "submit an array: `trainworks submit --array`")


def _pod_failure_policy(reading: ManifestReading, policy: Any, key: FieldPath) -> None:
    rules = at(policy, "rules")
    if not isinstance(rules, list) or any(
        at(rule, "action") != "FailJob" or "onPodConditions" not in rule for rule in rules
    ):
        reading.note(key, _ATTEMPT)


def hold(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    """Keep a suspended job waiting; one in a queue is suspended until Kueue admits it."""
    if value and "queue" not in reading.data["cluster"]["kubernetes"]:
        reading.put(("job", "hold"), value, key)


def keep(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    """Take the time after which the finished job is deleted."""
    if value == 0:
        reading.note(key, "Trainworks reads the end of a job, which Kubernetes would delete at once")
    else:
        reading.kubernetes("keep", float(value) if isinstance(value, int) else value, key)


def _failure_policy(reading: ManifestReading, policy: Any, key: FieldPath) -> None:
    handlers: dict[str, Handler] = {
        "maxRestarts": reading.putter("recover", "max_restarts"),
        "rules": partial(_failure_rules, reading),
        "restartStrategy": _TOGETHER,
    }
    reading.each(policy, key, handlers)


def _failure_rules(reading: ManifestReading, rules: Any, key: FieldPath) -> None:
    if not isinstance(rules, list) or any(at(rule, "name") != "disruption" for rule in rules):
        reading.note(key, "the exit code of the first pod says whether new pods may help")


def _network(reading: ManifestReading, network: Any, key: FieldPath) -> None:
    if network != {"enableDNSHostnames": True, "publishNotReadyAddresses": True}:
        reading.note(key, "the pods of a job always find each other by name")


def _success_policy(reading: ManifestReading, groups: int, policy: Any, key: FieldPath) -> None:
    if at(policy, "operator") != "All" or (groups > 1 and at(policy, "targetReplicatedJobs")):
        reading.note(key, "a job has succeeded when all of its nodes have")
