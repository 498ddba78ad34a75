"""A job group of SkyPilot as the roles of a run file: tasks that run at the same time and find each other by name.

Source: the job groups of SkyPilot 0.14, a header and a task for each role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainworks.config.skypilot_task import ROLE_INDEX, Moves, cluster_of_task, read_task
from trainworks.config.source import FieldPath, Source
from trainworks.errors import TrainworksError, UsageError, suggest

HEADER = ("name", "execution", "primary_tasks", "termination_delay", "inter_connection")
"""Keys of the first document of a job group; the first two are those of a pipeline, too."""
_OF_THE_JOB = ("termination_delay", "inter_connection")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")
_SET_BY_ROLES = re.compile(r"TRAINWORKS_(ROLE(_SIZE)?|PORT|ADDRESSES_\w+)")
"""Variables that every engine sets for a role; in a group that was written here they are among its `envs`."""

Values = dict[str, Any]
Task = tuple[Source, Values]
"""A document and its values."""


def is_job_group(header: Mapping[str, Any]) -> bool:
    """Whether the tasks behind a header run at the same time."""
    return header.get("execution") == "parallel"


def read_job_group(header: Task, tasks: Sequence[Task], whole: Source) -> tuple[Values, Moves, list[TrainworksError]]:
    """The values of a run file with a role for each task, the keys of the group that moved, and problems on the way.

    What all tasks request of SkyPilot alike is in `cluster.skypilot`, the rest in `skypilot` of each role. `whole` gets
    the lines of all fields.
    """
    source, values = header
    whole.adopt(source, ())
    wrong = _wrong(header, tasks)
    problems: list[TrainworksError] = [
        UsageError(message, place=source.place(key), hint=hint) for key, message, hint in wrong
    ]
    roles, moves, primary = dict[str, Values](), Moves(), values.get("primary_tasks") or []
    for document, task in tasks:
        if (name := _name_of(document, task, roles, problems)) is None:
            continue
        role, moved = _role(task)
        whole.adopt(document, ("roles", name))
        moves |= {("roles", name, *origin): ("roles", name, *place) for origin, place in moved.items()}
        roles[name] = role | ({} if not primary or name in primary else {"decides": False, "may_end": True})
    folders = {name: role.pop("workdir", None) for name, role in roles.items()}
    if len(set(map(repr, folders.values()))) > 1:
        message = f"`workdir` of {' and '.join(f'`{name}`' for name in roles)} differ, and all roles have the same"
        hint = "give every task the same `workdir`, and change the folder in its command"
        problems.append(UsageError(message, place=source.name, hint=hint))
    data: Values = {"name": str(values.get("name")), "roles": roles}
    if folder := next(iter(folders.values()), None):
        data["workdir"] = folder
    options = _common(roles, moves)
    if group := {key: values[key] for key in _OF_THE_JOB if values.get(key) is not None}:
        options["group"] = group
        moves |= {(key,): ("cluster", "skypilot", "group", key) for key in group}
    cluster = cluster_of_task(values.get("cluster"))
    if cluster is None:
        data["cluster"] = values["cluster"]
    elif cluster or options:
        data["cluster"] = cluster | {"skypilot": options | (cluster.get("skypilot") or {})}
    whole.move(moves)
    return data, moves, problems


def _wrong(header: Task, tasks: Sequence[Task]) -> list[tuple[FieldPath, str, str | None]]:
    """Problems of the header: the key, what it is, and a hint."""
    values, names = header[1], [task.get("name") for _, task in tasks]
    primary = values.get("primary_tasks") or []
    if not isinstance(values.get("name"), str):
        return [(("name",), "a job group has a `name`", "add it to the first document")]
    if extra := [key for key in values if key not in (*HEADER, "cluster")]:
        hint = suggest(str(extra[0]), HEADER, otherwise="write it into each task")
        return [((extra[0],), f"unknown key `{extra[0]}` of a job group", hint)]
    if not isinstance(primary, list):
        return [(("primary_tasks",), "`primary_tasks` is a list of names", f"write `[{names[0] if names else 'a'}]`")]
    unknown = [one for one in primary if one not in names]
    known = f"the tasks are {', '.join(map(str, names))}"
    return [(("primary_tasks",), f"`primary_tasks` names an unknown task `{one}`", known) for one in unknown]


def _name_of(
    document: Source, task: Mapping[str, Any], others: Mapping[str, Any], problems: list[TrainworksError]
) -> str | None:
    """Name of a task that a role can have; None after a problem."""
    name, hint = task.get("name"), "write lower-case letters, digits and `-`, 30 at most, and call its nodes so"
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in others:
        return name
    message = f"`{name}` is the name of two tasks" if name in others else f"`{name}` cannot be the name of a role"
    if name is None:
        message = "every task of a job group has a `name`, by which the others find it"
    problems.append(
        UsageError(message, place=document.place(("name" if "name" in task else next(iter(task)),)), hint=hint)
    )
    return None


def _role(task: Mapping[str, Any]) -> tuple[Values, Moves]:
    """A task as a role, and which of its keys moved where."""
    data, moved = read_task({key: value for key, value in task.items() if key != "cluster"})
    moves = {origin: place[1:] if place[:2] == ("cluster", "skypilot") else place for origin, place in moved.items()}
    options = data.pop("cluster", {}).get("skypilot", {})
    role = {key: value for key, value in data.items() if key != "name"}
    if "cluster" in task:
        role["cluster"] = task["cluster"]  # no key of a task
    if "num_nodes" in role:
        role["nodes"] = role.pop("num_nodes")
        moves["num_nodes",] = ("nodes",)
    if isinstance(envs := role.get("envs"), dict):
        kept = {name: value for name, value in envs.items() if not _SET_BY_ROLES.fullmatch(str(name))}
        role = {key: value for key, value in role.items() if key != "envs"} | ({"envs": kept} if kept else {})
    if isinstance(script := role.get("run"), str):
        role["run"] = script.removeprefix(ROLE_INDEX)
    recovery = options.get("resources", {}).get("job_recovery")
    if isinstance(recovery, dict) and "max_restarts_on_errors" in recovery:
        role["restarts"] = recovery["max_restarts_on_errors"]
        rest = {key: value for key, value in recovery.items() if key != "max_restarts_on_errors"}
        resources = {key: value for key, value in options["resources"].items() if key != "job_recovery"}
        options["resources"] = resources | ({"job_recovery": rest} if rest else {})
        if not rest:
            moves["resources", "job_recovery"] = ("restarts",)
        if not options["resources"]:
            del options["resources"]
    return role | ({"skypilot": options} if options else {}), moves


def _common(roles: Mapping[str, Values], moves: Moves) -> Values:
    """Options of SkyPilot that all roles have alike, taken out of them."""
    every = [role.get("skypilot", {}) for role in roles.values()]
    first = every[0] if every else {}
    shared = {key: value for key, value in first.items() if all(key in one and one[key] == value for one in every)}
    for name, role in roles.items():
        if own := {key: value for key, value in role.pop("skypilot", {}).items() if key not in shared}:
            role["skypilot"] = own
        for origin, place in moves.items():
            if place[:3] == ("roles", name, "skypilot") and place[3] in shared:
                moves[origin] = ("cluster", *place[2:])
    return shared
