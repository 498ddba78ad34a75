"""The JobSet of a job whose pods run Trainworks. Pure.

Trainworks is in the image of the pods: each runs `backends.kubernetes.node`, and the first pod is the supervisor.
Values from a user become arguments, values of variables or names that the API server checks, never shell text.

Restarts are decided at three levels, each with what only it can see: the supervisor restarts ranks in their pods; its
exit code says whether new pods may help; the JobSet creates new pods, also when the supervisor itself is lost.

Each role is a group of pods of its own. The pods of a role with `restarts` are replaced one by one as long as the
supervisor waits for them, except those of the first role, whose first pod is the supervisor.

Source: JobSet's API `jobset.x-k8s.io/v1alpha2`, with `onJobFailureMessagePatterns`; batch/v1 Jobs in Indexed
mode, whose messages of a pod failure policy are in pkg/controller/job/pod_failure_policy.go.
"""

from __future__ import annotations

import base64
import math
import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainworks.backends import record_parts
from trainworks.backends.job_tag import folder_mark, mark_of
from trainworks.backends.kubernetes.facts import FIRST_NODE
from trainworks.backends.kubernetes.pod import GROUP, SECRETS, STARTS_ALONE
from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats import elastic, manifest
from trainworks.jobs.formats.jobset import DISRUPTION, PodProgram, keep_s, volumes
from trainworks.jobs.formats.jobset import jobset as write_jobset
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.record.exit_code import ExitCode
from trainworks.record.run_dir import RunDir

RUN_TAG = "trainworks/run"
"""JobSet annotation that identifies the run."""
HELD = "trainworks/held"
"""JobSet annotation: the job must not start before it is released."""
STOPPED = "trainworks/stopped"
"""JobSet annotation: a user stopped the job. It keeps no pods, but its final state."""
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
"""Namespace label with the Pod Security standard that pods must meet."""
DEFAULT_USER = 1000
"""User id of pods in restricted namespaces if the run file sets none; the image of `deploy/` has this user."""
NODE_MODULE = "trainworks.backends.kubernetes.node"
"""Module that every pod runs, with the run directory as its argument."""

_READER_KEEP_S = 60
_DEFAULT_PRIORITY = 50
_HASH = 6
_SUPERVISOR_GRACE_S = 15
"""Additional grace of a pod, for its supervisor to conclude after the ranks have ended."""
_NODE_LOST_S = 30
"""Time until a node that is not ready loses its pods; Kubernetes' default is 300 s."""
_KEEP_S = 14 * 24 * 3600
"""Time that a finished job stays known."""
_RESTARTABLE = (ExitCode.PEER_LOST.value, 137, 143)
"""Exit codes of a supervisor after which new pods may help; the last two mean that a signal killed it."""
_FINAL = {
    "name": "final",
    "action": "FailJobSet",
    "onJobFailureReasons": ["PodFailurePolicy"],
    "onJobFailureMessagePatterns": ["failed with exit code"],
}
"""Failure policy rule: the supervisor exits with another code, and the job fails for good."""


def name_of(run_dir: RunDir, machine: str = "", roles: Collection[str] = ()) -> str:
    """Name of the JobSet, of its Secret and of the run's folder on the volume; the names of `roles` need a part of it.

    The path of the run is absolute. `machine` is the host where it was created: the same path on two laptops is two
    runs.
    """
    unique = folder_mark(run_dir, machine)[:_HASH]
    longer = max([0, *(len(role) - len(manifest.REPLICATED_JOB) for role in roles)])
    return f"{manifest.dns_name(run_dir.run_id, manifest.LONGEST_NAME - longer - _HASH - 1)}-{unique}"


def check_image(cluster: Kubernetes) -> None:
    """Refuse pods without an image.

    Raises:
        UsageError: the option `image` is missing.
    """
    if cluster.image is None:
        raise UsageError("the pods have no image", hint="set `cluster.kubernetes.image` to one with Trainworks")


def check(spec: JobSpec, cluster: Kubernetes, autoscale: Autoscale | None = None) -> None:
    """Refuse what a JobSet cannot express, and what cannot work.

    Raises:
        UsageError: names the first such field.
    """
    for group in spec.groups:
        if group.image is None:
            check_image(cluster)
    if cluster.volume is None and spec.max_nodes > 1:
        raise UsageError(
            f"{spec.max_nodes} nodes need a shared run directory",
            hint="set `cluster.kubernetes.volume` to a ReadWriteMany PersistentVolumeClaim; in a manifest, mount one",
        )
    if spec.priority != _DEFAULT_PRIORITY and cluster.priority_class is None and cluster.queue_priority is None:
        hint = "set `cluster.kubernetes.priority_class`, and remove `job.priority`"
        raise UsageError("Kubernetes does not support a numeric `job.priority`", hint=hint)
    if not spec.preemptible:
        hint = "set `cluster.kubernetes.priority_class` to a high one, and remove `job.preemptible`"
        raise UsageError("on Kubernetes the priority class decides whether a job is preempted", hint=hint)
    elastic.job_annotations(_job(spec, cluster, autoscale))


def render(
    spec: JobSpec, cluster: Kubernetes, run_dir: RunDir, machine: str = "", autoscale: Autoscale | None = None
) -> str:
    """Render the manifest; see `jobset`."""
    document = jobset(spec, cluster, run_dir, machine, autoscale)
    heads = [manifest.header(_job(one, own, autoscale)) for one, own in _groups(spec, cluster)]
    return "".join(dict.fromkeys(heads)) + manifest.to_yaml(document)


def jobset(
    spec: JobSpec, cluster: Kubernetes, run_dir: RunDir, machine: str = "", autoscale: Autoscale | None = None
) -> Mapping[str, object]:
    """Build the JobSet object.

    Raises:
        UsageError: the job needs something that a JobSet cannot express.
    """
    check(spec, cluster, autoscale)
    name, groups = name_of(run_dir, machine, [role.name for role in spec.roles]), _groups(spec, cluster)
    variables = zip(groups, _variables(spec, groups, name), strict=True)
    programs = [_program(one, own, name, values) for (one, own), values in variables]
    tags = {RUN_TAG: mark_of(run_dir, machine), **({HELD: "true"} if spec.hold else {})}
    roles, first_node = dict[str, tuple[manifest.KubernetesJob, PodProgram]](), 0
    for number, (role, (one, own), program) in enumerate(zip(spec.roles, groups, programs, strict=bool(spec.roles))):
        alone, place = number > 0 and role.restarts > 0, {FIRST_NODE: str(first_node)}
        pods = replace(program, replaces_pods=alone, pod_annotations=place)
        roles[role.name] = (_job(one, own, autoscale), pods)
        first_node += role.nodes
    return write_jobset(_job(spec, cluster, autoscale), replace(programs[0], annotations=tags), roles)


def _groups(spec: JobSpec, cluster: Kubernetes) -> list[tuple[JobSpec, Kubernetes]]:
    """Each role as a job of its own, and the options of its pods; the whole job where it has no roles."""
    if not spec.roles:
        return [(spec, cluster)]
    return [
        (
            replace(spec, min_nodes=role.nodes, max_nodes=role.nodes, node=role.node, roles=()),
            cluster.model_copy(update={"image": role.image or cluster.image}),
        )
        for role in spec.roles
    ]


def _variables(spec: JobSpec, groups: Sequence[tuple[JobSpec, Kubernetes]], name: str) -> list[dict[str, str]]:
    """Variables by which the pods of each group know the job; see `pod_of`."""
    names = [role.name for role in spec.roles] or [manifest.REPLICATED_JOB]
    every = {
        "TRAINWORKS_PODS": ",".join(f"{name}-{group}-0-%d.{name}" for group in names),
        "TRAINWORKS_NODES": ",".join(str(one.max_nodes) for one, _ in groups),
    }
    alone = [str(number) for number, role in enumerate(spec.roles) if number and role.restarts]
    own = [{GROUP: str(number), STARTS_ALONE: ",".join(alone)} for number, _ in enumerate(spec.roles)] or [{}]
    return [
        every
        | {
            "TRAINWORKS_CORES": str(max(1, math.floor(one.node.cores or 1))),
            "TRAINWORKS_ACCELERATORS": str(one.node.accelerators),
        }
        | mine
        for (one, _), mine in zip(groups, own, strict=True)
    ]


def _program(spec: JobSpec, cluster: Kubernetes, name: str, variables: Mapping[str, str]) -> PodProgram:
    """What the pods of a group run; `name` is that of the JobSet."""
    final = {"containerName": manifest.REPLICATED_JOB, "operator": "NotIn", "values": sorted(_RESTARTABLE)}
    fields = {"POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
    memory, *runs = volumes(cluster)
    secret = manifest.Volume(
        {"name": "job", "secret": {"secretName": name}}, {"name": "job", "mountPath": SECRETS, "readOnly": True}
    )
    own_disk = manifest.Volume({"name": "runs", "emptyDir": {}}, {"name": "runs", "mountPath": manifest.RUNS})
    return PodProgram(
        name=name,
        argv=["python", "-P", "-m", NODE_MODULE, manifest.literal(f"{manifest.RUNS}/{name}")],
        env=[
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
            *({"name": key, "value": manifest.literal(value)} for key, value in variables.items()),
        ],
        volumes=[memory, secret, *(runs or [own_disk])],
        queue=None if spec.hold else cluster.queue,
        grace_s=math.ceil(spec.grace_s) + _SUPERVISOR_GRACE_S,
        restart_rules=[_FINAL, DISRUPTION],
        pod_failure_rules=[{"action": "FailJob", "onExitCodes": final}],
        keep_s=keep_s(cluster) or _KEEP_S,
        pod={"automountServiceAccountToken": False, "tolerations": _tolerations(spec, cluster)},
    )


def reader(cluster: Kubernetes, name: str, question: bytes) -> Mapping[str, object]:
    """Build the JobSet of one small pod that reads a record on the volume, and prints the answer of `record_parts`.

    `cluster` and `name` are of the job that writes the record.
    """
    mark = f"-read-{secrets.token_hex(3)}"
    own = name[: manifest.LONGEST_NAME - len(mark)].strip("-") + mark
    spec = JobSpec(run_id=own, name=own, min_nodes=1, max_nodes=1, node=NodeResources(cores=0.1))
    packed = base64.b64encode(zlib.compress(question)).decode("ascii")
    lone = cluster.model_copy(update={"devices": {}, "topology": None, "queue": None})
    taints = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in manifest.RESOURCES]
    tolerations = [*taints, *manifest.tolerations(cluster)]
    program = PodProgram(
        name=own,
        argv=["python", "-P", "-m", record_parts.__name__, packed],
        env=[],
        volumes=volumes(cluster)[1:],
        queue=None,
        grace_s=1.0,
        keep_s=_READER_KEEP_S,
        pod={"automountServiceAccountToken": False, "tolerations": tolerations},
    )
    return write_jobset(_job(spec, lone, None), program)


def run_as(document: dict[str, Any], user: int) -> None:
    """Make the pods of a JobSet run as an unprivileged user, unless a patch set another one."""
    for job in document["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        pod["securityContext"] = manifest.user_security(user) | pod["securityContext"]


def _job(spec: JobSpec, cluster: Kubernetes, autoscale: Autoscale | None) -> manifest.KubernetesJob:
    return manifest.KubernetesJob(spec=spec, program=Program(image=cluster.image), cluster=cluster, autoscale=autoscale)


def _tolerations(spec: JobSpec, cluster: Kubernetes) -> list[Mapping[str, object]]:
    """Tolerate the taints of accelerator nodes, and give up a lost node within seconds."""
    devices = [key for key in manifest.quantities(spec, cluster).get("limits", {}) if "/" in key]
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_LOST_S}
    taints = [f"node.kubernetes.io/{taint}" for taint in ("not-ready", "unreachable")]
    return [
        *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in devices),
        *({"key": key, **lost} for key in taints),
        *manifest.tolerations(cluster),
    ]
