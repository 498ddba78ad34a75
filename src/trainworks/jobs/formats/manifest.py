"""Parts shared by all Kubernetes manifests: names, labels, quantities, security contexts and portable YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.config.pod_patch import POD_CONTAINER
from trainworks.errors import UsageError
from trainworks.jobs.formats.devices import Device, device_of
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program

REPLICATED_JOB = POD_CONTAINER
"""Name of the JobSet's replicated job, as of its container."""
_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that puts a JobSet into a queue of Kueue."""
RUNS = "/runs"
"""Mount path of the volume with the run directories."""
_LONGEST_NAME = 40
"""Limit that keeps a pod's name, `NAME-node-0-INDEX-XXXXX`, within a DNS label of 63 characters."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_TEXT = frozenset(("y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """A job and where it runs, as the manifests describe it."""

    spec: JobSpec
    program: Program
    cluster: Kubernetes
    autoscale: Autoscale | None = None


def dns_name(text: str) -> str:
    """Text as a DNS label: lower case, digits and dashes, short enough for the suffixes of pods."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    return re.sub("^(?=[0-9])", "j-", name)[:_LONGEST_NAME].strip("-") or "job"


def queue_of_team(team: str) -> str:
    """Name of a team's namespace, and of its queues of Kueue: an account of Slurm in the letters of a DNS label.

    >>> queue_of_team("vision_lab")
    'vision-lab'
    """
    return team.lower().replace("_", "-")


def labels(job: KubernetesJob) -> dict[str, str]:
    """Labels by which all objects of a job are found."""
    return {
        "app.kubernetes.io/managed-by": "trainworks",
        "app.kubernetes.io/instance": job.spec.run_id[:63].strip("._-"),
    }


def literal(text: str) -> str:
    """Text for `command`, `args` or a variable's value, where Kubernetes expands `$(NAME)` and reads `$$` as `$`."""
    return re.sub(r"\$(?:\$+|(?=\())", lambda dollars: 2 * dollars[0], text)


def environment(job: KubernetesJob) -> list[dict[str, Any]]:
    """Variables of the container; those without a value come from the Secret `NAME-envs`."""
    secret = f"{dns_name(job.spec.name)}-envs"
    return [
        {"name": name, "value": literal(value)}
        if value is not None
        else {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name, value in job.program.envs.items()
    ]


def header(job: KubernetesJob) -> str:
    """Comments with what to do before the manifest is applied."""
    lines = []
    missing = [name for name, value in job.program.envs.items() if value is None]
    if missing:
        values = " ".join(f'--from-literal={name}="${name}"' for name in missing)
        lines.append(f"kubectl create secret generic {dns_name(job.spec.name)}-envs {values}")
    accelerator = job.spec.node.accelerator
    if accelerator and not _node_selector(job):
        lines.append(f"any accelerator is accepted: set `cluster.kubernetes.node_selector` to require {accelerator}")
    return "".join(f"# {line}\n" for line in lines)


def quantities(spec: JobSpec, cluster: Kubernetes) -> dict[str, dict[str, str]]:
    """Container `resources`, all as text: clients may refuse bare numbers.

    Raises:
        UsageError: the accelerator has no known resource name.
    """
    node, device = spec.node, _device(spec)
    devices = {name: str(count) for name, count in cluster.devices.items()}
    amounts = {
        "cpu": f"{node.cores:g}" if node.cores else None,
        "memory": memory_quantity(node.memory_bytes) if node.memory_bytes else None,
    }
    requests = drop_none(amounts) | ({device.resource: str(node.accelerators)} if device else {}) | devices
    limits = {name: value for name, value in requests.items() if name != "cpu"}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _device(spec: JobSpec) -> Device | None:
    node = spec.node
    return device_of(node.accelerator, node.accelerators, spec.max_nodes) if node.accelerators else None


def _node_selector(job: KubernetesJob) -> dict[str, str]:
    """Node labels; those of the run file take precedence."""
    device = _device(job.spec)
    return {**(device.node_selector if device else {}), **job.cluster.node_selector}


def memory_quantity(num_bytes: int) -> str:
    """Bytes as a quantity of Kubernetes: `64Gi`."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("G", 10**9), ("M", 10**6)):
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def scheduling(job: KubernetesJob) -> dict[str, Any]:
    """PodSpec fields about the nodes of the pods and the registry of their image."""
    spec: dict[str, Any] = {}
    if job.cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in job.cluster.pull_secrets]
    if job.cluster.tolerations:
        spec["tolerations"] = tolerations(job.cluster)
    if selector := _node_selector(job):
        spec["nodeSelector"] = selector
    if job.spec.exclude:
        names = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(job.spec.exclude)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return spec


def tolerations(cluster: Kubernetes) -> list[dict[str, Any]]:
    """`tolerations` of a pod that the run file has."""
    return [one.model_dump(exclude_none=True) for one in cluster.tolerations]


def topology_annotations(job: KubernetesJob) -> dict[str, str]:
    """Annotations of a pod that keep all pods of the job close together.

    Raises:
        UsageError: the job is in no queue of Kueue, which places them.
    """
    if job.cluster.topology is None:
        return {}
    if job.cluster.queue is None:
        hint = "set `cluster.kubernetes.queue`"
        raise UsageError("`cluster.kubernetes.topology` needs Kueue, which places the pods", hint=hint)
    return {_TOPOLOGY: job.cluster.topology}


def pod_security(cluster: Kubernetes) -> dict[str, Any]:
    """`securityContext` of a pod under the Pod Security standard `restricted`.

    The standard also requires a user other than root; without `run_as_user` the image's user applies.
    """
    user = {} if cluster.run_as_user is None else user_security(cluster.run_as_user)
    return {"seccompProfile": {"type": "RuntimeDefault"}} | user


def user_security(user: int) -> dict[str, Any]:
    """`securityContext` entries that set the user of the processes and the group of new files on the volume."""
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}


def container_security() -> dict[str, Any]:
    """`securityContext` of a container under the Pod Security standard `restricted`."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def drop_none(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of a mapping without the keys whose value is None."""
    return {key: value for key, value in mapping.items() if value is not None}


def check(job: KubernetesJob, language: str, missing: Mapping[str, bool]) -> None:
    """Refuse what a manifest cannot express.

    Args:
        job: the job.
        language: name of the format, for messages.
        missing: run file fields without an equivalent, and whether the job sets each.

    Raises:
        UsageError: the job has no image, or sets one of the missing fields.
    """
    if job.program.image is None:
        raise UsageError("the pods have no image", hint="set `cluster.kubernetes.image`")
    if job.spec.priority != 50 and job.cluster.priority_class is None:
        hint = "set `cluster.kubernetes.priority_class`, and remove `job.priority`"
        raise UsageError(f"{language} does not support a numeric `priority`", hint=hint)
    if field := next((name for name, is_set in missing.items() if is_set), None):
        raise UsageError(f"{language} does not support `{field}`", hint=f"remove `{field}`")


class _Dumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Block style for several lines; quotes unless every YAML version reads the text as a string."""
    if not re.fullmatch(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe]*", text):
        style: str | None = '"'
    elif "\n" in text:
        style = "|"
    else:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        style = None if plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(document: Any, *, is_short: bool = False) -> str:
    """Dump one document, keys in insertion order; where it is to be short, innermost lists and mappings on one line."""
    style = None if is_short else False
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=style
    )
    return text
