"""The writer of TrainJobs: Kubeflow Trainer turns one into a JobSet, based on the training runtime that it names.

Source: Trainer's API `trainer.kubeflow.org/v1alpha1` (2.3) and its runtimes `torch-distributed` and `jax-distributed`.
"""

from __future__ import annotations

import math
from typing import Any

from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic
from trainworks.jobs.formats.jobset import PodProgram, bash_program
from trainworks.jobs.formats.manifest import (
    QUEUE_LABEL,
    REPLICATED_JOB,
    KubernetesJob,
    check,
    container_security,
    drop_none,
    header,
    labels,
    pod_security,
    quantities,
    scheduling,
    to_yaml,
    topology_annotations,
)
from trainworks.jobs.formats.shell import check_exportable

_LANGUAGE = "a TrainJob"
_RUNTIMES = {
    None: "torch-distributed",
    "torch": "torch-distributed",
    "deepspeed": "torch-distributed",
    "jax": "jax-distributed",
}


def render(job: KubernetesJob) -> str:
    """Render the manifest, ready for `kubectl apply`.

    Raises:
        UsageError: the job has no image, or needs something that a TrainJob cannot express.
    """
    spec, cluster = job.spec, job.cluster
    check_exportable(job.program, _LANGUAGE)
    missing = {
        "job.depends_on": bool(spec.depends_on),
        "job.min_nodes": spec.min_nodes != spec.max_nodes,
        "recover.max_restarts": spec.max_restarts > 0,
        "cluster.kubernetes.priority_class": cluster.priority_class is not None,
        "cluster.kubernetes.keep": cluster.keep is not None,
        "cluster.kubernetes.patch": bool(cluster.patch),
        "workdir": job.program.working_folder is not None,
    }
    check(job, _LANGUAGE, missing)
    if job.program.framework not in _RUNTIMES:
        raise UsageError(
            f"Kubeflow Trainer has no runtime for {job.program.framework}", hint="export the job with `--as jobset`"
        )
    program = bash_program(job)
    body: dict[str, Any] = {
        "suspend": True if spec.hold or cluster.queue else None,
        "activeDeadlineSeconds": math.ceil(spec.time_limit_s) if spec.time_limit_s is not None else None,
        "runtimeRef": {"name": _RUNTIMES[job.program.framework]},
        "trainer": drop_none(
            {
                "image": job.program.image,
                "command": program.argv,
                "numNodes": spec.max_nodes,
                "numProcPerNode": job.program.processes_per_node,
                "env": program.env,
                "resourcesPerNode": quantities(spec, cluster) or None,
            }
        ),
        "runtimePatches": [{"manager": "trainworks", "trainingRuntimeSpec": _runtime_patch(job, program)}],
    }
    metadata = {
        "name": program.name,
        "namespace": cluster.namespace,
        "labels": labels(job) | ({QUEUE_LABEL: cluster.queue} if cluster.queue else {}),
        "annotations": {**program.annotations, **elastic.job_annotations(job)} or None,
    }
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": drop_none(metadata),
        "spec": drop_none(body),
    }
    return header(job) + to_yaml(document)


def _runtime_patch(job: KubernetesJob, program: PodProgram) -> dict[str, Any]:
    """Patch of the runtime's pods with everything that the `trainer` fields cannot express."""
    mounts = [mount for _, mount in program.volumes]
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": math.ceil(program.grace_s),
        "serviceAccountName": job.cluster.service_account,
        "securityContext": pod_security(job.cluster),
        **scheduling(job),
        "containers": [{"name": REPLICATED_JOB, "securityContext": container_security(), "volumeMounts": mounts}],
        "volumes": [volume for volume, _ in program.volumes],
    }
    template: dict[str, Any] = {"spec": drop_none(pod)}
    if annotations := {**elastic.pod_annotations(job), **topology_annotations(job)}:
        template["metadata"] = {"annotations": annotations}
    replicated_job = {"name": REPLICATED_JOB, "template": {"spec": {"template": template}}}
    return {"template": {"spec": {"replicatedJobs": [replicated_job]}}}
