"""Status of nodes from the objects of the API server. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainworks.backends.backend import NodeState, NodeStatus
from trainworks.backends.kubernetes.client import Object
from trainworks.config.manifests.container import MIG_RESOURCE

DRAINED = "trainworks/drained"
"""Node annotation with the reason why a user drained it."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Pod label and annotation with its number in its Job."""
FIRST_NODE = "trainworks/first-node"
"""Pod annotation with the number of the first node of its role among all of the job."""
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"

_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_WHOLE = re.compile(r"(nvidia|amd|habana|gpu\.intel|google)\.(com|ai)/(gpu|gaudi|i915|xe|tpu)")
_PARTS = re.compile(rf"{re.escape(MIG_RESOURCE)}.+")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": float(1 << (10 * power)) for power, letter in enumerate("KMGTPE", start=1)
}


def labels_of(thing: Object) -> Mapping[str, str]:
    """Labels of an object; empty if it has none."""
    labels: Mapping[str, str] = thing.get("metadata", {}).get("labels") or {}
    return labels


def annotations_of(thing: Object) -> Mapping[str, str]:
    """Annotations of an object; empty if it has none."""
    annotations: Mapping[str, str] = thing.get("metadata", {}).get("annotations") or {}
    return annotations


def quantity(text: str | int | float) -> float:
    """Parse a quantity of Kubernetes: `64`, `1500m`, `2016Gi`, `1e3`."""
    if (match := re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", str(text))) is None:
        raise ValueError(f"`{text}` is not a quantity")
    return float(match[1]) * _FACTORS[match[2]]


def node_facts(node: Object, pods: Sequence[Object]) -> NodeStatus:
    """Status of a node and its load: of its whole accelerators, or of its parts by MIG where it has no other."""
    name = str(node["metadata"]["name"])
    there = node.get("status", {}).get("allocatable") or node.get("status", {}).get("capacity") or {}
    here = [
        pod
        for pod in pods
        if pod.get("spec", {}).get("nodeName") == name
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    taken = [_requests(pod) for pod in here]
    which = _WHOLE if _devices(there, _WHOLE) else _PARTS
    cores, devices = quantity(there.get("cpu", 0)), _devices(there, which)
    cores_taken, devices_taken = sum(one.get("cpu", 0.0) for one in taken), sum(_devices(one, which) for one in taken)
    load = (devices_taken, devices) if devices else (cores_taken, cores)
    state, raw, reason = _state(node, *load)
    return NodeStatus(
        name=name,
        state=state,
        raw=raw,
        reason=reason,
        cores=cores,
        cores_taken=cores_taken,
        accelerators=int(devices),
        accelerators_taken=int(devices_taken),
        accelerator=_kind(labels_of(node), there, which) if devices else None,
        memory_bytes=int(quantity(there.get("memory", 0))),
        jobs=tuple(sorted({job for pod in here if (job := labels_of(pod).get(JOBSET_LABEL)) is not None})),
    )


def _state(node: Object, taken: float, total: float) -> tuple[NodeState, str, str | None]:
    """State, status as kubectl prints it (`Ready`, `NotReady,SchedulingDisabled`), and reason."""
    conditions = node.get("status", {}).get("conditions") or []
    ready: Object = next((one for one in conditions if one["type"] == "Ready"), {})
    is_ready, cordoned = ready.get("status") == "True", bool(node.get("spec", {}).get("unschedulable"))
    words = ["Ready" if is_ready else "NotReady", *(["SchedulingDisabled"] if cordoned else [])]
    raw = ",".join(words)
    why = annotations_of(node).get(DRAINED) if cordoned else None
    if not is_ready:
        return "down", raw, why or ready.get("message") or ready.get("reason") or "its kubelet has never reported"
    if cordoned:
        return "draining" if taken else "drained", raw, why
    return "free" if not taken else "taken" if taken >= total else "mixed", raw, None


def _requests(pod: Object) -> Object:
    """Sum of the requests of all containers; a limit without a request counts as one."""
    total: dict[str, float] = {}
    for container in pod.get("spec", {}).get("containers", []):
        resources = container.get("resources") or {}
        for key, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[key] = total.get(key, 0.0) + quantity(amount)
    return total


def _devices(amounts: Object, which: re.Pattern[str]) -> float:
    return sum(quantity(amount) for key, amount in amounts.items() if which.fullmatch(key))


def _kind(labels: Mapping[str, str], there: Object, which: re.Pattern[str]) -> str | None:
    """Product of a node's accelerators; that of its parts where all have one profile, None where they differ.

    Source: labels of NVIDIA's GPU feature discovery, which names a part's product `nvidia.com/mig-1g.10gb.product`.
    """
    whole = next(filter(None, map(labels.get, _PRODUCTS)), None)
    if which is _WHOLE:
        return whole
    kinds = [key for key, amount in there.items() if which.fullmatch(key) and quantity(amount)]
    if len(kinds) != 1:
        return None
    return labels.get(f"{kinds[0]}.product") or kinds[0].removeprefix(MIG_RESOURCE)
