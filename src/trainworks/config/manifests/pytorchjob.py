"""A PyTorchJob as a run file: its master and its workers are nodes that are alike.

Source: API `kubeflow.org/v1` of the Training Operator 1.9, with the variables of its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainworks.config.manifests.jobset import hold, keep
from trainworks.config.manifests.pod import PodPlace, read_template
from trainworks.config.manifests.reading import Handler, ManifestReading, at, time_limit
from trainworks.config.source import FieldPath

_ROLES = ("Master", "Worker")
_FIXED = "the number of nodes is fixed: a JobSet starts all of them, or none"
_MEETING = "the nodes meet at `$MASTER_ADDR:$MASTER_PORT`"
_FREE = ("ports", "restartPolicy", "name", "stdin", "tty")
"""Fields of a container in which master and workers may differ."""


def read_pytorchjob(reading: ManifestReading, spec: Any, key: FieldPath, name: str) -> None:
    """Read the `spec` of a PyTorchJob."""
    replicas = reading.mapping(at(spec, "pytorchReplicaSpecs"), (*key, "pytorchReplicaSpecs"))
    envs = {"PET_NPROC_PER_NODE": "auto"}
    handlers: dict[str, Handler] = {
        "pytorchReplicaSpecs": None,
        "nprocPerNode": lambda value, _: envs.update(PET_NPROC_PER_NODE=str(value)),
        "runPolicy": partial(_run_policy, reading),
        "elasticPolicy": lambda value, place: _elastic_policy(reading, value, place, envs),
    }
    reading.each(spec, key, handlers)
    place = (*key, "pytorchReplicaSpecs")
    roles = [role for role in _ROLES if role in replicas]
    for role in replicas.keys() - set(_ROLES):
        reading.refuse((*place, role), f"unknown role `{role}`", "write `Master` and `Worker`")
    if not roles:
        reading.refuse(place, "there is neither a `Master` nor a `Worker`", "add a `Worker` with its `template`")
        return
    _read_roles(reading, replicas, roles, place)
    hosts = rf"\b{name}-(master|worker)-\d+\b"
    template = at(replicas[roles[-1]], "template")
    read_template(
        reading, template, (*place, roles[-1], "template"), PodPlace(main=("pytorch",), hosts=hosts, envs=envs)
    )
    if at(spec, "elasticPolicy") is not None and "run" in reading.data:
        reading.data["run"] = f'export PET_RDZV_ENDPOINT="$MASTER_ADDR:$MASTER_PORT"\n{reading.data["run"]}'


def _read_roles(reading: ManifestReading, replicas: Mapping[str, Any], roles: list[str], key: FieldPath) -> None:
    """Count the nodes, and check that they are alike."""
    restarts = "`runPolicy.backoffLimit` says how often the job starts again"
    for role in roles:
        handlers: dict[str, Handler] = {"replicas": None, "template": None, "restartPolicy": None}
        if at(replicas[role], "restartPolicy") not in (None, "Never"):
            handlers["restartPolicy"] = restarts
        reading.each(replicas[role], (*key, role), handlers)
    counts = [at(replicas[role], "replicas") for role in roles]
    numbers = [1 if count is None else count for count in counts]
    for role, number in zip(roles, numbers, strict=True):
        if not isinstance(number, int):
            hint = "fill it in, as with `envsubst < FILE`" if "$" in str(number) else None
            reading.refuse((*key, role, "replicas"), f"`replicas` must be an integer, got `{number}`", hint)
    if all(isinstance(number, int) for number in numbers):
        reading.put(("num_nodes",), sum(numbers), (*key, roles[-1], "replicas"))
    if len(roles) > 1 and (path := _difference(*(_comparable(at(replicas[role], "template")) for role in roles))):
        message = f"all nodes of a run are alike, and `{'.'.join(path)}` of `Master` and `Worker` differ"
        reading.refuse((*key, "Worker", "template", *path), message, "give both the same `template`")


def _comparable(template: Any) -> Any:
    """A template without what master and workers may have of their own."""
    if isinstance(template, Mapping):
        return {key: _comparable(value) for key, value in template.items() if key not in _FREE}
    return [_comparable(one) for one in template] if isinstance(template, list) else template


def _difference(one: Any, other: Any, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Path of the first difference; empty if there is none."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        parts = [(str(key), one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(str(index), *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        return () if one == other else path or ("template",)
    return next((found for key, left, right in parts if (found := _difference(left, right, (*path, key)))), ())


def _run_policy(reading: ManifestReading, policy: Any, key: FieldPath) -> None:
    handlers: dict[str, Handler] = {
        "backoffLimit": reading.putter("recover", "max_restarts"),
        "activeDeadlineSeconds": partial(time_limit, reading),
        "ttlSecondsAfterFinished": partial(keep, reading),
        "suspend": partial(hold, reading),
        "cleanPodPolicy": "pods that have ended stay until the job is deleted",
        "schedulingPolicy": "`cluster.kubernetes.queue` starts all nodes together",
        "managedBy": "JobSet's controller runs the job",
    }
    reading.each(policy, key, handlers)


def _elastic_policy(reading: ManifestReading, policy: Any, key: FieldPath, envs: dict[str, str]) -> None:
    def variable(name: str) -> Handler:
        return lambda value, _: envs.update({name: str(value)})

    def backend(value: Any, place: FieldPath) -> None:
        if value in ("c10d", "C10d"):
            envs["PET_RDZV_BACKEND"] = "c10d"
        else:
            reading.note(place, _MEETING)

    handlers: dict[str, Handler] = {
        "maxRestarts": variable("PET_MAX_RESTARTS"),
        "nProcPerNode": variable("PET_NPROC_PER_NODE"),
        "rdzvId": variable("PET_RDZV_ID"),
        "rdzvBackend": backend,
        **dict.fromkeys(("minReplicas", "maxReplicas", "metrics"), _FIXED),
        **dict.fromkeys(("rdzvHost", "rdzvPort", "rdzvConf", "standalone"), _MEETING),
    }
    reading.each(policy, key, handlers)
