"""A job as a TrainJob of Kubeflow Trainer, which makes a JobSet of it after the runtime that it names.

Source: Trainer's API `trainer.kubeflow.org/v1alpha1` (2.3) and its runtimes `torch-distributed` and `jax-distributed`.
"""

from __future__ import annotations

import math
from typing import Any

from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.jobset import container_env, node_text, volume_mounts, volumes
from trainworks.jobs.formats.manifest import (
    REPLICATED_JOB,
    Pods,
    check,
    container_security,
    dns_name,
    header,
    labels,
    literal,
    pod_security,
    quantities,
    scheduling,
    to_yaml,
    without_nothing,
)
from trainworks.jobs.formats.shell import check_can_leave

__all__ = ["render"]

_LANGUAGE = "a TrainJob"
_RUNTIMES = {
    None: "torch-distributed",
    "torch": "torch-distributed",
    "deepspeed": "torch-distributed",
    "jax": "jax-distributed",
}


def render(pods: Pods) -> str:
    """The manifest, to be applied as it is; the runtime has to be installed, as it is by default.

    Raises:
        UsageError: the job has no image, or asks for something that a TrainJob cannot say.
    """
    spec, program = pods.spec, pods.program
    check_can_leave(program, _LANGUAGE)
    wishes = {
        "job.depends_on": bool(spec.depends_on),
        "job.min_nodes": spec.min_nodes != spec.max_nodes,
        "recover.max_restarts": spec.max_restarts > 0,
        "cluster.kubernetes.priority_class": pods.where.priority_class is not None,
        "workdir": program.working_folder is not None,
    }
    check(pods, _LANGUAGE, wishes)
    if program.framework not in _RUNTIMES:
        raise UsageError(f"Kubeflow has no runtime of {program.framework}", hint="export it as a JobSet")
    body: dict[str, Any] = {
        "suspend": True if spec.hold or pods.where.queue else None,
        "activeDeadlineSeconds": math.ceil(spec.time_limit_s) if spec.time_limit_s is not None else None,
        "runtimeRef": {"name": _RUNTIMES[program.framework]},
        "trainer": _trainer(pods),
        "runtimePatches": [{"manager": "trainworks", "trainingRuntimeSpec": _patch(pods)}],
    }
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": dns_name(spec.name),
            "namespace": pods.where.namespace,
            "labels": labels(pods),
            **elastic.of_the_job(pods),
        },
        "spec": without_nothing(body),
    }
    return header(pods) + to_yaml(document)


def _trainer(pods: Pods) -> dict[str, Any]:
    trainer: dict[str, Any] = {
        "image": pods.program.image,
        "command": ["/bin/bash", "-euo", "pipefail", "-c", literal(node_text(pods))],
        "numNodes": pods.spec.max_nodes,
        "numProcPerNode": pods.program.processes_per_node,
        "env": container_env(pods),
        "resourcesPerNode": quantities(pods.spec) or None,
    }
    return without_nothing(trainer)


def _patch(pods: Pods) -> dict[str, Any]:
    """What the trainer's own fields cannot say, down to the pods of the runtime."""
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": math.ceil(pods.spec.grace_s),
        "serviceAccountName": pods.where.service_account,
        "securityContext": pod_security(pods.where),
        **scheduling(pods),
        "containers": [
            {"name": REPLICATED_JOB, "securityContext": container_security(), "volumeMounts": volume_mounts(pods)}
        ],
        "volumes": volumes(pods),
    }
    inner: dict[str, Any] = {"spec": without_nothing(pod)}
    if metadata := elastic.of_the_pods(pods):
        inner["metadata"] = metadata
    job = {"name": REPLICATED_JOB, "template": {"spec": {"template": inner}}}
    return {"template": {"spec": {"replicatedJobs": [job]}}}
