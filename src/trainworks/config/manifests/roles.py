"""A JobSet whose groups of pods differ as the roles of a run file: a command, an image and resources for each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainworks.config.manifests.reading import Entry, ManifestReading, at
from trainworks.config.source import FieldPath

_OF_A_ROLE = ("run", "setup", "framework", "envs", "resources")
_MOVED = (("cluster", "kubernetes", "image"), ("cluster", "processes_per_node"))
"""Fields of a whole job that a role has itself."""
_TOGETHER = "roles start together, and find each other at `$TRAINWORKS_ADDRESSES_...`"
_PODS = ("template", "spec", "template", "spec")
_OF_ORDER = {"ports": "`ports` open no port of a pod", **dict.fromkeys(("readinessProbe", "startupProbe"), _TOGETHER)}
"""Fields of a container about requests to it, or about the groups that wait for it."""

Group = dict[str, Any]
GroupReader = Callable[[ManifestReading, Entry], Any]
"""Reads a group into a run file of its own, and returns its number of nodes."""


def read_roles(
    reading: ManifestReading,
    groups: Sequence[Entry],
    success: Any,
    key: FieldPath,
    read_group: GroupReader,
) -> None:
    """Read every group of a JobSet as a role; `success` is its success policy.

    A group that the policy does not name may end at any time, as in a JobSet. What pods have besides a command, an
    image, variables and resources is that of the whole job, and has to be the same in all groups.
    """
    targets = at(success, "targetReplicatedJobs") or [group.get("name") for group, _ in groups]
    others, source, waits = list[tuple[str, dict[str, str]]](), reading.source, dict[str, list[str]]()
    for group, place in groups:
        name, kept = str(group.get("name")), source.origins
        source.origins = {}
        one = ManifestReading(source)
        one.data["name"] = reading.data["name"]
        nodes = read_group(one, (_without_order(reading, group, place), place))
        reading.problems += one.problems
        role = {field: one.data.pop(field) for field in _OF_A_ROLE if field in one.data}
        role |= {"nodes": nodes} | ({} if name in targets else {"decides": False, "may_end": True})
        cluster = one.data["cluster"]
        if (per_node := cluster.pop("processes_per_node", None)) is not None:
            role["processes_per_node"] = per_node
        if (image := cluster["kubernetes"].pop("image", None)) is not None:
            role["image"] = image
        waits[name] = _depends_on(reading, group, place, waits)
        if waits[name]:
            role["depends_on"] = waits[name]
        for field, origin in source.origins.items():
            moved = ("roles", name, field[-1]) if field in _MOVED else ("roles", name, *field)
            kept[moved if field in _MOVED or field[0] in _OF_A_ROLE else field] = origin
        source.origins = kept
        reading.put(("roles", name), role, place)
        one.data.pop("num_nodes", None)
        others.append((name, dict(_flat(one.data))))
        _merge(reading.data, one.data)
    first, rest = others[0], others[1:]
    for name, found in rest:
        if path := next((path for path in {**first[1], **found} if first[1].get(path) != found.get(path)), None):
            message = f"`{path}` of `{first[0]}` and `{name}` differ, and all roles of a job have the same"
            reading.refuse(key, message, "give all groups the same, or write a job of its own for each")
            return


def _without_order(reading: ManifestReading, group: Group, key: FieldPath) -> Group:
    """A group without what is about requests to its containers, or about their order, in which groups may differ."""
    containers, place = at(group, *_PODS, "containers"), (*key, *_PODS, "containers")
    given = [set(_OF_ORDER) & one.keys() for one in containers or () if isinstance(one, dict)]
    if not isinstance(containers, list) or not any(given):
        return group
    for name in sorted(set.union(*given)):
        reading.note((*place, name), _OF_ORDER[name])
    copied = copy.deepcopy(group)
    for one in copied["template"]["spec"]["template"]["spec"]["containers"]:
        for name in _OF_ORDER:
            one.pop(name, None)
    return copied


def _depends_on(
    reading: ManifestReading, group: Mapping[str, Any], key: FieldPath, waits: Mapping[str, list[str]]
) -> list[str]:
    """Groups that must succeed before this one; also those before a group that has to be ready, in `waits`."""
    needed = dict[str, None]()
    for one, place in reading.entries(group.get("dependsOn"), (*key, "dependsOn")):
        name = str(one.get("name"))
        if one.get("status") == "Complete":
            needed[name] = None
        else:
            reading.note(place, _TOGETHER)
            needed |= dict.fromkeys(waits.get(name, ()))
    return list(needed)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, repr(value)


def _merge(data: Group, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(data.get(name), dict):
            _merge(data[name], value)
        else:
            data[name] = value
