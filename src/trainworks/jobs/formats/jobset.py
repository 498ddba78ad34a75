"""The writer of JobSets: one group of pods, or one of each role; one pod per node, started and restarted together.

Source: JobSet's API `jobset.x-k8s.io/v1alpha2` (0.13), whose `dependsOn` takes one group that stands before its own;
batch/v1 Jobs in Indexed mode, Kueue's queue label.

TrainJobs are written here as well: Kubeflow Trainer turns one into a JobSet, based on the training runtime that it
names. Source: Trainer's API `trainer.kubeflow.org/v1alpha1` (2.3) and its runtimes `torch-distributed` and
`jax-distributed`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainworks.config.command import JobRole
from trainworks.config.engines import Kubernetes
from trainworks.config.manifests.own_job import JOB, OwnJob, hash_of
from trainworks.config.manifests.reading import drop_none
from trainworks.config.pod_patch import patched
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.jobs.environment import variables_of_roles
from trainworks.jobs.formats import elastic, manifest
from trainworks.jobs.formats.shell import check_exportable, export, node_program
from trainworks.jobs.program import Program, program_of
from trainworks.jobs.spec_of_run import spec_of

DISRUPTION = {
    "name": "disruption",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
}
"""Failure policy rule: a disrupted JobSet gets new pods, and this does not count as a restart."""
_LANGUAGE = "a JobSet"
_LONGEST_ANNOTATION = 100_000
"""Most characters of the annotation; Kubernetes takes 256 KiB of all annotations together."""
_ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
_NO_LIMIT = 2**31 - 1
"""Largest `backoffLimit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProgram:
    """What every pod runs and sees, and the rules around it."""

    name: str
    """Name of the JobSet."""
    argv: list[str]
    """Command in Kubernetes' spelling, see `literal`."""
    env: list[Mapping[str, object]]
    volumes: Sequence[manifest.Volume]
    queue: str | None
    """Kueue queue that admits the JobSet."""
    grace_s: float
    restart_rules: Sequence[Mapping[str, Any]] = ()
    """Rules of the JobSet's failure policy."""
    pod_failure_rules: Sequence[Mapping[str, Any]] = ()
    """Rules of the Job's pod failure policy, after the one for disrupted pods."""
    replaces_pods: bool = False
    """Whether Kubernetes replaces a lost pod while the others run on; what runs in them counts how often."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    keep_s: int | None = None
    """Time after which Kubernetes deletes a finished JobSet; never when None."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the PodSpec."""


def render(job: manifest.KubernetesJob) -> str:
    """Render a manifest that runs without Trainworks on the cluster, ready for `kubectl apply`.

    Raises:
        UsageError: the job has no image, or needs something that a JobSet cannot express.
    """
    spec = job.spec
    check_exportable(job.program, _LANGUAGE)
    missing = {"job.depends_on": bool(spec.depends_on), "job.min_nodes": spec.min_nodes != spec.max_nodes}
    manifest.check(job, _LANGUAGE, missing)
    return manifest.header(job) + manifest.to_yaml(jobset(job, bash_program(job)))


def render_roles(run_file: RunFile, language: str = "jobset") -> str:
    """Render the manifest of a job with roles: one group of pods for each.

    The JobSet has succeeded when all deciding roles have, and then deletes the pods of the others.

    Raises:
        UsageError: the language is not that of JobSets, a role has no image, or it needs something that a JobSet cannot
            express.
    """
    if language != "jobset":
        raise UsageError(f"a job as {language} does not support `roles`", hint="write it with `--as jobset`")
    roles, whole = run_file.roles, _kubernetes_job(run_file, Program())
    jobs = {role: _kubernetes_job(own, program_of(own)) for role in roles if (own := run_file.of_role(role))}
    longest = manifest.LONGEST_NAME
    name = manifest.dns_name(run_file.name, min(longest, longest + 4 - max(map(len, roles))))
    known = variables_of_roles(
        {role: [f"{name}-{role}-0-{node}.{name}" for node in range(job.spec.max_nodes)] for role, job in jobs.items()}
    )
    order = list[str]()
    while left := [role for role in roles if role not in order]:  # a group stands behind the one that it depends on
        order.append(next(role for role in left if set(roles[role].depends_on) <= set(order)))
    groups, programs = list[Mapping[str, object]](), list[PodProgram]()
    for role in order:
        _check_role(role, jobs[role], roles[role])
        lines = [export(key, value) for key, value in known[role].items()]
        lines += ["export TRAINWORKS_ROLE_INDEX=$JOB_COMPLETION_INDEX"]
        programs.append(bash_program(jobs[role], name=name, group=role, lines=lines))
        needed = [{"name": other, "status": "Complete"} for other in roles[role].depends_on]
        metadata = {"annotations": programs[-1].annotations} if programs[-1].annotations else None
        template = drop_none({"metadata": metadata, "spec": _indexed_job(jobs[role], programs[-1])})
        groups.append(drop_none({"name": role, "replicas": 1, "template": template, "dependsOn": needed or None}))
    deciding = [role for role in order if roles[role].decides]
    success = {"operator": "All", "targetReplicatedJobs": deciding} if len(deciding) < len(order) else None
    servers = [role for role in order if not (roles[role].decides or roles[role].may_end)]
    heads = [line for job in jobs.values() for line in manifest.header(job).splitlines(keepends=True)]
    heads += [f"# in a JobSet an early end of `{role}` does not fail the job\n" for role in servers]
    program = replace(programs[0], annotations={})  # each group has its own
    return "".join(dict.fromkeys(heads)) + manifest.to_yaml(_jobset(whole, program, groups, success))


def _kubernetes_job(run_file: RunFile, program: Program) -> manifest.KubernetesJob:
    spec, cluster = spec_of(run_file, run_id=run_file.name, working_folder=run_file.workdir or ""), run_file.cluster
    return manifest.KubernetesJob(spec=spec, program=program, cluster=cluster.kubernetes, autoscale=cluster.autoscale)


def _check_role(name: str, job: manifest.KubernetesJob, role: JobRole) -> None:
    check_exportable(job.program, _LANGUAGE)
    missing = {"job.depends_on": bool(job.spec.depends_on), f"roles.{name}.restarts": role.restarts > 0}
    manifest.check(job, _LANGUAGE, missing)
    if len(role.depends_on) > 1:
        message = f"in a JobSet a role depends on one other, and `{name}` on {len(role.depends_on)}"
        raise UsageError(message, hint="let one of these depend on the other")


def bash_program(
    job: manifest.KubernetesJob,
    *,
    name: str | None = None,
    group: str = manifest.REPLICATED_JOB,
    lines: Sequence[str] = (),
) -> PodProgram:
    """Bash script for every pod of an exported job; the JobSet and Job controllers number the pods.

    Of a job with roles, `name` is that of the JobSet, `group` the role of the pods, and `lines` come first.
    """
    spec = job.spec
    name = name or manifest.dns_name(job.spec.name)
    host = f"{name}-{group}-0"
    addresses = f"for node in $(seq 0 {spec.max_nodes - 1}); do echo {host}-$node.{name}; done"
    lines = [
        *lines,
        "export NODE_RANK=$JOB_COMPLETION_INDEX",
        f"export MASTER_ADDR={host}-0.{name}",
        "export TRAINWORKS_ATTEMPT=$((RESTARTS + 1))",
        *([f'mkdir -p "{manifest.RUNS}/{spec.run_id}"'] if job.cluster.volume else []),
        node_program(job.program, spec, addresses=addresses),
    ]
    restarts = {"fieldRef": {"fieldPath": f"metadata.labels['{_ATTEMPT_LABEL}']"}}
    env: list[Mapping[str, object]] = [{"name": "RESTARTS", "valueFrom": restarts}]
    if job.cluster.volume is not None:
        env.append({"name": "TRAINWORKS_RUN_DIR", "value": f"{manifest.RUNS}/{spec.run_id}"})
    argv = ["/bin/bash", "-euo", "pipefail", "-c", manifest.literal("\n".join(lines))]
    # by this annotation `trainworks submit` reads the manifest back; a command may be too long for one
    program = job.program
    own = OwnJob(
        name=job.spec.name,
        run=shlex.join(program.command) if program.script is None else program.script,
        setup=program.setup,
        framework=program.framework,
        processes_per_node=None if program.starts == "per_node" else program.processes_per_node,
        accelerator=job.spec.node.accelerator,
        sha256=hash_of(argv),
    )
    text = own.to_json()
    return PodProgram(
        name=name,
        argv=argv,
        env=[*env, *manifest.environment(job)],
        volumes=volumes(job.cluster),
        keep_s=keep_s(job.cluster),
        queue=job.cluster.queue,
        grace_s=spec.grace_s,
        restart_rules=[DISRUPTION] if spec.max_restarts and spec.preemptible else [],
        annotations={JOB: text} if len(text) <= _LONGEST_ANNOTATION else {},
    )


def keep_s(cluster: Kubernetes) -> int | None:
    """Time that a finished job stays, in whole seconds; None if the run file does not say."""
    return None if cluster.keep is None else math.ceil(cluster.keep)


def volumes(cluster: Kubernetes) -> list[manifest.Volume]:
    """Shared memory and, with a PersistentVolumeClaim, the run directories; each with its mount.

    Shared memory defaults to 64 MB, which is too little for data loaders and NCCL.
    """
    limit = {} if cluster.shared_memory is None else {"sizeLimit": manifest.memory_quantity(cluster.shared_memory)}
    empty_dir = {"medium": "Memory", **limit}
    memory = manifest.Volume({"name": "shm", "emptyDir": empty_dir}, {"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if cluster.volume is None:
        return [memory]
    runs = {"name": "runs", "persistentVolumeClaim": {"claimName": cluster.volume}}
    return [memory, manifest.Volume(runs, {"name": "runs", "mountPath": manifest.RUNS})]


def jobset(
    job: manifest.KubernetesJob,
    program: PodProgram,
    roles: Mapping[str, tuple[manifest.KubernetesJob, PodProgram]] | None = None,
) -> Mapping[str, object]:
    """Build the JobSet object, which has succeeded when all of its pods have.

    Of a job with roles, `job` and `program` are the whole, and `roles` the pods of each.
    """
    pods = roles or {manifest.REPLICATED_JOB: (job, program)}
    groups = [{"name": name, "replicas": 1, "template": {"spec": _indexed_job(*each)}} for name, each in pods.items()]
    return _jobset(job, program, groups)


def _jobset(
    job: manifest.KubernetesJob,
    program: PodProgram,
    groups: Sequence[Mapping[str, object]],
    success: Mapping[str, object] | None = None,
) -> Mapping[str, object]:
    """Build the object from its groups of pods, and the rule by which it has succeeded; None if all have to."""
    rules = [dict(rule) for rule in program.restart_rules]
    body: dict[str, object] = {
        "suspend": True if job.spec.hold or job.cluster.queue else None,
        "ttlSecondsAfterFinished": program.keep_s,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.spec.max_restarts, **({"rules": rules} if rules else {})},
        "successPolicy": success,
        "replicatedJobs": list(groups),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, program),
        "spec": drop_none(body),
    }


def _metadata(job: manifest.KubernetesJob, program: PodProgram) -> Mapping[str, object]:
    of_queue = drop_none({manifest.QUEUE_LABEL: program.queue, manifest.PRIORITY_LABEL: job.cluster.queue_priority})
    metadata = {
        "name": program.name,
        "namespace": job.cluster.namespace,
        "labels": manifest.labels(job) | of_queue,
        "annotations": {**program.annotations, **elastic.job_annotations(job)} or None,
    }
    return drop_none(metadata)


def _indexed_job(job: manifest.KubernetesJob, program: PodProgram) -> Mapping[str, object]:
    """Job with one pod per node, which are replaced one by one or not at all."""
    nodes, limit_s = job.spec.max_nodes, job.spec.time_limit_s
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [*([] if program.replaces_pods else [disrupted]), *program.pod_failure_rules]
    annotations = {
        **elastic.pod_annotations(job),
        **manifest.topology_annotations(job),
        **program.pod_annotations,
    }
    metadata = {"labels": manifest.labels(job), "annotations": annotations or None}
    template = {"metadata": drop_none(metadata), "spec": _pod(job, program)}
    return drop_none(
        {
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            "backoffLimit": _NO_LIMIT if program.replaces_pods else 0,
            "activeDeadlineSeconds": math.ceil(limit_s) if limit_s is not None else None,
            "podFailurePolicy": {"rules": rules},
            "template": patched(template, job.cluster.patch),
        }
    )


def _pod(job: manifest.KubernetesJob, program: PodProgram) -> Mapping[str, object]:
    container = {
        "name": manifest.REPLICATED_JOB,
        "image": job.program.image,
        "command": program.argv,
        "workingDir": job.program.working_folder,
        "env": program.env,
        "resources": manifest.quantities(job.spec, job.cluster) or None,
        "securityContext": manifest.container_security(),
        "volumeMounts": [mount for _, mount in program.volumes],
    }
    return drop_none(
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(program.grace_s),
            "priorityClassName": job.cluster.priority_class,
            "serviceAccountName": job.cluster.service_account,
            "securityContext": manifest.pod_security(job.cluster),
            **manifest.scheduling(job),
            **program.pod,
            "containers": [drop_none(container)],
            "volumes": [volume for volume, _ in program.volumes],
        }
    )


_TRAINJOB = "a TrainJob"
_RUNTIMES = {
    None: "torch-distributed",
    "torch": "torch-distributed",
    "deepspeed": "torch-distributed",
    "jax": "jax-distributed",
}


def render_trainjob(job: manifest.KubernetesJob) -> str:
    """Render a TrainJob, ready for `kubectl apply`.

    Raises:
        UsageError: the job has no image, or needs something that a TrainJob cannot express.
    """
    spec, cluster = job.spec, job.cluster
    check_exportable(job.program, _TRAINJOB)
    missing = {
        "job.depends_on": bool(spec.depends_on),
        "job.min_nodes": spec.min_nodes != spec.max_nodes,
        "recover.max_restarts": spec.max_restarts > 0,
        "cluster.kubernetes.priority_class": cluster.priority_class is not None,
        "cluster.kubernetes.keep": cluster.keep is not None,
        "cluster.kubernetes.patch": bool(cluster.patch),
        "workdir": job.program.working_folder is not None,
    }
    manifest.check(job, _TRAINJOB, missing)
    if job.program.framework not in _RUNTIMES:
        raise UsageError(
            f"Kubeflow Trainer has no runtime for {job.program.framework}", hint="export the job with `--as jobset`"
        )
    program = bash_program(job)
    body: dict[str, object] = {
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
                "resourcesPerNode": manifest.quantities(spec, cluster) or None,
            }
        ),
        "runtimePatches": [{"manager": "trainworks", "trainingRuntimeSpec": _runtime_patch(job, program)}],
    }
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job, program),
        "spec": drop_none(body),
    }
    return manifest.header(job) + manifest.to_yaml(document)


def _runtime_patch(job: manifest.KubernetesJob, program: PodProgram) -> Mapping[str, object]:
    """Patch of the runtime's pods with everything that the `trainer` fields cannot express."""
    mounts = [mount for _, mount in program.volumes]
    pod: dict[str, object] = {
        "terminationGracePeriodSeconds": math.ceil(program.grace_s),
        "serviceAccountName": job.cluster.service_account,
        "securityContext": manifest.pod_security(job.cluster),
        **manifest.scheduling(job),
        "containers": [
            {"name": manifest.REPLICATED_JOB, "securityContext": manifest.container_security(), "volumeMounts": mounts}
        ],
        "volumes": [volume for volume, _ in program.volumes],
    }
    template: dict[str, object] = {"spec": drop_none(pod)}
    if annotations := {**elastic.pod_annotations(job), **manifest.topology_annotations(job)}:
        template["metadata"] = {"annotations": annotations}
    replicated_job = {"name": manifest.REPLICATED_JOB, "template": {"spec": {"template": template}}}
    return {"template": {"spec": {"replicatedJobs": [replicated_job]}}}
