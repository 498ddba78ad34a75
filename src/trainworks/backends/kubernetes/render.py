"""A job spec as a JobSet: one pod per node, all of them started and restarted together. Pure.

Pods have Trainworks in their image; each runs `scheduler.kubernetes.node`, and the first one is the job's supervisor.
What comes from a user is an argument, a variable's value or a name that the API server checks, never text for a shell.

Restarts are decided in three places, each for what only it can see: the supervisor starts ranks again in their pods; it
says by its exit code whether new pods may help; the JobSet makes new pods, also where the supervisor was lost itself.

Source: JobSet's API `jobset.x-k8s.io/v1alpha2`, with `onJobFailureMessagePatterns`; batch/v1 Jobs in Indexed
mode, whose messages of a pod failure policy are in pkg/controller/job/pod_failure_policy.go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainworks.backends.job_tag import folder_mark, mark_of
from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.jobset import DISRUPTION, indexed_job
from trainworks.jobs.formats.manifest import (
    REPLICATED_JOB,
    RUNS,
    Pods,
    container_security,
    dns_name,
    header,
    labels,
    literal,
    pod_security,
    quantities,
    scheduling,
    to_yaml,
    user_of,
    without_nothing,
)
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

__all__ = [
    "DEFAULT_USER",
    "ENFORCED",
    "HELD",
    "MARK",
    "NODE_MODULE",
    "PORT",
    "QUEUE",
    "SECRETS",
    "STOPPED",
    "check",
    "jobset",
    "name_of",
    "render",
    "run_as",
    "run_folder",
]

MARK = "trainworks/run"
"""Annotation of the JobSet: whose job it is."""
HELD = "trainworks/held"
"""Annotation of a JobSet that must not start: nobody has released it."""
STOPPED = "trainworks/stopped"
"""Annotation of a JobSet that somebody has stopped: it keeps no pods, and tells what became of the job."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""Label by which Kueue takes a JobSet into a queue."""
ENFORCED = "pod-security.kubernetes.io/enforce"
"""Label of a namespace: the Pod Security standard that its pods have to meet."""
DEFAULT_USER = 1000
"""The user of pods that may not be root, where the run file names none; the image of `deploy/` has it."""
NODE_MODULE = "trainworks.backends.kubernetes.node"
"""What every pod runs, with the run directory as its argument."""
SECRETS = "/etc/trainworks"
"""Where a pod sees the Secret of its job."""
PORT = 23_456
"""On which every pod but the first takes commands, at the address of the pod."""

_MIDDLE = 50
_HASH = 6
_LONGEST_NAME = 40
"""So that a pod's name, `NAME-node-0-INDEX-XXXXX`, is a label of DNS."""
_LAST_WORDS_S = 15
"""For the supervisor, when the grace of its ranks is over."""
_NODE_MAY_BE_GONE_S = 30
"""A node that is not ready loses its pods after this time; Kubernetes' own default is 300 s."""
_KEEP_S = 14 * 24 * 3600
"""A job that has ended is known for so long."""
_ENDED_BY_A_SIGNAL = (137, 143)


def name_of(run_dir: RunDir, machine: str = "") -> str:
    """Name of the JobSet, of its Secret and of the run's folder on the volume.

    Args:
        run_dir: absolute, where the run was made.
        machine: that has the folder: the same path on two laptops is two runs.
    """
    unique = folder_mark(run_dir, machine)[:_HASH]
    return f"{dns_name(run_dir.run_id)[: _LONGEST_NAME - _HASH - 1].strip('-')}-{unique}"


def run_folder(name: str) -> str:
    """The run directory as the pods see it."""
    return f"{RUNS}/{name}"


def check(spec: JobSpec, where: Kubernetes, autoscale: Autoscale | None = None) -> None:
    """Refuse what Kubernetes cannot be told, and what cannot work there.

    Raises:
        UsageError: naming the first such wish.
    """
    if where.image is None:
        raise UsageError("the pods have no image", hint="set `cluster.kubernetes.image` to one that has Trainworks")
    if where.volume is None and spec.max_nodes > 1:
        message = f"{spec.max_nodes} nodes need a run directory that all of them see"
        raise UsageError(message, hint="set `cluster.kubernetes.volume` to a PersistentVolumeClaim for many writers")
    if spec.priority != _MIDDLE and where.priority_class is None:
        hint = "set `cluster.kubernetes.priority_class`, and leave `job.priority` out"
        raise UsageError("Kubernetes has no `job.priority` in numbers", hint=hint)
    if not spec.preemptible:
        hint = "take a `cluster.kubernetes.priority_class` that comes first, and leave `job.preemptible` out"
        raise UsageError("in Kubernetes the priority class says whether a job is preempted", hint=hint)
    elastic.of_the_job(_pods(spec, where, autoscale))


def render(
    spec: JobSpec, where: Kubernetes, run_dir: RunDir, machine: str = "", autoscale: Autoscale | None = None
) -> str:
    """The manifest, as text; see `jobset`."""
    document = jobset(spec, where, run_dir, machine, autoscale)
    return header(_pods(spec, where, autoscale)) + to_yaml(document)


def jobset(
    spec: JobSpec, where: Kubernetes, run_dir: RunDir, machine: str = "", autoscale: Autoscale | None = None
) -> dict[str, Any]:
    """The object.

    Args:
        spec: of the job.
        where: what the run file says of the cluster.
        run_dir: absolute, where the run was made.
        machine: that has the folder.
        autoscale: how its nodes come and go, where they do.

    Raises:
        UsageError: the job asks for something that Kubernetes cannot be told.
    """
    check(spec, where, autoscale)
    name, pods = name_of(run_dir, machine), _pods(spec, where, autoscale)
    held = {HELD: "true"} if spec.hold else {}
    of_nodes = elastic.of_the_job(pods).get("annotations", {})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": where.namespace,
            "labels": {key: value for key, value in labels(pods).items() if key != QUEUE or not spec.hold},
            "annotations": {MARK: mark_of(run_dir, machine), **held, **of_nodes},
        },
        "spec": {
            "suspend": bool(spec.hold or where.queue),
            "ttlSecondsAfterFinished": _KEEP_S,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": _failure_policy(spec),
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": _job(pods, name)}}],
        },
    }


def run_as(document: dict[str, Any], user: int) -> None:
    """Have the pods of a JobSet run as a user that is not root."""
    for job in document["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["securityContext"] |= user_of(user)


def _pods(spec: JobSpec, where: Kubernetes, autoscale: Autoscale | None) -> Pods:
    return Pods(spec=spec, program=Program(image=where.image), where=where, autoscale=autoscale)


def _failure_policy(spec: JobSpec) -> dict[str, Any]:
    """New pods after any failure but one: the supervisor says that they cannot help. A lost place is not counted."""
    exited = {"onJobFailureReasons": ["PodFailurePolicy"], "onJobFailureMessagePatterns": ["failed with exit code"]}
    return {
        "maxRestarts": spec.max_restarts,
        "rules": [
            {"name": "final", "action": "FailJobSet", **exited},
            DISRUPTION,
        ],
    }


def _job(pods: Pods, name: str) -> dict[str, Any]:
    may_help = sorted((ExitCode.PEER_LOST.value, *_ENDED_BY_A_SIGNAL))
    final = {"containerName": REPLICATED_JOB, "operator": "NotIn", "values": may_help}
    metadata = {
        "labels": {key: value for key, value in labels(pods).items() if key != QUEUE},
        **elastic.of_the_pods(pods),
    }
    template = {"metadata": metadata, "spec": _pod(pods, name)}
    return indexed_job(pods.spec, template, {"action": "FailJob", "onExitCodes": final})


def _pod(pods: Pods, name: str) -> dict[str, Any]:
    where = pods.where
    container = {
        "name": REPLICATED_JOB,
        "image": where.image,
        "command": ["python", "-P", "-m", NODE_MODULE, literal(run_folder(name))],
        "env": _env(pods, name),
        "resources": quantities(pods.spec) or None,
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "job", "mountPath": SECRETS, "readOnly": True},
            {"name": "runs", "mountPath": RUNS},
        ],
    }
    return without_nothing(
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(pods.spec.grace_s) + _LAST_WORDS_S,
            "priorityClassName": where.priority_class,
            "serviceAccountName": where.service_account,
            "automountServiceAccountToken": False,
            "securityContext": pod_security(where),
            **scheduling(pods),
            "tolerations": _tolerations(pods),
            "containers": [without_nothing(container)],
            "volumes": _volumes(where, name),
        }
    )


def _env(pods: Pods, name: str) -> list[dict[str, Any]]:
    """What only Kubernetes knows, and what the first pod has to know of the others."""
    fields = {"POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
    node = pods.spec.node
    values = {
        "TRAINWORKS_PODS": f"{name}-{REPLICATED_JOB}-0-%d.{name}",
        "TRAINWORKS_NODES": str(pods.spec.max_nodes),
        "TRAINWORKS_CORES": str(max(1, math.floor(node.cores or 1))),
        "TRAINWORKS_ACCELERATORS": str(node.accelerators),
    }
    return [
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
        *({"name": key, "value": literal(value)} for key, value in values.items()),
    ]


def _tolerations(pods: Pods) -> list[dict[str, Any]]:
    """Nodes with accelerators often take no other pods; and a lost node is noticed in seconds."""
    gone = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_MAY_BE_GONE_S,
        }
        for taint in ("not-ready", "unreachable")
    ]
    devices = [key for key in quantities(pods.spec).get("limits", {}) if "/" in key]
    return [*({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in devices), *gone]


def _volumes(where: Kubernetes, name: str) -> list[dict[str, Any]]:
    """Shared memory, which is 64 MB by default; what the job is told; and the folder of run directories."""
    claim: Mapping[str, Any] = {"persistentVolumeClaim": {"claimName": where.volume}}
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "job", "secret": {"secretName": name}},
        {"name": "runs", **(claim if where.volume is not None else {"emptyDir": {}})},
    ]
