"""Parts shared by all Kubernetes manifests: names, labels, quantities, security contexts and portable YAML.

A container requests accelerators as an extended resource, and labels of nodes say which ones they offer. Source: the
device plugins of NVIDIA, AMD, Intel (Gaudi) and AWS (Neuron); for TPUs GKE's "Plan TPUs in GKE", with its accelerator
labels, topologies and chips per node.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from trainworks.config.autoscale import Autoscale
from trainworks.config.command import split_mig
from trainworks.config.engines import Kubernetes
from trainworks.config.manifests.container import MIG_RESOURCE, part_by_labels
from trainworks.config.manifests.own_job import OWN_CONTAINER_SECURITY, OWN_POD_SECURITY
from trainworks.config.manifests.reading import drop_none
from trainworks.config.pod_patch import POD_CONTAINER
from trainworks.errors import UsageError
from trainworks.jobs.accelerator_names import AMD
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program


@dataclass(frozen=True, slots=True)
class Device:
    """Resource name and node labels that get a pod its accelerators."""

    resource: str
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tpu:
    """A TPU generation in GKE."""

    accelerator: str
    """Value of the node label `cloud.google.com/gke-tpu-accelerator`."""
    chips_per_node: int
    """Chips per node in a slice of several nodes."""
    topologies: Mapping[int, str]
    """Topology of a slice, by its number of chips."""
    single_node: tuple[int, ...]
    """Numbers of chips that form a slice on a single node."""


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
_DEEP = {math.prod(map(int, shape.split("x"))): shape for shape in _CUBES}
_TPUS = {
    "v4": _Tpu("tpu-v4-podslice", 4, _DEEP, (4,)),
    "v5e": _Tpu("tpu-v5-lite-podslice", 4, _FLAT, (1, 4, 8)),
    "v5p": _Tpu("tpu-v5p-slice", 4, _DEEP, (4,)),
    "v6e": _Tpu("tpu-v6e-slice", 4, _FLAT, (1, 4, 8)),
    "v7x": _Tpu("tpu7x", 4, _DEEP, (4,)),
}
_OTHER_NAMES = {"v5litepod": "v5e", "v5-lite": "v5e", "v5lite": "v5e", "7x": "v7x", "v7": "v7x"}
_NAMES_WITHOUT_TPU = {"trillium": "tpu-v6e", "ironwood": "tpu-v7x"}
_RESOURCES = {
    "amd.com/gpu": AMD,
    "habana.ai/gaudi": r"(intel[ _-])?gaudi.*",
    "aws.amazon.com/neuron": r"(aws[ _-])?(trainium|inferentia).*|(trn|inf)\d.*",
    "nvidia.com/gpu": r"(nvidia|rubin|tesla|geforce|quadro|titan)\b.*|[rg]tx.*|(g?[bhr]|[aglptvk])\d{1,4}[a-z]*\b.*",
}
"""Extended resource of each device plugin, and the accelerator names it covers."""
RESOURCES = (*_RESOURCES, "google.com/tpu")
"""All extended resources of accelerators; nodes with them may have a taint of the same name."""


def device_of(accelerator: str | None, count: int, nodes: int) -> Device:
    """Resource of an accelerator, and labels of the nodes that offer it.

    Without a name it is any NVIDIA GPU; a part by MIG has a resource of its own. `count` is per node, `nodes` the
    number of nodes of the job.

    Raises:
        UsageError: the accelerator has no known device plugin, or GKE offers no such TPU slice.
    """
    name = (accelerator or "nvidia").lower()
    name = _NAMES_WITHOUT_TPU.get(name, name)
    if (part := split_mig(name)[1]) is not None:
        return Device(f"{MIG_RESOURCE}{part}")
    if tpu := re.fullmatch(r"tpu[_-]?(.+)", name):
        return _slice(accelerator or "", _OTHER_NAMES.get(tpu[1], tpu[1]), count, nodes)
    resource = next((resource for resource, names in _RESOURCES.items() if re.fullmatch(names, name)), None)
    if resource is None:
        raise UsageError(
            f"unknown accelerator `{accelerator}`: no Kubernetes device plugin provides it",
            hint=f"use an NVIDIA GPU, AMD MI series, Gaudi, Trainium or {_named(_TPUS)}",
        )
    return Device(resource)


def _slice(accelerator: str, generation: str, chips: int, nodes: int) -> Device:
    """One TPU slice that spans all nodes of the job."""
    if generation not in _TPUS:
        raise UsageError(
            f"unknown TPU `{accelerator}`: GKE does not offer it",
            hint=f"write one of {_named(_TPUS)}, like `tpu-v5e:8`",
        )
    tpu = _TPUS[generation]
    if nodes == 1 and chips not in tpu.single_node:
        counts = ", ".join(map(str, tpu.single_node))
        raise UsageError(f"GKE offers no node with {chips} chips of `{accelerator}`", hint=f"request {counts} per node")
    if nodes > 1 and chips != tpu.chips_per_node:
        message = f"GKE offers no slice of `{accelerator}` over {nodes} nodes with {chips} chips each"
        raise UsageError(message, hint=f"request `{accelerator}:{tpu.chips_per_node}`")
    if (topology := tpu.topologies.get(chips * nodes)) is None:
        sizes = ", ".join(str(size // tpu.chips_per_node) for size in tpu.topologies if size > tpu.chips_per_node)
        message = f"GKE offers no slice of `{accelerator}` with {chips * nodes} chips: {nodes} nodes of {chips}"
        raise UsageError(message, hint=f"set `num_nodes` to one of {sizes}")
    labels = {
        "cloud.google.com/gke-tpu-accelerator": tpu.accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return Device("google.com/tpu", labels)


def _named(tpus: Mapping[str, _Tpu]) -> str:
    return ", ".join(f"`tpu-{generation}`" for generation in tpus)


REPLICATED_JOB = POD_CONTAINER
"""Name of the JobSet's replicated job, as of its container."""
RAILS = "rdma/rails"
"""Resource of a node's adapters in the bundle of a stack."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that puts a JobSet into a queue of Kueue."""
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""Label with the order of a JobSet in that queue."""
RUNS = "/runs"
"""Mount path of the volume with the run directories."""
_HASH = 8
"""Hexadecimal digits behind a name in another script."""
LONGEST_NAME = 40
"""Limit that keeps a pod's name, `NAME-node-0-INDEX-XXXXX`, within a DNS label of 63 characters."""
_NOT_TEXT = frozenset(("y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"))


class Volume(NamedTuple):
    """A volume of a pod, and its mount in the container."""

    volume: Mapping[str, object]
    mount: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """A job and where it runs, as the manifests describe it."""

    spec: JobSpec
    program: Program
    cluster: Kubernetes
    autoscale: Autoscale | None = None


def dns_name(text: str, longest: int = LONGEST_NAME) -> str:
    """Text as a DNS label: lower case, digits and dashes, short enough for the suffixes of pods.

    Text in another script ends in a hash, by which two names differ although they have the same ASCII letters.

    >>> dns_name("Llama_7b"), dns_name("训练-7b"), dns_name("评测-7b")
    ('llama-7b', 'j-7b-028d9e05', 'j-7b-899a3cf2')
    """
    mark = "" if text.isascii() else "-" + hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    name = re.sub("^(?=[0-9])", "j-", re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") or "job")
    return name[: longest - len(mark)].strip("-") + mark


def ascii_name(text: str) -> str:
    """The name for a program that takes ASCII alone: itself, or its DNS label."""
    return text if text.isascii() else dns_name(text)


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
        "app.kubernetes.io/instance": ascii_name(job.spec.run_id)[:63].strip("._-"),
    }


def literal(text: str) -> str:
    """Text for `command`, `args` or a variable's value, where Kubernetes expands `$(NAME)` and reads `$$` as `$`."""
    return re.sub(r"\$(?:\$+|(?=\())", lambda dollars: 2 * dollars[0], text)


def environment(job: KubernetesJob) -> list[Mapping[str, object]]:
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
    accelerator = split_mig(job.spec.node.accelerator or "")[0]
    if accelerator and not _node_selector(job):
        lines.append(f"any accelerator is accepted: set `cluster.kubernetes.node_selector` to require {accelerator}")
    return "".join(f"# {line}\n" for line in lines)


def quantities(spec: JobSpec, cluster: Kubernetes) -> dict[str, dict[str, str]]:
    """Container `resources`, all as text: clients may refuse bare numbers.

    Raises:
        UsageError: the accelerator has no known resource name.
    """
    node, device = spec.node, _device(spec, cluster)
    devices = {name: str(count) for name, count in cluster.devices.items()}
    amounts = {
        "cpu": f"{node.cores:g}" if node.cores else None,
        "memory": memory_quantity(node.memory_bytes) if node.memory_bytes else None,
    }
    requests = drop_none(amounts) | ({device.resource: str(node.accelerators)} if device else {}) | devices
    limits = {name: value for name, value in requests.items() if name != "cpu"}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _device(spec: JobSpec, cluster: Kubernetes) -> Device | None:
    """Resource of the accelerators; that of whole GPUs where the labels of the nodes say which part of one it is."""
    node = spec.node
    wanted = None if part_by_labels(cluster.node_selector) else node.accelerator
    return device_of(wanted, node.accelerators, spec.max_nodes) if node.accelerators else None


def _node_selector(job: KubernetesJob) -> dict[str, str]:
    """Node labels; those of the run file take precedence."""
    device = _device(job.spec, job.cluster)
    return {**(device.node_selector if device else {}), **job.cluster.node_selector}


def memory_quantity(num_bytes: int) -> str:
    """Bytes as a quantity of Kubernetes: `64Gi`."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("G", 10**9), ("M", 10**6)):
        if num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def scheduling(job: KubernetesJob) -> Mapping[str, object]:
    """PodSpec fields about the nodes of the pods and the registry of their image."""
    spec: dict[str, object] = {}
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


def tolerations(cluster: Kubernetes) -> list[Mapping[str, object]]:
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
    return {"kueue.x-k8s.io/podset-required-topology": job.cluster.topology}


def pod_security(cluster: Kubernetes) -> Mapping[str, object]:
    """`securityContext` of a pod under the Pod Security standard `restricted`.

    The standard also requires a user other than root; without `run_as_user` the image's user applies.
    """
    user = {} if cluster.run_as_user is None else user_security(cluster.run_as_user)
    return OWN_POD_SECURITY | user


def user_security(user: int) -> dict[str, bool | int]:
    """`securityContext` entries that set the user of the processes and the group of new files on the volume."""
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}


def container_security() -> dict[str, object]:
    """`securityContext` of a container under the Pod Security standard `restricted`."""
    return dict(OWN_CONTAINER_SECURITY)


def check(job: KubernetesJob, language: str, missing: Mapping[str, bool]) -> None:
    """Refuse what a manifest of this language cannot express: `missing` tells of each run file field without an
    equivalent whether the job sets it.

    Raises:
        UsageError: the job has no image, or sets one of the missing fields.
    """
    if job.program.image is None:
        raise UsageError("the pods have no image", hint="set `cluster.kubernetes.image`")
    if job.spec.priority != 50 and job.cluster.priority_class is None and job.cluster.queue_priority is None:
        hint = "set `cluster.kubernetes.priority_class`, and remove `job.priority`"
        raise UsageError(f"{language} does not support a numeric `priority`", hint=hint)
    if field := next((name for name, is_set in missing.items() if is_set), None):
        raise UsageError(f"{language} does not support `{field}`", hint=f"remove `{field}`")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Block style for several lines; quotes unless every YAML version reads the text as a string."""
    if not re.fullmatch(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe]*", text):
        style: str | None = '"'
    elif "\n" in text:
        style = "|"
    else:
        plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in _NOT_TEXT
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
