"""What an apply delivers: the files of each host, as the roles write them, and the record of the hosts that have them.

`diff` finds a file that was changed by the tasks of the roles, `verify` by its SHA-256, owner and mode here; a test
holds one against the other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainworks.config.stack import Stack
from trainworks.deploy import file_systems
from trainworks.deploy.directory import SSSD_CONF, with_password
from trainworks.deploy.layers import operating_system
from trainworks.errors import UsageError
from trainworks.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment

SLURM_ROLES = frozenset({"login", "controller", "database", "compute"})
_WRITERS = ("copy", "template", "blockinfile", "lineinfile", "replace")
_INCLUDES = ("include_tasks", "import_tasks")


@dataclass(frozen=True, slots=True)
class DeliveredFile:
    """A file on a host, or those lines of a file that are a task's."""

    path: str
    text: str | bytes | None
    """None for a secret that this project has not: then owner and mode alone are compared."""
    mode: str | None = "644"
    """None, as `owner`, where a task leaves it as it is."""
    owner: str | None = "root:root"
    part: str = ""
    """Name of the task whose lines these are; empty for a whole file."""
    selects: tuple[str, ...] = ("cat",)
    """Command that prints what is compared of the file on its standard input."""

    @property
    def name(self) -> str:
        """Path, and the part of the file."""
        return f"{self.path}: {self.part}" if self.part else self.path

    def difference(self, found: str) -> tuple[str, str]:
        """What differs in `SHA256 MODE OWNER` of the file on a host, and what is expected there; empty if nothing.

        >>> DeliveredFile("/etc/munge/munge.key", None, "400", "munge:munge").difference("ab 777 munge:munge")
        ('mode 777', 'mode 400')
        >>> DeliveredFile("/etc/hosts", "", None, None, "Remove 127.0.1.1").difference("ab 644 root:root")
        ('lines that the task removes', 'none')
        """
        sha256, has = None if self.text is None else _sha256(self.text), found.split() or [_sha256("")] * 3
        if self.part and has[0] != sha256 and _sha256("") in (has[0], sha256):
            return ("lines that the task removes", "none") if self.text == "" else ("missing", "lines of the task")
        if not found:
            return ("", "") if self.part else ("missing", f"mode {self.mode}, {self.owner}")
        pairs = zip(("sha256", "mode", "owner"), has, (sha256, self.mode, self.owner), strict=True)
        wrong = [
            (f"{key} {is_[:12]}", f"{key} {wanted[:12]}") for key, is_, wanted in pairs if wanted not in (is_, None)
        ]
        return ", ".join(one for one, _ in wrong), ", ".join(other for _, other in wrong)


def parts_of_slurm(stack: Stack, roles: Collection[str]) -> frozenset[str]:
    """Roles of a host that have a part of Slurm; none without it."""
    return SLURM_ROLES.intersection(roles) if stack.slurm is not None else frozenset()


def exporters(stack: Stack) -> dict[str, str]:
    """Options of the exporter of Trainworks on each host that runs one; node_exporter has all that is left.

    The first controller gives the queue, and the runs of all users that it finds there: a second one would count them
    twice. Compute nodes give their GPUs and their health. Without Slurm, no queue knows all runs.
    """
    first, found = next(iter(stack.hosts("controller")), None), dict[str, str]()
    for group in stack.nodes:
        for name in group.names:
            collected = [*(["runs", "queue"] * (name == first)), *(["gpus", "health"] * ("compute" in group.roles))]
            slurm = " --cluster slurm" if name == first else ""
            found |= {name: f"--collect {','.join(collected)}{slurm}"} if collected else {}
    return found


def delivered_files(
    stack: Stack, files: Mapping[str, str], secrets: Mapping[str, bytes]
) -> dict[str, dict[str, DeliveredFile]]:
    """Files of each host by name, from the tasks of the project's roles, its texts, and those below its `secrets`."""
    options, tasks = exporters(stack), TaskTexts(files, stack.own.roles, operating_system(stack).manager)
    found: dict[str, dict[str, DeliveredFile]] = {}
    for group in stack.nodes:
        for host in group.names:
            hidden = _secret(stack, files, secrets, frozenset(group.roles), has_exporter=host in options)
            found[host] = {each.name: each for each in (*tasks.of(host), *hidden)}
    return found


def secrets_of(project: Path) -> dict[str, bytes]:
    """Each secret of a project, by its name; empty before the first apply."""
    folder = project / "secrets"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def secrets_to_rotate(stack: Stack) -> dict[str, tuple[str, int]]:
    """File and length of each secret of a stack that can be replaced."""
    found = {"exporter-token": ("exporter_token", 32)}
    found |= {"munge": ("munge.key", 128), "database": ("slurm_database", 32)} if stack.slurm is not None else {}
    return found | ({"grafana": ("grafana", 32)} if stack.monitoring is not None and stack.monitoring.grafana else {})


def _secret(
    stack: Stack, files: Mapping[str, str], secrets: Mapping[str, bytes], roles: frozenset[str], *, has_exporter: bool
) -> Iterator[DeliveredFile]:
    drawn = {name: secret.strip() for name, secret in secrets.items()}
    if parts_of_slurm(stack, roles):
        yield DeliveredFile("/etc/munge/munge.key", drawn.get("munge.key"), "400", "munge:munge")
    if "database" in roles and (template := files.get("roles/scheduler/templates/slurmdbd.conf.j2")):
        password = drawn.get("slurm_database", b"").decode()
        text = template.replace("{{ slurm_database_password }}", password) if password else None
        yield DeliveredFile("/etc/slurm/slurmdbd.conf", text, "600", "slurm:slurm")
    if template := files.get(SSSD_CONF):
        text = with_password(template, drawn.get("directory.password", b"").decode())
        group = operating_system(stack).sssd_group
        yield DeliveredFile("/etc/sssd/sssd.conf", text, "600" if group == "root" else "640", f"root:{group}")
    for key in file_systems.secret_files(stack):
        yield DeliveredFile(key["path"], secrets.get(key["secret"]), "600")
    token = drawn["exporter_token"] + b"\n" if "exporter_token" in drawn else None
    if stack.monitoring is not None and has_exporter:
        yield DeliveredFile("/etc/trainworks/exporter.token", token, "600", "trainworks-exporter:root")
    if stack.monitoring is not None and "monitoring" in roles:
        yield DeliveredFile("/etc/prometheus/exporter.token", token, "640", "root:prometheus")


@dataclass(frozen=True)
class TaskTexts:
    """What the tasks of a rendered project write; `files` are the texts of the project by path.

    Left out are secrets, texts with a variable that is itself a template, tasks whose condition or loop asks what the
    host answered to an earlier one, and lines that a task puts beside others without marks.
    """

    files: Mapping[str, str]
    own_roles: Collection[str] = ()
    """Roles of the user, whose tasks may use all that Ansible has."""
    manager: str = ""
    """Package manager of the hosts, the one fact that texts depend on."""

    def of(self, host: str) -> Iterator[DeliveredFile]:
        """Texts of a host of the inventory, in the order of the tasks."""
        names = [name for name, hosts in self._groups.items() if host in hosts and name != "all"]
        variables = {"inventory_hostname": host, "group_names": names, "groups": self._groups, "hostvars": self._hosts}
        variables["ansible_facts"] = {"pkg_mgr": self.manager}
        for name in ("all", *names):
            variables |= self._yaml(f"group_vars/{name}.yaml")
        variables |= self._hosts[host]
        for play in self._yaml("site.yaml"):
            if play["hosts"] != "all" and not set(names).intersection(play["hosts"].split(":")):
                continue
            for role in play.get("roles", ()):
                if role["role"] not in self.own_roles and _holds(role.get("when"), variables):
                    yield from self._of_tasks(role["role"], self._tasks(role["role"], "main.yaml"), variables)

    def _tasks(self, role: str, name: str) -> Sequence[Mapping[str, Any]]:
        return self._yaml(f"roles/{role}/tasks/{name}") or ()

    def _of_tasks(
        self, role: str, tasks: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> Iterator[DeliveredFile]:
        for task in tasks:
            modules = {name: task.get(f"ansible.builtin.{name}") for name in (*_WRITERS, *_INCLUDES)}
            (module, arguments), *_ = [*((name, each) for name, each in modules.items() if each), ("", None)]
            if task.get("no_log") or not (module or "block" in task):
                continue
            for scope in _scopes(task, variables):
                if not _holds(task.get("when"), scope):
                    continue
                if module in _WRITERS:
                    yield from self._written(role, module, task, scope)
                else:
                    inner = task["block"] if "block" in task else self._tasks(role, _value(arguments, scope))
                    yield from self._of_tasks(role, inner, scope)

    def _written(
        self, role: str, module: str, task: Mapping[str, Any], scope: Mapping[str, Any]
    ) -> Iterator[DeliveredFile]:
        given = task[f"ansible.builtin.{module}"]
        path, mode = (_filled(given.get(key, ""), scope) for key in ("path", "mode"))
        if module in ("copy", "template"):
            source = _filled(given.get("src", ""), scope)
            folder = "files" if module == "copy" else "templates"
            text = given.get("content") or self.files.get(f"roles/{role}/{folder}/{source}")
            if text is not None and (module == "template" or "content" in given):
                text = _filled(text, scope)
                text = None if "{{" in text else text
            if text is not None:
                path = _filled(given["dest"], scope)
                yield DeliveredFile(path, text, mode.lstrip("0"), _owner(given, scope))
        elif module == "blockinfile":
            marker, block = (_filled(given[key], scope) for key in ("marker", "block"))
            begin, end = (marker.replace("{mark}", mark) for mark in ("BEGIN", "END"))
            text = "".join(f"{line}\n" for line in (begin, *block.splitlines(), end)) if block else ""
            between = ",".join("/^" + re.sub(r"([][/.*^$\\])", r"\\\1", mark) + "$/" for mark in (begin, end))
            yield DeliveredFile(path, text, mode.lstrip("0") or None, None, task["name"], ("sed", "-n", f"{between}p"))
        elif "line" not in given:
            expression = _filled(given["regexp"], scope)
            yield DeliveredFile(path, "", None, None, task["name"], ("grep", "--perl-regexp", "--", expression))

    def _yaml(self, path: str) -> Any:
        return _read(self.files[path]) if path in self.files else {}

    @cached_property
    def _hosts(self) -> Mapping[str, Any]:
        hosts: Mapping[str, Any] = self._yaml("inventory.yaml")["all"]["hosts"]
        return hosts

    @cached_property
    def _groups(self) -> dict[str, list[str]]:
        children = self._yaml("inventory.yaml")["all"]["children"]
        found = {name: list(group["hosts"]) for name, group in children.items()}
        return {**found, "all": list(self._hosts)}


def _scopes(task: Mapping[str, Any], variables: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Variables of each turn of a task's loop; of the task alone without one."""
    scope = {**variables, **{name: _value(each, variables) for name, each in task.get("vars", {}).items()}}
    if "loop" not in task:
        yield scope
        return
    control = task.get("loop_control", {})
    for number, item in enumerate(_value(task["loop"], scope)):
        yield {**scope, control.get("loop_var", "item"): item, control.get("index_var", "index"): number}


def _value(given: Any, variables: Mapping[str, Any]) -> Any:
    """A value with its templates filled in; one that is a single expression keeps its type."""
    if isinstance(given, list):
        return [_value(each, variables) for each in given]
    if isinstance(given, dict):
        return {key: _value(each, variables) for key, each in given.items()}
    if not isinstance(given, str) or "{{" not in given:
        return given
    single = re.fullmatch(r"\{\{((?:(?!\}\}).)*)\}\}", given, re.DOTALL)
    return _compiled(single[1], expression=True)(variables) if single else _filled(given, variables)


def _owner(given: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
    """Owner and group that a task gives; a number is that of a user of the stack."""
    owner, group = (_filled(given.get(key, "root"), scope) for key in ("owner", "group"))
    names = {str(user["uid"]): user["name"] for user in scope.get("users", ())}
    return f"{names.get(owner, owner)}:{group}"


@cache
def _read(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # it is the safe one


@cache
def _environment() -> Environment:
    """Jinja as Ansible sets it up, with those of its filters that texts of the roles use."""
    from jinja2 import ChainableUndefined, Environment  # noqa: PLC0415, 20 ms that `deploy check` saves

    # what a host answers is not known here, and neither is anything of it
    made = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=ChainableUndefined)  # noqa: S701
    made.filters["extract"] = lambda key, container, *more: reduce(getitem, more, container[key])
    made.filters["flatten"] = lambda lists: [one for each in lists for one in each]
    made.filters["split"] = str.split
    made.filters["ternary"] = lambda condition, one, other: one if condition else other
    made.filters["regex_escape"] = re.escape
    made.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    made.tests["contains"] = lambda container, item: item in container
    return made


def _filled(text: str, variables: Mapping[str, Any]) -> str:
    """A text as Ansible fills it in."""
    return str(_compiled(text).render(variables)) if "{" in text else text


@cache
def _compiled(text: str, *, expression: bool = False) -> Any:
    made = _environment()
    return made.compile_expression(text, undefined_to_none=False) if expression else made.from_string(text)


def _holds(condition: object, variables: Mapping[str, Any]) -> bool:
    return condition is None or bool(_compiled(str(condition), expression=True)(variables))


@dataclass(frozen=True, slots=True)
class AppliedHost:
    """A host that an apply ended well on."""

    address: str
    roles: str
    stack: str
    """SHA-256 of the stack and its layers, without its nodes."""


@dataclass(frozen=True, slots=True)
class AppliedHosts:
    """Hosts of a project that an apply ended well on, by name: `applied.json`."""

    hosts: Mapping[str, AppliedHost]

    @classmethod
    def read(cls, project: Path) -> AppliedHosts:
        """The record in a project; empty before the first apply."""
        path = project / "applied.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return cls({name: AppliedHost(**each) for name, each in record.items()})

    def write(self, project: Path, stack: Stack, *, new: Collection[str] = (), gone: Collection[str] = ()) -> None:
        """Record hosts that got a stack, and forget others."""
        hosts = {**self.hosts, **{name: each for name, each in _hosts_of(stack).items() if name in new}}
        record = {name: asdict(each) for name, each in sorted(hosts.items()) if name not in gone}
        write_atomic(project / "applied.json", json.dumps(record, indent=2) + "\n")

    def check_change(self, stack: Stack, step: str, asked: Collection[str]) -> None:
        """Refuse to add, remove or replace nodes where the stack does not say just that beside this record.

        Raises:
            UsageError: as said, or nothing was applied yet, or a host has other roles.
        """
        wanted, applied, same = _hosts_of(stack), self.hosts, set(asked)
        if not applied:
            raise UsageError("this project was not applied yet", hint="run `trainworks deploy apply` first")
        added, removed = wanted.keys() - applied.keys(), applied.keys() - wanted.keys()
        expected = {"add": (same, set()), "remove": (set(), same), "replace": (set(), set())}[step]
        if not asked or (added, removed) != expected or (step == "replace" and same - wanted.keys()):
            changes = [f"adds {', '.join(sorted(added))}"] * bool(added)
            changes += [f"removes {', '.join(sorted(removed))}"] * bool(removed)
            said = " and ".join(changes) or "has the nodes of the last apply"
            message = f"`{step} {' '.join(asked)}` is not what the stack file says: it {said}"
            raise UsageError(message, hint="change `nodes` of the stack file to that, and no other host")
        if servers := [name for name in asked if {**wanted, **applied}[name].roles != "compute"]:
            message = f"{', '.join(servers)} has other roles than `compute`, and the cluster needs its servers"
            raise UsageError(message, hint="change servers with `trainworks deploy apply`")
        if any(applied[name].stack != wanted[name].stack for name in wanted.keys() & applied.keys()):
            message = "some hosts do not have what the stack says beside its nodes"
            raise UsageError(message, hint="apply the stack with the nodes of before, then change them")


def _hosts_of(stack: Stack) -> dict[str, AppliedHost]:
    sha256 = _sha256(f"{stack.model_dump_json(exclude={'nodes'})}{replace(stack.own, folder='')}")
    return {
        name: AppliedHost(address, " ".join(group.roles), sha256)
        for group in stack.nodes
        for name, address in group.addresses.items()
    }


def _sha256(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
