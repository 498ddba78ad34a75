"""What all manifests of Kubernetes have in common: names, quantities, the pods of a job, and YAML that every reader
understands alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.errors import UsageError
from trainworks.jobs.formats.devices import Device, device_of
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program

__all__ = [
    "REPLICATED_JOB",
    "RUNS",
    "Pods",
    "check",
    "container_security",
    "dns_name",
    "environment",
    "header",
    "labels",
    "literal",
    "pod_security",
    "quantities",
    "scheduling",
    "to_yaml",
    "user_of",
    "without_nothing",
]

REPLICATED_JOB = "node"
"""Of a JobSet; Kubeflow's runtimes call theirs the same."""
RUNS = "/runs"
"""Where the pods see the volume that holds run directories."""
_LONGEST_NAME = 40
"""So that `NAME-node-0-INDEX-XXXXX`, a pod's name, is a label of DNS: 63 characters."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_TEXT = frozenset(("y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A job as Kubernetes is told of it."""

    spec: JobSpec
    program: Program
    where: Kubernetes
    autoscale: Autoscale | None = None


def dns_name(text: str) -> str:
    """A name as DNS allows it: lower case, digits and dashes, and short enough for what is appended."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    return re.sub("^(?=[0-9])", "j-", name)[:_LONGEST_NAME].strip("-") or "job"


def labels(pods: Pods) -> dict[str, str]:
    """By which the objects of a job are found, and Kueue's queue."""
    queue = {"kueue.x-k8s.io/queue-name": pods.where.queue} if pods.where.queue else {}
    return {
        "app.kubernetes.io/managed-by": "trainworks",
        "app.kubernetes.io/instance": pods.spec.run_id[:63].strip("._-"),
        **queue,
    }


def literal(text: str) -> str:
    """Text in `command`, `args` or a variable's value, where Kubernetes replaces `$(NAME)` and takes `$$` for `$`."""
    return re.sub(r"\$(?:\$+|(?=\())", lambda dollars: 2 * dollars[0], text)


def environment(pods: Pods) -> list[dict[str, Any]]:
    """Variables of the container; one without a value is that of the Secret `NAME-envs`."""
    secret = f"{dns_name(pods.spec.name)}-envs"
    return [
        {"name": name, "value": literal(value)}
        if value is not None
        else {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name, value in pods.program.envs.items()
    ]


def header(pods: Pods) -> str:
    """What has to be there before the manifest is applied, as comments."""
    lines = []
    missing = [name for name, value in pods.program.envs.items() if value is None]
    if missing:
        values = " ".join(f'--from-literal={name}="${name}"' for name in missing)
        lines.append(f"kubectl create secret generic {dns_name(pods.spec.name)}-envs {values}")
    if pods.spec.node.accelerator and not _node_selector(pods):
        lines.append(f"any accelerator will do: {pods.spec.node.accelerator} needs `cluster.kubernetes.node_selector`")
    return "".join(f"# {line}\n" for line in lines)


def quantities(spec: JobSpec) -> dict[str, dict[str, str]]:
    """`resources` of the container, all as text: a client may refuse bare numbers.

    Raises:
        UsageError: no resource is known for the accelerator.
    """
    node, device = spec.node, _device(spec)
    requests = {
        "cpu": f"{node.cores:g}" if node.cores else None,
        "memory": _memory(node.memory_bytes) if node.memory_bytes else None,
    }
    asked = without_nothing(requests) | ({device.resource: str(node.accelerators)} if device else {})
    limits = {name: value for name, value in asked.items() if name != "cpu"}
    return {key: value for key, value in (("requests", asked), ("limits", limits)) if value}


def _device(spec: JobSpec) -> Device | None:
    """What the pods of a job say for their accelerators."""
    node = spec.node
    return device_of(node.accelerator, node.accelerators, spec.max_nodes) if node.accelerators else None


def _node_selector(pods: Pods) -> dict[str, str]:
    """Labels of the nodes; the run file's own are the last word."""
    device = _device(pods.spec)
    return {**(device.node_selector if device else {}), **pods.where.node_selector}


def _memory(num_bytes: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("G", 10**9), ("M", 10**6)):
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def scheduling(pods: Pods) -> dict[str, Any]:
    """Where the pods may go, in the words of a PodSpec."""
    spec: dict[str, Any] = {}
    if selector := _node_selector(pods):
        spec["nodeSelector"] = selector
    if pods.spec.exclude:
        names = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(pods.spec.exclude)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return spec


def pod_security(where: Kubernetes) -> dict[str, Any]:
    """`securityContext` of a pod, as the Pod Security standard `restricted` wants it.

    The standard also wants a user that is not root. Without `run_as_user` the image says who that is.
    """
    own = {} if where.run_as_user is None else user_of(where.run_as_user)
    return {"seccompProfile": {"type": "RuntimeDefault"}} | own


def user_of(user: int) -> dict[str, Any]:
    """The part of a pod's `securityContext` that says who its processes are, and who owns the volume's new files."""
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}


def container_security() -> dict[str, Any]:
    """`securityContext` of a container, as the Pod Security standard `restricted` wants it."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def without_nothing(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys whose value is None."""
    return {key: value for key, value in mapping.items() if value is not None}


def check(pods: Pods, language: str, lacks: Mapping[str, bool]) -> None:
    """Refuse what a manifest cannot say.

    Raises:
        UsageError: naming the first such wish.
    """
    if pods.program.image is None:
        raise UsageError("the pods have no image", hint="set `cluster.kubernetes.image`")
    if pods.spec.priority != 50 and pods.where.priority_class is None:
        hint = "set `cluster.kubernetes.priority_class`, and leave `job.priority` out"
        raise UsageError(f"{language} has no `priority` in numbers", hint=hint)
    wish = next((name for name, asked in lacks.items() if asked), None)
    if wish is not None:
        raise UsageError(f"{language} has no `{wish}`", hint=f"leave `{wish}` out")


class _Dumper(yaml.SafeDumper):
    """YAML without references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Several lines as they are; one in quotes unless every reader takes it for text: YAML's versions differ."""
    if not re.fullmatch(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe]*", text):
        style: str | None = '"'
    elif "\n" in text:
        style = "|"
    else:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        style = None if plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(document: Any) -> str:
    """One document, keys in their order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text
