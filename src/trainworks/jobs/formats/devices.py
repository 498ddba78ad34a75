"""Accelerators in Kubernetes: the extended resource that a container requests, and labels of nodes that offer it.

Source: the device plugins of NVIDIA, AMD, Intel (Gaudi) and AWS (Neuron); for TPUs GKE's "Plan TPUs in GKE", with its
accelerator labels, topologies and chips per node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainworks.errors import UsageError


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
    "amd.com/gpu": r"(amd|instinct|radeon)\b.*|mi\d+.*",
    "habana.ai/gaudi": r"(intel[ _-])?gaudi.*",
    "aws.amazon.com/neuron": r"(aws[ _-])?(trainium|inferentia).*|(trn|inf)\d.*",
    "nvidia.com/gpu": r"(nvidia|rubin|tesla|geforce|quadro|titan)\b.*|[rg]tx.*|(g?[bhr]|[aglptvk])\d{1,4}[a-z]*\b.*",
}
"""Extended resource of each device plugin, and the accelerator names it covers."""


def device_of(accelerator: str | None, count: int, nodes: int) -> Device:
    """Resource of an accelerator, and labels of the nodes that offer it.

    Args:
        accelerator: name in the run file; any NVIDIA GPU when None.
        count: accelerators per node.
        nodes: nodes of the job.

    Raises:
        UsageError: the accelerator has no known device plugin, or GKE offers no such TPU slice.
    """
    name = (accelerator or "nvidia").lower()
    name = _NAMES_WITHOUT_TPU.get(name, name)
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
