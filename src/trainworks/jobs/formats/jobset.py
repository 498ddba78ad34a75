"""A job as a JobSet: one group of pods, one pod per node, started and restarted together.

Source: JobSet's API `jobset.x-k8s.io/v1alpha2` (0.13), Kubernetes' batch/v1 Jobs in Indexed mode, Kueue's queue label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.manifest import (
    REPLICATED_JOB,
    RUNS,
    Pods,
    check,
    container_security,
    dns_name,
    environment,
    header,
    labels,
    literal,
    pod_security,
    quantities,
    scheduling,
    to_yaml,
    without_nothing,
)
from trainworks.jobs.formats.shell import check_can_leave, node_program
from trainworks.jobs.job_spec import JobSpec

__all__ = ["DISRUPTION", "container_env", "indexed_job", "jobset", "node_text", "render", "volume_mounts", "volumes"]

DISRUPTION = {
    "name": "disruption",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
}
"""Rule of a failure policy: pods that lost their place get new ones, and that is not counted."""
_LANGUAGE = "a JobSet"
_ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"


def render(pods: Pods) -> str:
    """The manifest, to be applied as it is.

    Raises:
        UsageError: the job has no image, or asks for something that a JobSet cannot say.
    """
    check_can_leave(pods.program, _LANGUAGE)
    argv = ["/bin/bash", "-euo", "pipefail", "-c", literal(node_text(pods))]
    return header(pods) + to_yaml(jobset(pods, argv))


def jobset(pods: Pods, argv: list[str]) -> dict[str, Any]:
    """The object.

    Args:
        pods: the job.
        argv: what every pod runs, in Kubernetes' spelling (`literal`).
    """
    spec = pods.spec
    check(pods, _LANGUAGE, {"job.depends_on": bool(spec.depends_on), "job.min_nodes": _is_range(pods)})
    body: dict[str, Any] = {
        "suspend": True if spec.hold or pods.where.queue else None,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": _failure_policy(pods),
        "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": _job(pods, argv)}}],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": dns_name(spec.name),
            "namespace": pods.where.namespace,
            "labels": labels(pods),
            **elastic.of_the_job(pods),
        },
        "spec": without_nothing(body),
    }


def node_text(pods: Pods) -> str:
    """What bash runs in every pod; the controllers of JobSet and Job say which one it is."""
    name = dns_name(pods.spec.name)
    host = f"{name}-{REPLICATED_JOB}-0"
    addresses = f"for node in $(seq 0 {pods.spec.max_nodes - 1}); do echo {host}-$node.{name}; done"
    own = [
        "export NODE_RANK=$JOB_COMPLETION_INDEX",
        f"export MASTER_ADDR={host}-0.{name}",
        "export TRAINWORKS_ATTEMPT=$((RESTARTS + 1))",
        *([f'mkdir -p "{RUNS}/{pods.spec.run_id}"'] if pods.where.volume else []),
    ]
    return "\n".join([*own, node_program(pods.program, pods.spec, addresses=addresses)])


def _is_range(pods: Pods) -> bool:
    return pods.spec.min_nodes != pods.spec.max_nodes


def _failure_policy(pods: Pods) -> dict[str, Any]:
    """Restarts of all pods together; one that lost its node to another job does not count."""
    spec = pods.spec
    if not (spec.max_restarts and spec.preemptible):
        return {"maxRestarts": spec.max_restarts}
    return {"maxRestarts": spec.max_restarts, "rules": [DISRUPTION]}


def _job(pods: Pods, argv: list[str]) -> dict[str, Any]:
    metadata = {"labels": labels(pods), **elastic.of_the_pods(pods)}
    return indexed_job(pods.spec, {"metadata": metadata, "spec": _pod(pods, argv)})


def indexed_job(spec: JobSpec, template: Mapping[str, Any], *final: Mapping[str, Any]) -> dict[str, Any]:
    """A Job of one pod per node, of which none starts again alone.

    Args:
        spec: of the job.
        template: of its pods.
        final: rules of its pod failure policy, after the one for pods that lost their place.
    """
    limit_s = spec.time_limit_s
    lost = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return without_nothing(
        {
            "parallelism": spec.max_nodes,
            "completions": spec.max_nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": math.ceil(limit_s) if limit_s is not None else None,
            "podFailurePolicy": {"rules": [lost, *final]},
            "template": template,
        }
    )


def _pod(pods: Pods, argv: list[str]) -> dict[str, Any]:
    where = pods.where
    container = {
        "name": REPLICATED_JOB,
        "image": pods.program.image,
        "command": argv,
        "workingDir": pods.program.working_folder,
        "env": container_env(pods),
        "resources": quantities(pods.spec) or None,
        "securityContext": container_security(),
        "volumeMounts": volume_mounts(pods),
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(pods.spec.grace_s),
        "priorityClassName": where.priority_class,
        "serviceAccountName": where.service_account,
        "securityContext": pod_security(where),
        **scheduling(pods),
        "containers": [without_nothing(container)],
        "volumes": volumes(pods),
    }
    return without_nothing(pod)


def container_env(pods: Pods) -> list[dict[str, Any]]:
    """Variables that only Kubernetes knows, and those of the run."""
    restarts = {"fieldRef": {"fieldPath": f"metadata.labels['{_ATTEMPT_LABEL}']"}}
    env: list[dict[str, Any]] = [{"name": "RESTARTS", "valueFrom": restarts}]
    if pods.where.volume is not None:
        env.append({"name": "TRAINWORKS_RUN_DIR", "value": f"{RUNS}/{pods.spec.run_id}"})
    return [*env, *environment(pods)]


def volumes(pods: Pods) -> list[dict[str, Any]]:
    """Shared memory, which is 64 MB by default and too small for data loaders and NCCL; and the run directories."""
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": pods.where.volume}}
    return [memory, claim] if pods.where.volume is not None else [memory]


def volume_mounts(pods: Pods) -> list[dict[str, Any]]:
    """Where the container sees them."""
    memory = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108
    return [memory, {"name": "runs", "mountPath": RUNS}] if pods.where.volume is not None else [memory]
