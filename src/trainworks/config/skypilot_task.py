"""Keys of a SkyPilot task that a run file keeps in `cluster.skypilot`.

A task file is a run file: its keys come with the names that SkyPilot gave them, and stand where SkyPilot has them.
Source: the task YAML of SkyPilot 0.14.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainworks.config.command import JobRole, Resources
from trainworks.config.source import FieldPath

Moves = dict[FieldPath, FieldPath]
"""New place of a key by the one in the file."""

RENTED = ("instance_type", "disk_size", "max_hourly_cost", "use_spot")
"""Keys of `resources` that have the same name in `cluster.skypilot`."""
PLACES = ("cloud", "region", "zone")
HANDED_ON = (
    *("accelerator_args", "any_of", "autostop", "disk_tier", "ephemeral_storage", "hooks", "job_recovery", "labels"),
    *("local_disk", "network_tier", "ordered", "ports", "priority", "priority_class", "volumes"),
)
"""Keys of `resources` that no option stands for."""
TASK_KEYS = (
    *("config", "event_callback", "experimental", "inputs", "managed_secrets", "outputs", "volumes"),
    "volume_mounts",
)
"""Keys of a task that no option stands for."""
ROLE_INDEX = "export TRAINWORKS_ROLE_INDEX=$SKYPILOT_NODE_RANK\n"
"""First line of the `run` of a role that is written as a task of a job group."""
MOVED = ("file_mounts", "secrets", *TASK_KEYS)
"""Keys of a task that a run file has elsewhere."""
NOT_A_JOB = {
    "service": (
        "`service` describes servers behind a load balancer, which do not end; a run is a job",
        "remove `service` to start one server with `run`",
    ),
    "pool": (
        "`pool` describes workers that wait for jobs; a run is a job",
        "submit each job; the queue shares the nodes",
    ),
}
"""Keys that make something else than a job of the file: why it is refused, and what to do instead."""
_RENAMED = {"gpus": "accelerators", "spot_recovery": "job_recovery"}
"""Other names that SkyPilot has for keys of `resources`."""

_GROUP_NAME = "SKYPILOT_JOBGROUP_NAME"
_CHOSEN = "SkyPilot alone chooses among its entries; what one of them requests, write as `resources`"
_WITHOUT_EFFECT = {
    "any_of": _CHOSEN,
    "ordered": _CHOSEN,
    "file_mounts": "Trainworks copies no files to these nodes; they must have them at these paths",
    "ports": "Trainworks opens no ports",
    "autostop": "a job releases its nodes when it ends",
    "priority": "`job.priority` orders the jobs of this queue",
    "workdir": "Trainworks clones no repository, and starts in the current folder",
    "termination_delay": "a role that does not decide gets SIGTERM when the others have succeeded",
    "inter_connection": "roles find each other at `$TRAINWORKS_ADDRESSES_...`",
}


def is_task(data: Mapping[str, Any]) -> bool:
    """Whether a mapping has the keys of a command, or of a task of SkyPilot, and no workload."""
    return "workload" not in data and any(key in data for key in ("run", "setup", "resources", "service", "pool"))


def read_task(data: Mapping[str, Any]) -> tuple[dict[str, Any], Moves]:
    """A mapping with the keys of a SkyPilot task as that of a run file, and which keys moved where.

    A key that is set in `cluster.skypilot`, too, keeps the value there, and secrets of both are secret. An unknown key
    stays where it is, and is an error later. A run file without such keys comes back as it was.
    """
    rest = {key: value for key, value in data.items() if value is not None or key not in MOVED}
    cluster = cluster_of_task(rest.get("cluster"))
    if not is_task(rest) or cluster is None:
        return dict(data), {}
    options, moves = dict(cluster.get("skypilot") or {}), dict[FieldPath, FieldPath]()

    def give(name: str, value: Any, *origins: FieldPath) -> None:
        options.setdefault(name, value)
        moves.update(dict.fromkeys(origins, ("cluster", "skypilot", name)))

    _read_resources(rest, give, moves)
    if "file_mounts" in rest:
        # a bucket with its own options is handed on as it is
        mounts = rest.pop("file_mounts")
        is_plain = not isinstance(mounts, dict) or all(isinstance(source, str) for source in mounts.values())
        give("file_mounts" if is_plain else "mounts", mounts, ("file_mounts",))
    _read_secrets(rest, options, moves)
    is_cloned = isinstance(rest.get("workdir"), dict) and "url" in rest["workdir"]
    if task := {key: rest.pop(key) for key in (*TASK_KEYS, *(["workdir"] if is_cloned else ())) if key in rest}:
        give("task", task, *((key,) for key in task))
    if options:
        rest["cluster"] = cluster | {"skypilot": options}
    return rest, moves


def changed_elsewhere(
    resources: Resources | None, roles: Mapping[str, JobRole], *, chooses: bool
) -> Iterator[tuple[FieldPath, str]]:
    """Requests that mean something else where SkyPilot does not rent the nodes: the place, and what becomes of it.

    Args:
        resources: of the run file.
        roles: of the run file, each with resources of its own.
        chooses: whether one of several accelerators is chosen there: that of this machine, or of a description.
    """
    yield from _changed(resources, (), chooses=chooses)
    for name, role in roles.items():
        yield from _changed(role.resources, ("roles", name), chooses=chooses)
        if _GROUP_NAME in f"{role.setup or ''}{role.run}":
            what = "is set by SkyPilot alone: the addresses of a role are in `$TRAINWORKS_ADDRESSES_...`"
            yield ("roles", name, "run"), f"`${_GROUP_NAME}` {what}"


def _changed(resources: Resources | None, start: FieldPath, *, chooses: bool) -> Iterator[tuple[FieldPath, str]]:
    wanted, path = list((resources and resources.accelerators) or ()), (*start, "resources", "accelerators")
    if parts := [str(one) for one in wanted if one.share]:
        yield path, f"`{', '.join(parts)}` becomes a whole accelerator: SkyPilot alone shares one"
    if len(wanted) > 1 and not chooses:
        yield path, f"of `{', '.join(map(str, wanted))}` the first is requested: SkyPilot alone chooses"


def kept_otherwise(roles: Mapping[str, JobRole]) -> Iterator[tuple[FieldPath, str]]:
    """Rules of roles that a job group of SkyPilot does not keep: the place, and what happens instead."""
    deciding = [name for name, role in roles.items() if role.decides]
    if len(deciding) > 1:
        what = f"after a failure of one of {', '.join(f'`{name}`' for name in deciding)} SkyPilot lets the others end"
        yield ("roles",), f"{what} by themselves, and then fails the job"
    for name, role in roles.items():
        if not role.decides:
            early = "" if role.may_end else ", or ends early"
            yield ("roles", name, "decides"), f"SkyPilot lets the other roles run on when `{name}` fails{early}"


def ignored_keys(moves: Moves) -> Iterator[tuple[FieldPath, str]]:
    """Moved keys that an engine other than SkyPilot ignores, each with the reason."""
    for origin, place in moves.items():
        if place[:2] == ("cluster", "skypilot") or (place[0] == "roles" and place[2:3] == ("skypilot",)):
            yield origin, _WITHOUT_EFFECT.get(str(origin[-1]), "it is about nodes that SkyPilot rents")


def cluster_of_task(cluster: Any) -> dict[str, Any] | None:
    """The `cluster` of a run file as a mapping; None if it cannot hold the options of SkyPilot."""
    if cluster is None:
        return {}
    if isinstance(cluster, str):
        return {"engine": cluster} if cluster in ("local", "skypilot", "kubernetes", "slurm") else None
    is_open = isinstance(cluster, dict) and isinstance(cluster.get("skypilot") or {}, dict)
    return dict(cluster) if is_open else None


def _read_resources(rest: dict[str, Any], give: Callable[..., None], moves: Moves) -> None:
    found = rest.get("resources")
    if not isinstance(found, dict):
        return
    resources, renamed = _with_current_names(found)
    moves.update({("resources", old): ("resources", new) for new, old in renamed.items()})
    for name in RENTED:
        if name in resources:
            give(name, resources.pop(name), ("resources", name))
    if isinstance(image := resources.get("image_id"), str):
        give("image", image, ("resources", "image_id"))
        del resources["image_id"]
    if infra := _infra_of(resources):
        names = [name for name in ("infra", *PLACES) if name in resources]
        give("infra", [infra], *(("resources", name) for name in names))
        resources = {key: value for key, value in resources.items() if key not in names}
    if handed_on := {key: resources.pop(key) for key in (*HANDED_ON, "image_id") if key in resources}:
        give("resources", handed_on, *(("resources", renamed.get(key, key)) for key in handed_on))
    rest["resources"] = resources


def _with_current_names(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of `resources` that have a value, a disk in GB; and the name in the file of each that has two."""
    resources = {key: value for key, value in found.items() if value is not None}
    renamed = {new: old for old, new in _RENAMED.items() if old in resources and new not in resources}
    for new, old in renamed.items():
        resources[new] = resources.pop(old)
    if isinstance(size := resources.get("disk_size"), str):
        match = re.fullmatch(r"(\d+)\s*([gt])b?", size.strip(), re.IGNORECASE)  # in GB, of which a TB has 1024
        if match:
            resources["disk_size"] = int(match[1]) * (1024 if match[2] in "tT" else 1)
    return resources, renamed


def _infra_of(resources: Mapping[str, Any]) -> str | None:
    """`cloud`, `region` and `zone` as one place: `aws/us-east-1`, `*/us-east-1` for a region of any cloud."""
    if "infra" in resources:
        return str(resources["infra"])
    places = [str(resources.get(name, "*")) for name in PLACES]
    while places and places[-1] == "*":
        places.pop()
    return "/".join(places)


def _read_secrets(rest: dict[str, Any], options: dict[str, Any], moves: Moves) -> None:
    """Secrets are variables that SkyPilot hides; one without a value takes it from the shell."""
    secrets, variables = rest.get("secrets"), rest.get("envs") or {}
    if isinstance(secrets, dict) and isinstance(variables, dict):
        rest["envs"] = {**rest.pop("secrets"), **variables}
        own = options.get("secrets") or []
        if secrets and isinstance(own, list):
            options["secrets"] = [*own, *(name for name in map(str, secrets) if name not in own)]
        moves |= {("secrets", str(name)): ("envs", str(name)) for name in secrets}
