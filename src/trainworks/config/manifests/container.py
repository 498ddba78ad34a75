"""The container of a manifest that trains: its command becomes `run`, its variables `envs`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainworks.config.manifests.own_job import OWN_CONTAINER_SECURITY, OWN_VARIABLES, OwnJob
from trainworks.config.manifests.reading import ManifestReading, at
from trainworks.config.manifests.words import expand, references, shell_text
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
) -> None:
    """Read the container that trains.

    Args:
        reading: the run file.
        container: without its resources and mounts.
        key: its place.
        own: command of a manifest that Trainworks wrote.
        hosts: pattern of names that the manifest's own pods would have, and those of Trainworks do not.
        envs: variables that the manifest's controller sets, and Trainworks does not.
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
        reading.put(("run",), shell_text(argv, {*known, *_SET_BY_KUBERNETES}), place)
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
