"""Requests and limits of a container as `resources` of a run file.

Source: Kubernetes' resource quantities (apimachinery, pkg/api/resource); labels of NVIDIA's GPU feature discovery, GKE
and EKS for the kind of an accelerator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainworks.config.command import AtLeast, amount_text
from trainworks.config.manifests.reading import ManifestReading
from trainworks.config.source import FieldPath

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)
}
_ACCELERATORS = {
    "nvidia.com/gpu": "gpu",
    "amd.com/gpu": "amd",
    "habana.ai/gaudi": "gaudi",
    "aws.amazon.com/neuron": "trainium",
}
"""Name of an accelerator in a run file by the resource of its device plugin."""
_KIND_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
_KIND = re.compile(r"(?<![A-Z0-9])((?:G?[BH]|[AHLTV])\d{1,3}S?)(?![A-Z0-9])")
_TPU, _TPU_LABEL = "google.com/tpu", "cloud.google.com/gke-tpu-accelerator"
_TPU_KINDS = {
    "tpu-v4-podslice": "tpu-v4",
    "tpu-v5-lite-podslice": "tpu-v5e",
    "tpu-v5p-slice": "tpu-v5p",
    "tpu-v6e-slice": "tpu-v6e",
    "tpu7x": "tpu-v7x",
}


def read_quantity(value: Any) -> float | None:
    """Number of a quantity: `500m`, `64Gi`, `1e3`; None for anything else.

    >>> read_quantity("500m"), read_quantity("2Gi"), read_quantity("two")
    (0.5, 2147483648.0, None)
    """
    found = _QUANTITY.fullmatch(str(value))
    if found is None or isinstance(value, bool):
        return None
    unit = found[2] or ""
    return float(found[1] + unit) if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei" else _scaled(found)


def _scaled(found: re.Match[str]) -> float:
    return float(found[1]) * _UNITS.get(found[2] or "", 1.0)


def read_resources(
    reading: ManifestReading, value: Any, key: FieldPath, labels: Mapping[str, Any], named: str | None
) -> None:
    """Take cores, memory, accelerators and other devices; what a run file has no field for goes into the patch.

    Args:
        reading: the run file.
        value: `resources` of the container.
        key: its place.
        labels: node selector of the pods.
        named: accelerator as a manifest of Trainworks names it.
    """
    given = reading.mapping(value, key)
    requests, limits = (reading.mapping(given.pop(name, None), (*key, name)) for name in ("requests", "limits"))
    parts = {"requests": requests, "limits": limits}
    if given:
        reading.container["resources"] = given
    for name, amount in {**limits, **requests}.items():
        place = (*key, "requests" if name in requests else "limits", name)
        number = read_quantity(amount)
        if number is None:
            reading.refuse(place, f"`{amount}` is not a quantity of Kubernetes", "write it like `8`, `500m` or `64Gi`")
        elif name in ("cpu", "memory"):
            _take_amount(reading, name, number, place, limits)
        elif "/" in name:
            _take_devices(reading, name, number, place, _kind(name, labels, named))
        else:
            for part in (part for part in parts if name in parts[part]):
                _patch(reading, part)[name] = parts[part][name]


def _take_amount(
    reading: ManifestReading, name: str, number: float, place: FieldPath, limits: Mapping[str, Any]
) -> None:
    """Trainworks limits memory to the request and cores not at all; a patch says what the manifest has instead."""
    limit = read_quantity(limits[name]) if name in limits else None
    if number > 0:
        scaled = number if name == "cpu" else number / 1e9
        reading.put(("resources", "cpus" if name == "cpu" else "memory"), amount_text(AtLeast(scaled)), place)
    if limit != (None if name == "cpu" or number == 0 else number):
        _patch(reading, "limits")[name] = limits.get(name)


def _take_devices(reading: ManifestReading, name: str, number: float, place: FieldPath, kind: str | None) -> None:
    if number == 0:
        return
    if kind is not None and "accelerators" not in reading.data.get("resources", {}):
        reading.put(("resources", "accelerators"), f"{kind}:{number:g}", place)
    else:
        devices = reading.data["cluster"]["kubernetes"].setdefault("devices", {})
        devices[name] = int(number) if number == int(number) else number
        reading.source.origins["cluster", "kubernetes", "devices", name] = place


def _kind(name: str, labels: Mapping[str, Any], named: str | None) -> str | None:
    """Name of an accelerator for a run file; None for a device of another kind."""
    if name not in (_TPU, *_ACCELERATORS) or named is not None:
        return named if name in (_TPU, *_ACCELERATORS) else None
    if name == _TPU:
        return _TPU_KINDS.get(str(labels.get(_TPU_LABEL)))
    texts = [str(labels[label]).upper() for label in _KIND_LABELS if label in labels]
    found = next((found for found in map(_KIND.search, texts) if found), None)
    return found[1] if found and name == "nvidia.com/gpu" else _ACCELERATORS[name]


def _patch(reading: ManifestReading, part: str) -> dict[str, Any]:
    """Requests or limits in the patch of the container."""
    resources: dict[str, Any] = reading.container.setdefault("resources", {})
    inner: dict[str, Any] = resources.setdefault(part, {})
    return inner
