"""A LeaderWorkerSet of one group as the roles of a run file: a leader, with whom the job ends, and its workers.

Source: the API `leaderworkerset.x-k8s.io/v1` (0.8), with the variables of its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainworks.config.manifests.own_job import OwnJob
from trainworks.config.manifests.pod import PodPlace, read_template
from trainworks.config.manifests.reading import FILL_IN, Entry, Handler, ManifestReading, at
from trainworks.config.manifests.roles import read_roles
from trainworks.config.source import FieldPath

_UNROUTED = "no Service routes requests to the pods of a job"
_OF_SERVERS = {
    "ports": "`ports` open no port of a pod",
    **dict.fromkeys(("readinessProbe", "livenessProbe", "startupProbe"), _UNROUTED),
}
"""Fields of a container that are about requests to it."""


def read_leader_worker_set(reading: ManifestReading, spec: Any, key: FieldPath, own: OwnJob) -> None:
    """Read the `spec` of a LeaderWorkerSet, of which none is Trainworks' own."""
    place, group = (*key, "leaderWorkerTemplate"), at(spec, "leaderWorkerTemplate")
    handlers: dict[str, Handler] = {
        "replicas": None,
        "leaderWorkerTemplate": {
            "leaderTemplate": None,
            "workerTemplate": None,
            "size": None,
            "restartPolicy": "the job ends with its leader; `recover.max_restarts` says how often all start again",
            "subGroupPolicy": "all workers are one group",
            "volumeClaimTemplates": lambda _, at_key: reading.refuse(
                at_key, "Trainworks creates no volumes", "create the claim, and mount it in `volumes`"
            ),
            "persistentVolumeClaimRetentionPolicy": "Trainworks creates no volumes",
        },
        "rolloutStrategy": "a job is not changed while it runs",
        "startupPolicy": None
        if at(spec, "startupPolicy") == "LeaderCreated"
        else "roles start together, and find each other at `$TRAINWORKS_ADDRESSES_...`",
        "networkConfig": "the pods of a job always find each other by name",
    }
    reading.each(spec, key, handlers)
    if at(spec, "replicas") not in (None, 1):
        message = f"{at(spec, 'replicas')} groups of a leader and its workers are so many servers, and not one job"
        reading.refuse((*key, "replicas"), message, "set `replicas: 1`, and submit a job for each group")
    size = 1 if at(group, "size") is None else at(group, "size")
    if not isinstance(size, int) or size < 1:
        hint = FILL_IN if "$" in str(size) else None
        reading.refuse((*place, "size"), f"`size` must be a positive integer, got `{size}`", hint)
        return
    leader = "workerTemplate" if at(group, "leaderTemplate") is None else "leaderTemplate"
    if size == 1:
        reading.put(("num_nodes",), 1, (*place, "size"))
        _read_pods(reading, at(group, leader), (*place, leader), _variables("$MASTER_ADDR", size, "0"))
        return
    templates = {"leader": leader, "worker": "workerTemplate"}
    roles: list[Entry] = [({"name": role}, (*place, name)) for role, name in templates.items()]
    read_roles(reading, roles, {"targetReplicatedJobs": ["leader"]}, place, partial(_read_role, group, size))
    reading.data["roles"]["worker"].pop("may_end")  # a worker that ends is started again there


def _variables(leader: str, size: int, index: str) -> dict[str, str]:
    return {"LWS_LEADER_ADDRESS": f'"{leader}"', "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": index}


def _read_role(group: Any, size: int, reading: ManifestReading, entry: Entry) -> int:
    """Read the pods of a role as a job of their own; returns their number."""
    role, key = str(entry[0]["name"]), entry[1]
    index = "0" if role == "leader" else "$((TRAINWORKS_ROLE_INDEX + 1))"
    variables = _variables("${TRAINWORKS_ADDRESSES_LEADER%%:*}", size, index)
    _read_pods(reading, at(group, str(key[-1])), key, variables)
    return 1 if role == "leader" else size - 1


def _read_pods(reading: ManifestReading, template: Any, key: FieldPath, variables: Mapping[str, str]) -> None:
    """Read a template without what is about requests to its pods, or about their selection for them."""
    spec, kept = reading.mapping(at(template, "spec"), (*key, "spec")), list[Any]()
    for label in reading.mapping(at(template, "metadata", "labels"), (*key, "metadata", "labels")):
        reading.note((*key, "metadata", "labels", label), _UNROUTED)
    for container, place in reading.entries(spec.get("containers"), (*key, "spec", "containers")):
        for name in _OF_SERVERS.keys() & container.keys():
            reading.note((*place, name), _OF_SERVERS[name])
        kept.append({name: value for name, value in container.items() if name not in _OF_SERVERS})
    metadata = {
        name: value
        for name, value in reading.mapping(at(template, "metadata"), (*key, "metadata")).items()
        if name != "labels"
    }
    name = reading.data["name"]
    pods = PodPlace(hosts=rf"\b{name}-0(-\d+)?\b(\.[\w.-]+)?", computed=variables)
    read_template(reading, {"metadata": metadata, "spec": spec | {"containers": kept}}, key, pods)
