"""Accelerators in the words of Kubernetes: the resource that a container asks for, and the nodes that have it.

Source: the device plugins of NVIDIA, AMD, Intel (Gaudi) and AWS (Neuron); for TPUs GKE's "Plan TPUs in GKE", with its
accelerator labels, topologies and chips per node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainworks.errors import UsageError

__all__ = ["Device", "device_of"]


@dataclass(frozen=True, slots=True)
class Device:
    """What a pod has to say to get its accelerators."""

    resource: str
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tpu:
    """A generation of TPUs in GKE."""

    accelerator: str
    """Value of the label `cloud.google.com/gke-tpu-accelerator`."""
    chips_per_node: int
    """Of a slice of several nodes."""
    topologies: Mapping[int, str]
    """By the chips of a slice."""
    single_node: tuple[int, ...]
    """Chips that one node may have as a slice of its own."""


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
    "amd.com/gpu": r"(amd|instinct|radeon)\b.*|mi\d+.*",
    "habana.ai/gaudi": r"(intel[ _-])?gaudi.*",
    "aws.amazon.com/neuron": r"(aws[ _-])?(trainium|inferentia).*|(trn|inf)\d.*",
    "nvidia.com/gpu": r"(nvidia|rubin|tesla|geforce|quadro|titan)\b.*|[rg]tx.*|(g?[bhr]|[aglptvk])\d{1,4}[a-z]*\b.*",
}
"""The extended resource of a device plugin, and the names of what it gives."""


def device_of(accelerator: str | None, count: int, nodes: int) -> Device:
    """The resource of an accelerator, and labels of the nodes that have it.

    Args:
        accelerator: as the run file names it; any of NVIDIA's when None.
        count: of each node.
        nodes: of the job.

    Raises:
        UsageError: no device plugin is known for it, or GKE has no such slice of TPUs.
    """
    name = (accelerator or "nvidia").lower()
    name = _NAMES_WITHOUT_TPU.get(name, name)
    if tpu := re.fullmatch(r"tpu[_-]?(.+)", name):
        return _slice(accelerator or "", _OTHER_NAMES.get(tpu[1], tpu[1]), count, nodes)
    resource = next((resource for resource, names in _RESOURCES.items() if re.fullmatch(names, name)), None)
    if resource is None:
        raise UsageError(
            f"no resource of Kubernetes is known for the accelerator `{accelerator}`",
            hint=f"known are NVIDIA's, AMD's MI series, Gaudi, Trainium and {_named(_TPUS)}",
        )
    return Device(resource)


def _slice(accelerator: str, generation: str, chips: int, nodes: int) -> Device:
    """One slice of TPUs that all nodes of the job make together."""
    if generation not in _TPUS:
        raise UsageError(
            f"no TPU `{accelerator}` is known in GKE", hint=f"write one of {_named(_TPUS)}, like `tpu-v5e:8`"
        )
    tpu = _TPUS[generation]
    if nodes == 1 and chips not in tpu.single_node:
        each = ", ".join(map(str, tpu.single_node))
        raise UsageError(f"one node has no {chips} chips of `{accelerator}`", hint=f"ask for {each} per node")
    if nodes > 1 and chips != tpu.chips_per_node:
        message = f"a slice of `{accelerator}` over {nodes} nodes has no {chips} chips per node"
        raise UsageError(message, hint=f"ask for `{accelerator}:{tpu.chips_per_node}`")
    if (topology := tpu.topologies.get(chips * nodes)) is None:
        sizes = ", ".join(str(size // tpu.chips_per_node) for size in tpu.topologies if size > tpu.chips_per_node)
        message = f"no slice of `{accelerator}` has {chips * nodes} chips: {nodes} nodes of {chips}"
        raise UsageError(message, hint=f"slices of several nodes have {sizes} of them")
    labels = {
        "cloud.google.com/gke-tpu-accelerator": tpu.accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return Device("google.com/tpu", labels)


def _named(tpus: Mapping[str, _Tpu]) -> str:
    return ", ".join(f"`tpu-{generation}`" for generation in tpus)
