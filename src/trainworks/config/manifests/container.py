"""The container of a manifest that trains: its command becomes `run`, its variables `envs`, its requests `resources`.

Sources: third_party/forked/golang/expansion of Kubernetes, which expands `$(NAME)` and reads `$$` as `$`; Kubernetes'
resource quantities (apimachinery, pkg/api/resource); labels of NVIDIA's GPU feature discovery, GKE and EKS for the kind
of an accelerator.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from typing import Any

from trainworks.config.command import AtLeast, amount_text, split_mig
from trainworks.config.manifests.own_job import OWN_CONTAINER_SECURITY, OWN_VARIABLES, OwnJob
from trainworks.config.manifests.reading import FILL_IN, ManifestReading, at
from trainworks.config.source import FieldPath

_SET_BY_TRAINWORKS = frozenset({
    "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK",
})  # fmt: skip
_SET_BY_KUBERNETES = ("JOB_COMPLETION_INDEX",)
_OWN_FIELDS = ("name", "env", "command", "args")
_WITHOUT_EFFECT = {
    "terminationMessagePath": "Trainworks writes the reason of a failure there",
    "terminationMessagePolicy": "Trainworks writes the reason of a failure itself",
    "restartPolicy": "`recover.max_restarts` says how often ranks start again",
    "restartPolicyRules": "`recover.max_restarts` says how often ranks start again",
}
_HOST_HINT = "use `$MASTER_ADDR` in the command, which Trainworks sets on every node"


def read_container(
    reading: ManifestReading,
    container: Mapping[str, Any],
    key: FieldPath,
    *,
    own: OwnJob,
    hosts: str,
    envs: Mapping[str, str],
    computed: Mapping[str, str],
) -> None:
    """Read the container that trains.

    Args:
        reading: the run file.
        container: without its resources and mounts.
        key: its place.
        own: command of a manifest that Trainworks wrote.
        hosts: pattern of names that the manifest's own pods would have, and those of Trainworks do not.
        envs: variables that the manifest's controller sets, and Trainworks does not.
        computed: the same, with a text that the shell expands on the node.
    """
    argv, place = _argv(reading, container, key)
    is_own = own.wrote(argv)
    known = _read_variables(reading, container.get("env"), (*key, "env"), hosts=hosts, own=is_own)
    for name, value in envs.items():
        if name not in known:
            reading.data.setdefault("envs", {})[name] = value
    if is_own:
        _take_own(reading, own, place)
    elif argv:
        _check_hosts(reading, " ".join(argv), place, hosts)
        exports = "".join(f"export {name}={text}\n" for name, text in computed.items() if name not in known)
        reading.put(("run",), exports + shell_text(argv, {*known, *computed, *_SET_BY_KUBERNETES}), place)
    for name, value in container.items():
        if name not in _OWN_FIELDS and value is not None:
            _read_field(reading, name, value, (*key, name))


def _argv(reading: ManifestReading, container: Mapping[str, Any], key: FieldPath) -> tuple[list[str], FieldPath]:
    """Words of the command; without `command` they are those of the image, which is not read."""
    words: list[str] = []
    for name in ("command", "args"):
        value = container.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            reading.refuse((*key, name), f"`{name}` must be a list of texts", "quote numbers, true and false")
            return [], (*key, name)
        words += value or []
    if not container.get("command"):
        message = "the command is that of the image, and Trainworks does not read images"
        reading.refuse(key, message, "write the program of the image's entry point as `command`")
        return [], key
    return words, (*key, "command")


def _take_own(reading: ManifestReading, own: OwnJob, key: FieldPath) -> None:
    for name in ("name", "run", "setup", "framework"):
        if (value := getattr(own, name)) is not None:
            reading.put((name,), value, key)
    if own.processes_per_node is not None:
        reading.put(("cluster", "processes_per_node"), own.processes_per_node, key)


def _read_variables(reading: ManifestReading, entries: Any, key: FieldPath, *, hosts: str, own: bool) -> set[str]:
    """Take variables with a text as `envs`; Kubernetes itself resolves the others. Names of all of them."""
    texts: dict[str, str] = {}
    patched: list[dict[str, Any]] = []
    for entry, place in reading.entries(entries, key):
        name, value = str(entry.get("name")), entry.get("value", "")
        if own and (name in OWN_VARIABLES or _is_own_secret(reading, entry)):
            if name not in OWN_VARIABLES:
                reading.put(("envs", name), None, place)
        elif name in _SET_BY_TRAINWORKS and not own:
            reading.note(place, f"Trainworks sets `{name}` on every node")
        elif "valueFrom" not in entry and not isinstance(value, str):
            reading.refuse(place, f"the value of `{name}` must be text", "quote it")
        elif "valueFrom" in entry or references(value) & {one["name"] for one in patched}:
            patched.append(entry)
        else:
            texts[name] = expand(value, texts)
            _check_hosts(reading, texts[name], place, hosts)
            reading.put(("envs", name), texts[name], place)
    if patched:
        reading.container["env"] = patched
    return {*texts, *(one["name"] for one in patched)}


def _is_own_secret(reading: ManifestReading, entry: Mapping[str, Any]) -> bool:
    """Whether a variable is one without a value, which `kubectl create secret` took from the shell."""
    secret = at(entry, "valueFrom", "secretKeyRef")
    return at(secret, "key") == entry.get("name") and str(at(secret, "name")) == f"{reading.data['name']}-envs"


def _check_hosts(reading: ManifestReading, text: str, place: FieldPath, hosts: str) -> None:
    if hosts and (found := re.search(hosts, text)):
        reading.refuse(place, f"`{found[0]}` is the name of a pod, and those of Trainworks have others", _HOST_HINT)


def _read_field(reading: ManifestReading, name: str, value: Any, key: FieldPath) -> None:
    if name == "image":
        reading.kubernetes("image", value, key)
    elif name == "workingDir":
        reading.put(("workdir",), value, key)
    elif name in _WITHOUT_EFFECT:
        reading.note(key, _WITHOUT_EFFECT[name])
    elif name != "securityContext":
        reading.container[name] = value
    elif rest := {key: inner for key, inner in value.items() if OWN_CONTAINER_SECURITY.get(key) != inner}:
        reading.container[name] = rest


_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SHELLS = ("bash", "/bin/bash", "/usr/bin/bash")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Text as the container gets it; a name without a value stays as it is.

    >>> expand("$(A)/$$(A)/$(B)/$A", {"A": "x"})
    'x/$(A)/$(B)/$A'
    """

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else values.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def references(text: str) -> set[str]:
    """Names that a text refers to: `$(NAME)`."""
    return {found[1] for found in _REFERENCE.finditer(text) if found[1] is not None}


def shell_text(argv: Sequence[str], known: Container[str]) -> str:
    """Bash that starts a command as Kubernetes does; of `bash -c TEXT` the text.

    >>> print(shell_text(["python", "a b.py", "$(LR)", "$(X)"], {"LR"}))
    python 'a b.py' "${LR}" '$(X)'

    Args:
        argv: words of `command` and `args`.
        known: names of the container's variables; `$(NAME)` of any other stays text.
    """
    is_text = len(argv) == 3 and argv[0] in _SHELLS and argv[1] == "-c"
    if is_text and not any(name in known for name in references(argv[2])):
        return expand(argv[2], {})
    return " ".join(_word(word, known) for word in argv)


def _word(word: str, known: Container[str]) -> str:
    pieces, start = [], 0
    for found in _REFERENCE.finditer(word):
        if found[1] is not None and found[1] in known:
            pieces += [_quoted(word[start : found.start()]), f'"${{{found[1]}}}"']
            start = found.end()
    pieces.append(_quoted(word[start:]))
    return "".join(pieces) or "''"


def _quoted(text: str) -> str:
    return shlex.quote(expand(text, {})) if text else ""


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
MIG_RESOURCE = "nvidia.com/mig-"
"""Start of the resource of a part by MIG where a node has several kinds (`mixed`); its profile follows."""
_GKE_PART = "cloud.google.com/gke-gpu-partition-size"
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
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", str(value))
    if found is None or isinstance(value, bool):
        return None
    unit = found[2] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei":
        return float(found[1] + unit)
    return float(found[1]) * _UNITS.get(unit, 1.0)


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
            hint = FILL_IN if "$" in str(amount) else "write it like `8`, `500m` or `64Gi`"
            reading.refuse(place, f"`{amount}` is not a quantity of Kubernetes", hint)
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
    if number != int(number):
        hint = "request a part by MIG, such as `nvidia.com/mig-1g.10gb: 1`" if kind else "write a whole number"
        reading.refuse(place, f"Kubernetes counts devices whole, got {number:g} of `{name}`", hint)
    elif kind is not None and "accelerators" not in reading.data.get("resources", {}):
        reading.put(("resources", "accelerators"), f"{kind}:{number:g}", place)
    else:
        devices = reading.data["cluster"]["kubernetes"].setdefault("devices", {})
        devices[name] = int(number)
        reading.source.origins["cluster", "kubernetes", "devices", name] = place


def _kind(name: str, labels: Mapping[str, Any], named: str | None) -> str | None:
    """Name of an accelerator for a run file; None for a device of another kind."""
    is_part = name.startswith(MIG_RESOURCE)
    if not is_part and name not in (_TPU, *_ACCELERATORS):
        return None
    if named is not None or is_part:
        return named or name.removeprefix(MIG_RESOURCE)
    if name == _TPU:
        return _TPU_KINDS.get(str(labels.get(_TPU_LABEL)))
    texts = [str(labels[label]).upper() for label in _KIND_LABELS if label in labels]
    found = next((found for found in map(_KIND.search, texts) if found), None)
    if name != "nvidia.com/gpu":
        return _ACCELERATORS[name]
    model, part = found[1] if found else _ACCELERATORS[name], part_by_labels(labels)
    return model if part is None else f"{model}-{part}" if found else part


def part_by_labels(labels: Mapping[str, Any]) -> str | None:
    """MIG profile of the nodes that labels select, whose resource is that of whole GPUs; None of whole ones.

    Source: NVIDIA's MIG strategy `single`, whose product ends with the profile; GKE's label of a partition.
    """
    named = (split_mig(str(labels[label]))[1] for label in (_GKE_PART, _KIND_LABELS[0]) if label in labels)
    return next((part for part in named if part), None)


def _patch(reading: ManifestReading, part: str) -> dict[str, Any]:
    """Requests or limits in the patch of the container."""
    resources: dict[str, Any] = reading.container.setdefault("resources", {})
    inner: dict[str, Any] = resources.setdefault(part, {})
    return inner
