"""A Job, a JobSet, a TrainJob or a PyTorchJob as a run file, each of whose nodes is a pod.

All pods are alike, except those of a JobSet whose groups are roles.
Trainworks does not read the runtime of a TrainJob, so the image and the command must be in the job.

Sources: JobSet's API `jobset.x-k8s.io/v1alpha2` (0.13), and batch/v1 Jobs; Kubeflow Trainer's API
`trainer.kubeflow.org/v1alpha1` (2.3), with `podTemplateOverrides` of 2.1; API `kubeflow.org/v1` of the Training
Operator 1.9, with the variables of its pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from trainworks.config.manifests.own_job import OwnJob, own_job
from trainworks.config.manifests.pod import PodPlace, read_template
from trainworks.config.manifests.reading import FILL_IN, Entry, Handler, ManifestReading, at, drop_none, time_limit
from trainworks.config.manifests.roles import read_roles
from trainworks.config.pod_patch import POD_CONTAINER, patched
from trainworks.config.source import FieldPath

_MAIN = ("node", "trainer", "pytorch")
"""Names of the container that trains."""
_TOGETHER = "the nodes of a job start, restart and end together"
_INDEX = "JOB_COMPLETION_INDEX|job-completion-index|job-index|job-global-index"
_RETRIES = 6
"""`backoffLimit` of a Job that has none; Kubernetes' default."""
_ATTEMPT = "a failed pod ends the attempt; `recover.max_restarts` says how many there are"


def read_jobset(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a JobSet."""
    groups = reading.entries(at(spec, "replicatedJobs"), (*key, "replicatedJobs"))
    pods = [_comparable_pods(group) for group, _ in groups]
    needed = [one for group, place in groups for one, _ in reading.entries(group.get("dependsOn"), place)]
    has_roles = any(one != pods[0] for one in pods) or any(one.get("status") == "Complete" for one in needed)
    handlers: dict[str, Handler] = {
        "replicatedJobs": None,
        "suspend": partial(hold, reading),
        "ttlSecondsAfterFinished": partial(keep, reading),
        "failurePolicy": {
            "maxRestarts": reading.putter("recover", "max_restarts"),
            "rules": partial(_failure_rules, reading),
            "restartStrategy": _TOGETHER,
        },
        "network": partial(_network, reading),
        "successPolicy": partial(_success_policy, reading, 1 if has_roles else len(groups)),
        "startupPolicy": _TOGETHER,
        "coordinator": "the first pod coordinates the others",
        "managedBy": "JobSet's own controller runs the job",
        "gangPolicy": "Kueue admits all pods of a job, or none",
        "volumeClaimPolicies": lambda _, place: reading.refuse(
            place, "Trainworks creates no volumes", "create the claim, and mount it in `volumes`"
        ),
    }
    reading.each(spec, key, handlers)
    if not groups:
        reading.refuse((*key, "replicatedJobs"), "`replicatedJobs` has no group of pods", "add one to it")
        return
    known = "|".join(re.escape(str(one.get("name"))) for one, _ in groups)
    hosts = rf"[\w.$()-]*-(?:{known})-\d+-\d+(\.[\w.$()-]+)?"
    if has_roles:
        read_roles(reading, groups, at(spec, "successPolicy"), (*key, "replicatedJobs"), partial(_read_role, hosts))
        return
    counts = [_read_group(reading, group, place) for group, place in groups]
    group, place = groups[0]
    at_pods, template = (*place, "template", "spec"), at(group, "template", "spec", "template")
    _check_numbers(reading, groups, template, place)
    whole = [count for count in counts if isinstance(count, int)]
    number = sum(whole) if len(whole) == len(counts) else next(one for one in counts if not isinstance(one, int))
    reading.put(("num_nodes",), number, (*at_pods, "parallelism") if at(group, "template", "spec") else place)
    main = PodPlace(main=_MAIN, own=own, hosts="" if own.run else hosts)
    read_template(reading, template, (*at_pods, "template"), main)


def _read_role(hosts: str, reading: ManifestReading, entry: Entry) -> Any:
    """Read a group of a JobSet as a job of its own; returns its number of nodes."""
    group, key = entry
    number, own = _read_group(reading, group, key, is_role=True), own_job(at(group, "template", "metadata") or {})
    template = at(group, "template", "spec", "template")
    _check_numbers(reading, [entry], template, key)
    place = PodPlace(main=_MAIN, own=own, hosts="" if own.run else hosts)
    read_template(reading, template, (*key, "template", "spec", "template"), place)
    return number


def _check_numbers(reading: ManifestReading, groups: list[Entry], template: Any, key: FieldPath) -> None:
    """Refuse pods that count themselves in one of several jobs."""
    jobs = sum(one for other, _ in groups if isinstance(one := other.get("replicas", 1), int))
    if jobs > 1 and re.search(_INDEX, json.dumps(template, default=str)):
        message = f"the pods number themselves in each of {jobs} jobs, and Trainworks makes one job of them"
        reading.refuse((*key, "replicas"), message, "use `$NODE_RANK`, which counts all nodes")


def _comparable_pods(group: dict[str, Any]) -> dict[str, Any]:
    """Pods of a group, to be compared: without their number, and without the name of a container that is alone."""
    job = dict(at(group, "template", "spec") or {}) if isinstance(at(group, "template", "spec"), dict | None) else {}
    containers = at(job, "template", "spec", "containers")
    if isinstance(containers, list) and len(containers) == 1 and isinstance(containers[0], dict):
        spec = job["template"]["spec"] | {"containers": [containers[0] | {"name": None}]}
        job["template"] = job["template"] | {"spec": spec}
    return drop_none(job | {"parallelism": None, "completions": None})


def _read_group(reading: ManifestReading, group: dict[str, Any], key: FieldPath, *, is_role: bool = False) -> Any:
    """Read all of a group but its pods; returns their number, or a value that is none."""
    single = "a job with one group of pods depends on no other group"
    job, place = at(group, "template", "spec"), (*key, "template", "spec")
    metadata = reading.mapping(at(group, "template", "metadata"), (*key, "template", "metadata"))
    if not own_job(metadata).run:
        for part in metadata:
            reading.note((*key, "template", "metadata", part), "it is about a Job of its own for each group")
    handlers: dict[str, Handler] = {
        "name": None,
        "replicas": None,
        "template": None,
        "groupName": "a job has one group of nodes",
        "dependsOn": None if is_role else lambda _, at_key: reading.refuse(at_key, single),
    }
    reading.each(group, key, handlers)
    replicas, pods = group.get("replicas", 1), at(job, "parallelism")
    pods = 1 if pods is None else pods
    reading.each(job, place, _of_job(reading, job, pods))
    return replicas * pods if isinstance(replicas, int) and isinstance(pods, int) else pods


def read_job(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a Job of Kubernetes itself: all its pods, each of which ends well once, are the nodes."""
    pods = 1 if at(spec, "parallelism") is None else at(spec, "parallelism")
    own_rules: dict[str, Handler] = {
        "backoffLimit": None,
        "suspend": partial(hold, reading),
        "ttlSecondsAfterFinished": partial(keep, reading),
        "managedBy": "JobSet's controller runs the job",
    }
    reading.each(spec, key, _of_job(reading, spec, pods) | own_rules)
    if pods != 1 and at(spec, "completions") is None:
        message = f"{pods} pods without `completions` share a queue of tasks"
        reading.refuse((*key, "parallelism"), message, f"set `completions: {pods}` for a job of {pods} nodes")
    reading.put(("num_nodes",), pods, (*key, "parallelism"))
    limit = at(spec, "backoffLimit")
    reading.put(("recover", "max_restarts"), _RETRIES if limit is None else limit, (*key, "backoffLimit"))
    if pods != 1:
        reading.note((*key, "backoffLimit"), "on a pod alone; all nodes start again, `recover.max_restarts` times")
    hosts = rf"\b{re.escape(reading.data['name'])}-\d+\.[\w.$()-]+"
    read_template(reading, at(spec, "template"), (*key, "template"), PodPlace(main=_MAIN, own=own, hosts=hosts))


def _of_job(reading: ManifestReading, job: Any, pods: Any) -> dict[str, Handler]:
    return {
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


def _completions(reading: ManifestReading, pods: Any, value: Any, key: FieldPath) -> None:
    if value != pods:
        message = f"{value} completions of {pods} pods at a time are a queue of tasks"
        reading.refuse(key, message, "submit an array: `trainworks submit --array`")


def _pod_failure_policy(reading: ManifestReading, policy: Any, key: FieldPath) -> None:
    rules, disrupted = at(policy, "rules"), [{"type": "DisruptionTarget", "status": "True"}]
    own = {"action": "FailJob", "onPodConditions": disrupted}
    short = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    if not isinstance(rules, list) or any(rule not in (own, short) for rule in rules):
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


def _failure_rules(reading: ManifestReading, rules: Any, key: FieldPath) -> None:
    if not isinstance(rules, list) or any(at(rule, "name") != "disruption" for rule in rules):
        reading.note(key, "the exit code of the first pod says whether new pods may help")


def _network(reading: ManifestReading, network: Any, key: FieldPath) -> None:
    if network != {"enableDNSHostnames": True, "publishNotReadyAddresses": True}:
        reading.note(key, "the pods of a job always find each other by name")


def _success_policy(reading: ManifestReading, groups: int, policy: Any, key: FieldPath) -> None:
    if at(policy, "operator") != "All" or (groups > 1 and at(policy, "targetReplicatedJobs")):
        reading.note(key, "a job has succeeded when all of its nodes have")


_OTHER_LAUNCHERS = ("mpi", "mlx", "flux", "deepspeed", "xgboost")
"""Runtimes whose own launcher starts the ranks."""


def read_trainjob(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a TrainJob."""
    on_objects = "it is about the objects of Kubeflow"
    handlers: dict[str, Handler] = {
        "runtimeRef": partial(_runtime, reading),
        "trainer": None,
        "suspend": partial(hold, reading),
        "activeDeadlineSeconds": partial(time_limit, reading),
        "runtimePatches": None,
        **dict.fromkeys(("podTemplateOverrides", "podSpecOverrides"), None),
        "managedBy": "JobSet's controller runs the job",
        "labels": on_objects,
        "annotations": on_objects,
        "initializer": lambda _, place: reading.refuse(
            place,
            "the program and the volume of an initializer are those of the runtime, which Trainworks does not read",
            "write a run file with `roles`, one of which downloads, and `depends_on` for the trainer",
        ),
    }
    reading.each(spec, key, handlers)
    trainer, place = at(spec, "trainer"), (*key, "trainer")
    if trainer is None:
        reading.refuse(key, "there is no `trainer`", "add `trainer` with `image` and `command`")
        return
    for name in ("image", "command"):
        if not at(trainer, name):
            message = f"`{name}` is that of the runtime, and Trainworks does not read the runtimes of a cluster"
            reading.refuse(place, message, f"set `trainer.{name}`")
    _read_trainer(reading, trainer, place, spec, key, own)


def _runtime(reading: ManifestReading, reference: Any, key: FieldPath) -> None:
    name = str(at(reference, "name"))
    if launcher := next((one for one in _OTHER_LAUNCHERS if one in name), None):
        message = (
            f"the runtime `{name}` starts the ranks with a launcher of {launcher}, which Trainworks does not provide"
        )
        reading.refuse((*key, "name"), message, "use a runtime of torch or jax")
    elif "jax" in name:
        reading.put(("framework",), "jax", (*key, "name"))
    elif "torch" not in name:
        reading.note((*key, "name"), "the nodes get the variables of torchrun, and nothing of this runtime")


def _read_trainer(
    reading: ManifestReading, trainer: Any, key: FieldPath, spec: Any, at_spec: FieldPath, own: OwnJob
) -> None:
    envs = {} if own.run or reading.data.get("framework") == "jax" else {"PET_NPROC_PER_NODE": "auto"}

    def processes(value: Any, _: FieldPath) -> None:
        if envs:
            envs["PET_NPROC_PER_NODE"] = str(value)

    def nodes(value: Any, place: FieldPath) -> None:
        reading.put(("num_nodes",), value, place)

    same = dict.fromkeys(("image", "command", "args", "env", "resourcesPerNode"))
    reading.put(("num_nodes",), 1, key)
    reading.each(trainer, key, {**same, "numNodes": nodes, "numProcPerNode": processes})
    names = {"resourcesPerNode": "resources"}
    container = {names.get(name, name): trainer[name] for name in same if isinstance(trainer, dict) and name in trainer}
    template: dict[str, Any] = {"spec": {"containers": [{"name": POD_CONTAINER, **container}]}}
    at_container = (*key, "spec", "containers", 0)
    reading.source.renamed = [((*at_container, "resources"), (*key, "resourcesPerNode")), (at_container, key)]
    for patch, place in _patches(reading, spec, at_spec):
        if "containers" in reading.mapping(at(patch, "spec"), (*place, "spec")):
            others = [one for one in patch["spec"]["containers"] or [] if at(one, "name") != POD_CONTAINER]
            if others or not all(isinstance(one, dict) for one in patch["spec"]["containers"]):
                reading.refuse((*place, "spec", "containers"), f"only the container `{POD_CONTAINER}` trains")
                continue
        template = patched(template, patch)
        reading.source.renamed += [((*key, part), (*place, part)) for part in ("spec", "metadata")]
    if at(trainer, "command") and at(trainer, "image"):
        read_template(reading, template, key, PodPlace(own=own, envs=envs))


def _patches(reading: ManifestReading, spec: Any, key: FieldPath) -> list[Entry]:
    """Patches of the template of the pods that train, each with its place."""
    found: list[Entry] = []
    for patch, place in reading.entries(at(spec, "runtimePatches"), (*key, "runtimePatches")):
        inner = (*place, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        if at(patch, "trainingRuntimeSpec", "template", "metadata") is not None:
            reading.note((*inner[:-2], "metadata"), "it is about the JobSet of Kubeflow")
        jobs = at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for job, at_job in reading.entries(jobs, inner):
            template = at(job, "template", "spec", "template")
            found += _node_containers(reading, job.get("name"), template, (*at_job, "template", "spec", "template"))
    for name in ("podTemplateOverrides", "podSpecOverrides"):
        for override, place in reading.entries(at(spec, name), (*key, name)):
            targets = [at(one, "name") for one, _ in reading.entries(override.pop("targetJobs", None), place)]
            template = override if name == "podTemplateOverrides" else {"spec": override}
            found += _node_containers(reading, POD_CONTAINER if POD_CONTAINER in targets else targets, template, place)
    return found


def _node_containers(reading: ManifestReading, job: Any, template: Any, place: FieldPath) -> list[Entry]:
    if job != POD_CONTAINER:
        reading.note(place, f"it is about pods other than `{POD_CONTAINER}`")
        return []
    return [(dict(template), place)] if isinstance(template, dict) else []


_ROLES = ("Master", "Worker")
_FIXED = "the number of nodes is fixed: a JobSet starts all of them, or none"
_MEETING = "the nodes meet at `$MASTER_ADDR:$MASTER_PORT`"
_FREE = ("ports", "restartPolicy", "name", "stdin", "tty")
"""Fields of a container in which master and workers may differ."""


def read_pytorchjob(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a PyTorchJob, of which none is Trainworks' own."""
    replicas = reading.mapping(at(spec, "pytorchReplicaSpecs"), (*key, "pytorchReplicaSpecs"))
    envs = {"PET_NPROC_PER_NODE": "auto"}
    handlers: dict[str, Handler] = {
        "pytorchReplicaSpecs": None,
        "nprocPerNode": lambda value, _: envs.update(PET_NPROC_PER_NODE=str(value)),
        "runPolicy": {
            "backoffLimit": reading.putter("recover", "max_restarts"),
            "activeDeadlineSeconds": partial(time_limit, reading),
            "ttlSecondsAfterFinished": partial(keep, reading),
            "suspend": partial(hold, reading),
            "cleanPodPolicy": "pods that have ended stay until the job is deleted",
            "schedulingPolicy": "`cluster.kubernetes.queue` starts all nodes together",
            "managedBy": "JobSet's controller runs the job",
        },
        "elasticPolicy": lambda value, place: _elastic_policy(reading, value, place, envs),
    }
    reading.each(spec, key, handlers)
    place = (*key, "pytorchReplicaSpecs")
    roles = [role for role in _ROLES if role in replicas]
    for role in replicas.keys() - set(_ROLES):
        reading.refuse((*place, role), f"unknown role `{role}`", "write `Master` and `Worker`")
    if not roles:
        reading.refuse(place, "there is neither a `Master` nor a `Worker`", "add a `Worker` with its `template`")
        return
    _read_roles(reading, replicas, roles, place)
    hosts = rf"\b{re.escape(reading.data['name'])}-(master|worker)-\d+\b"
    template = at(replicas[roles[-1]], "template")
    read_template(
        reading, template, (*place, roles[-1], "template"), PodPlace(main=("pytorch",), hosts=hosts, envs=envs)
    )
    if at(spec, "elasticPolicy") is not None and "run" in reading.data:
        reading.data["run"] = f'export PET_RDZV_ENDPOINT="$MASTER_ADDR:$MASTER_PORT"\n{reading.data["run"]}'


def _read_roles(reading: ManifestReading, replicas: Mapping[str, Any], roles: list[str], key: FieldPath) -> None:
    """Count the nodes, and check that they are alike."""
    restarts = "`runPolicy.backoffLimit` says how often the job starts again"
    for role in roles:
        handlers: dict[str, Handler] = {"replicas": None, "template": None, "restartPolicy": None}
        if at(replicas[role], "restartPolicy") not in (None, "Never"):
            handlers["restartPolicy"] = restarts
        reading.each(replicas[role], (*key, role), handlers)
    counts = [at(replicas[role], "replicas") for role in roles]
    numbers = [1 if count is None else count for count in counts]
    for role, number in zip(roles, numbers, strict=True):
        if not isinstance(number, int):
            hint = FILL_IN if "$" in str(number) else None
            reading.refuse((*key, role, "replicas"), f"`replicas` must be an integer, got `{number}`", hint)
    if all(isinstance(number, int) for number in numbers):
        reading.put(("num_nodes",), sum(numbers), (*key, roles[-1], "replicas"))
    if len(roles) > 1 and (path := _difference(*(_comparable(at(replicas[role], "template")) for role in roles))):
        message = f"all nodes of a run are alike, and `{'.'.join(path)}` of `Master` and `Worker` differ"
        reading.refuse((*key, "Worker", "template", *path), message, "give both the same `template`")


def _comparable(template: Any) -> Any:
    """A template without what master and workers may have of their own."""
    if isinstance(template, Mapping):
        return {key: _comparable(value) for key, value in template.items() if key not in _FREE}
    return [_comparable(one) for one in template] if isinstance(template, list) else template


def _difference(one: Any, other: Any, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Path of the first difference; empty if there is none."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        parts = [(str(key), one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(str(index), *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        return () if one == other else path or ("template",)
    return next((found for key, left, right in parts if (found := _difference(left, right, (*path, key)))), ())


def _elastic_policy(reading: ManifestReading, policy: Any, key: FieldPath, envs: dict[str, str]) -> None:
    def variable(name: str) -> Handler:
        return lambda value, _: envs.update({name: str(value)})

    def backend(value: Any, place: FieldPath) -> None:
        if value in ("c10d", "C10d"):
            envs["PET_RDZV_BACKEND"] = "c10d"
        else:
            reading.note(place, _MEETING)

    handlers: dict[str, Handler] = {
        "maxRestarts": variable("PET_MAX_RESTARTS"),
        "nProcPerNode": variable("PET_NPROC_PER_NODE"),
        "rdzvId": variable("PET_RDZV_ID"),
        "rdzvBackend": backend,
        **dict.fromkeys(("minReplicas", "maxReplicas", "metrics"), _FIXED),
        **dict.fromkeys(("rdzvHost", "rdzvPort", "rdzvConf", "standalone"), _MEETING),
    }
    reading.each(policy, key, handlers)
