"""Texts that tasks of the roles write on a host, from the same templates and variables that Ansible fills in there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from jinja2 import Environment

_FOR_ALL_TO_READ = ("0644", "0755")


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A file that a task writes."""

    path: str
    text: str
    mode: str


@dataclass(frozen=True)
class TaskTexts:
    """What the tasks of a rendered project write; `files` are the texts of the project by path.

    Left out are tasks that loop, that ask for facts of the host, or that write secrets, and files of tasks that another
    file includes.
    """

    files: Mapping[str, str]

    def of(self, host: str) -> Iterator[WrittenText]:
        """Texts of a host of the inventory, in the order of the tasks."""
        names = [name for name, hosts in self._groups.items() if host in hosts]
        variables: dict[str, Any] = dict(self._yaml("group_vars/all.yaml"))
        for name in names:
            variables |= self._yaml(f"group_vars/{name}.yaml")
        variables |= {"inventory_hostname": host, "group_names": names, "groups": self._groups, "hostvars": self._hosts}
        for play in self._yaml("site.yaml"):
            if play["hosts"] != "all" and not set(names).intersection(play["hosts"].split(":")):
                continue
            for role in play.get("roles", ()):
                if self._holds(role.get("when"), variables):
                    yield from self._of_tasks(role["role"], self._tasks(role["role"]), variables)

    def _of_tasks(
        self, role: str, tasks: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> Iterator[WrittenText]:
        for task in tasks:
            if "loop" in task or "ansible_facts" in str(task.get("when")):
                continue
            copied, filled = task.get("ansible.builtin.copy", {}), task.get("ansible.builtin.template", {})
            text = copied.get("content") or self.files.get(f"roles/{role}/templates/{filled.get('src')}")
            of_task = {**copied, **filled}
            if "block" in task and self._holds(task.get("when"), variables):
                yield from self._of_tasks(role, task["block"], variables)
            elif text and of_task["mode"] in _FOR_ALL_TO_READ and self._holds(task.get("when"), variables):
                path, text = (jinja_template(each).render(variables) for each in (of_task["dest"], text))
                yield WrittenText(path, text, of_task["mode"].lstrip("0"))

    def _holds(self, condition: object, variables: Mapping[str, Any]) -> bool:
        return condition is None or bool(_condition(str(condition))(**variables))

    def _tasks(self, role: str) -> Sequence[Mapping[str, Any]]:
        return self._yaml(f"roles/{role}/tasks/main.yaml") or ()

    def _yaml(self, path: str) -> Any:
        return _read(self.files[path]) if path in self.files else {}

    @cached_property
    def _hosts(self) -> Mapping[str, Any]:
        hosts: Mapping[str, Any] = self._yaml("inventory.yaml")["all"]["hosts"]
        return hosts

    @cached_property
    def _groups(self) -> dict[str, list[str]]:
        children = self._yaml("inventory.yaml")["all"]["children"]
        return {name: list(group["hosts"]) for name, group in children.items()}


@cache
def _read(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # it is the safe one


@cache
def _environment() -> Environment:
    """Jinja as Ansible sets it up, with those of its filters that texts of the roles use."""
    from jinja2 import Environment  # noqa: PLC0415, 20 ms that `deploy check` saves

    made = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701  # no page of the web
    made.filters["extract"] = lambda key, container, *more: _below(container[key], more)
    made.filters["flatten"] = lambda lists: [one for each in lists for one in each]
    made.filters["split"] = str.split
    made.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    return made


def _below(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        value = value[key]
    return value


@cache
def jinja_template(text: str) -> Any:
    """A template as Ansible reads it."""
    return _environment().from_string(text)


@cache
def _condition(text: str) -> Any:
    return _environment().compile_expression(text, undefined_to_none=False)
