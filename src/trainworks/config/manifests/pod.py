"""The template of the pods of a manifest: what a run file has a field for goes there, and the rest into the patch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainworks.config.manifests.container import read_container, read_quantity, read_resources
from trainworks.config.manifests.own_job import OWN_POD_SECURITY, OwnJob
from trainworks.config.manifests.reading import Entry, ManifestReading, at, drop_none, time_limit
from trainworks.config.source import FieldPath

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/:+=,\[\]-]*")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108, in the pods
_TAKEN = ("shm", "runs", "job")
"""Volumes that Trainworks gives the pods."""
_NAMED_BY_JOBSET = "the JobSet gives the pods their names"
OWN_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """What a reader knows of the job around the pods."""

    main: tuple[str, ...] = ()
    """Names of the container that trains; the first one by default."""
    own: OwnJob = field(default_factory=OwnJob)
    hosts: str = ""
    """Pattern of host names that the manifest's own pods would have."""
    envs: Mapping[str, str] = field(default_factory=dict)
    """Variables that the manifest's controller sets, and Trainworks does not."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """The same, with a text that the shell expands on the node."""


def read_template(reading: ManifestReading, template: Any, key: FieldPath, place: PodPlace) -> None:
    """Read the template of a pod: one container that trains, its volumes, nodes and rights."""
    spec = reading.mapping(at(template, "spec"), (*key, "spec"))
    _read_metadata(reading, at(template, "metadata"), (*key, "metadata"))
    key = (*key, "spec")
    containers = reading.entries(spec.pop("containers", None), (*key, "containers"))
    if not containers:
        reading.refuse(key, "the pods have no container", "add one to `containers`")
        return
    container, at_container = next((one for one in containers if one[0].get("name") in place.main), containers[0])
    # the other containers start as init containers that stay: a job would wait for the end of any other
    sidecars = [one for one, _ in reading.entries(spec.pop("initContainers", None), (*key, "initContainers"))]
    for other, at_other in containers:
        if at_other != at_container:
            reading.note(at_other, "as a second container; it starts as an init container that stays beside the job")
            sidecars.append(other | {"restartPolicy": "Always"})
    if sidecars:
        reading.patch(("spec", "initContainers"), sidecars, (*key, "initContainers"))
    container = _read_volumes(reading, spec, container, key, at_container)
    selector = reading.mapping(spec.get("nodeSelector"), (*key, "nodeSelector"))
    read_resources(
        reading, container.pop("resources", None), (*at_container, "resources"), selector, place.own.accelerator
    )
    read_container(
        reading,
        container,
        at_container,
        own=place.own,
        hosts=place.hosts,
        envs=place.envs,
        computed=place.computed,
    )
    for name, value in drop_none(spec).items():
        _read_field(reading, name, value, (*key, name))


def _read_metadata(reading: ManifestReading, metadata: Any, key: FieldPath) -> None:
    for part in ("labels", "annotations"):
        for name, value in reading.mapping(at(metadata, part), (*key, part)).items():
            if name == "kueue.x-k8s.io/podset-required-topology":
                reading.kubernetes("topology", value, (*key, part, name))
            elif name not in OWN_LABELS:
                reading.patch(("metadata", part, name), value, (*key, part, name))


def _read_volumes(
    reading: ManifestReading, spec: dict[str, Any], container: dict[str, Any], key: FieldPath, at_container: FieldPath
) -> dict[str, Any]:
    """Take shared memory as its field, and the first claim for the run directories, too; the patch has the rest."""
    mounts = reading.entries(container.pop("volumeMounts", None), (*at_container, "volumeMounts"))
    volumes = reading.entries(spec.pop("volumes", None), (*key, "volumes"))
    own = {str(mount.get("name")) for mount, _ in mounts if mount.get("mountPath") in (_SHARED_MEMORY, "/runs")}
    kept = [one for one in volumes if not _take_volume(reading, *one, own, mounts)]
    dropped = {str(one.get("name")) for one, _ in volumes} - {str(one.get("name")) for one, _ in kept}
    for volume, place in kept:
        if volume.get("name") in _TAKEN:
            reading.refuse(place, f"Trainworks has a volume `{volume['name']}` itself", "give the volume another name")
    if kept:
        reading.patch(("spec", "volumes"), [one for one, _ in kept], (*key, "volumes"))
    if left := [mount for mount, _ in mounts if mount.get("name") not in dropped]:
        reading.container["volumeMounts"] = left
    # keep run directories on the first claim that can be written to
    claims = [
        (claim, place)
        for volume, place in kept
        if (claim := at(volume, "persistentVolumeClaim", "claimName"))
        and not at(volume, "persistentVolumeClaim", "readOnly")
    ]
    if claims and "volume" not in reading.data["cluster"]["kubernetes"]:
        claim, place = claims[0]
        reading.kubernetes("volume", claim, place)
        text = f"{reading.source.place_of(place)}: the run directories are on the claim `{claim}`, too"
        reading.source.unused.append(text)
    return container


def _take_volume(
    reading: ManifestReading,
    volume: dict[str, Any],
    place: FieldPath,
    own: set[str],
    mounts: list[Entry],
) -> bool:
    """Take the volume of `/dev/shm`, or that of the run directories in a manifest of Trainworks."""
    name = volume.get("name")
    paths = [mount.get("mountPath") for mount, _ in mounts if mount.get("name") == name]
    if name not in own or len(paths) != 1:
        return False
    if paths == ["/runs"] and name == "runs" and (claim := at(volume, "persistentVolumeClaim", "claimName")):
        reading.kubernetes("volume", claim, place)
        return True
    if at(volume, "emptyDir", "medium") != "Memory" or paths != [_SHARED_MEMORY]:
        return False
    if (limit := at(volume, "emptyDir", "sizeLimit")) is not None:
        if (size := read_quantity(limit)) is None:
            reading.refuse(place, f"`{limit}` is not a quantity of Kubernetes", "write it like `64Gi`")
        else:
            reading.kubernetes("shared_memory", int(size), (*place, "emptyDir", "sizeLimit"))
    return True


def _read_field(reading: ManifestReading, name: str, value: Any, key: FieldPath) -> None:
    """Take a field of the pod; the API server checks those of the patch."""
    if name in _FIELDS:
        reading.put(_FIELDS[name], value, key)
    elif name in _WITHOUT_EFFECT:
        reading.note(key, _WITHOUT_EFFECT[name])
    elif name in _OWN:
        _OWN[name](reading, value, key)
    elif name != "restartPolicy":
        reading.patch(("spec", name), value, key)
    elif value != "Never":
        reading.note(key, "`recover.max_restarts` says how often ranks start again")


_FIELDS = {
    "serviceAccountName": ("cluster", "kubernetes", "service_account"),
    "serviceAccount": ("cluster", "kubernetes", "service_account"),
    "priorityClassName": ("cluster", "kubernetes", "priority_class"),
}
_WITHOUT_EFFECT = {"hostname": _NAMED_BY_JOBSET, "subdomain": _NAMED_BY_JOBSET}


def _grace(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    if value == 0:
        reading.note(key, "ranks have a second at least to end")
    reading.put(("job", "grace"), max(1.0, float(value)) if isinstance(value, int) else value, key)


def _selector(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    for label, wanted in reading.mapping(value, key).items():
        is_word = isinstance(wanted, str) and _WORD.fullmatch(wanted) and _WORD.fullmatch(str(label))
        path = ("node_selector", label) if is_word else ("patch", "spec", "nodeSelector", label)
        reading.put(("cluster", "kubernetes", *path), wanted, (*key, label))


def _tolerations(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    entries = reading.entries(value, key)
    for one, place in entries:
        if one.pop("tolerationSeconds", None) is not None:
            reading.note((*place, "tolerationSeconds"), "a node that is lost or not ready loses its pods after 30 s")
    if entries:
        reading.kubernetes("tolerations", [one for one, _ in entries], key)


def _pull_secrets(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    reading.kubernetes("pull_secrets", [one["name"] for one, _ in reading.entries(value, key) if "name" in one], key)


def _affinity(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    """Take nodes to avoid as `job.exclude`, if the pods want nothing else of their nodes."""
    terms = at(value, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    names = at(terms[0]["matchExpressions"][0], "values") if _avoids_nodes(value, terms) else None
    if names:
        reading.put(("job", "exclude"), names, key)
    else:
        reading.patch(("spec", "affinity"), value, key)


def _avoids_nodes(affinity: Any, terms: Any) -> bool:
    if not isinstance(terms, list) or len(terms) != 1 or list(affinity) != ["nodeAffinity"]:
        return False
    rules = at(terms[0], "matchExpressions")
    is_one = list(affinity["nodeAffinity"]) == ["requiredDuringSchedulingIgnoredDuringExecution"] and len(terms[0]) == 1
    one = rules[0] if is_one and isinstance(rules, list) and len(rules) == 1 else None
    return (at(one, "key"), at(one, "operator")) == ("kubernetes.io/hostname", "NotIn")


def _security(reading: ManifestReading, value: Any, key: FieldPath) -> None:
    """Take a user with the group of the same number as its field."""
    rest = {name: inner for name, inner in reading.mapping(value, key).items() if OWN_POD_SECURITY.get(name) != inner}
    user = rest.get("runAsUser")
    groups = {rest.get("runAsGroup", user), rest.get("fsGroup", user)}
    names = {"runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot"}
    if (
        isinstance(user, int)
        and user > 0
        and groups == {user}
        and rest.keys() <= names
        and rest.get("runAsNonRoot", True)
    ):
        reading.kubernetes("run_as_user", user, key)
    elif rest:
        reading.patch(("spec", "securityContext"), rest, key)


_OWN: dict[str, Callable[[ManifestReading, Any, FieldPath], None]] = {
    "terminationGracePeriodSeconds": _grace,
    "activeDeadlineSeconds": time_limit,
    "nodeSelector": _selector,
    "tolerations": _tolerations,
    "imagePullSecrets": _pull_secrets,
    "affinity": _affinity,
    "securityContext": _security,
}
