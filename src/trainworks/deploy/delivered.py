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
from trainworks.deploy import file_systems, racks
from trainworks.deploy.directory import SSSD_CONF, with_password
from trainworks.deploy.file_systems import MountUnit
from trainworks.deploy.hardware import gpu_of
from trainworks.deploy.layers import operating_system
from trainworks.deploy.node_groups import nccl_settings
from trainworks.errors import UsageError
from trainworks.files import write_atomic
from trainworks.host.listening import EXPORTER_PORTS, ListenAddress

if TYPE_CHECKING:
    from jinja2 import Environment

SLURM_ROLES = frozenset({"login", "controller", "database", "compute"})
_UNITS = "/etc/systemd/system"
_ADOPT = "cluster_slurm_adopt.cil"
_FOR_ALL_TO_READ = ("0644", "0755")
_RULES: tuple[tuple[str, str, str, frozenset[str]], ...] = (
    (r"scheduler/files/(?!accounts)([^/]+\.sh)", "/etc/slurm", "755", SLURM_ROLES),
    (r"base/files/own/(.+\.sh)", "", "755", frozenset()),
    (r"base/files/own/(.+(?<!\.sh))", "", "644", frozenset()),
    (r"scheduler/files/([^/]+\.(?:conf|yaml)|[^./]+)", "/etc/slurm", "644", SLURM_ROLES),
    (r"scheduler/files/GROUP/(.+\.sh)", "/etc/slurm", "755", frozenset()),
    (r"backup/files/(.+\.sh)", "/usr/local/sbin", "755", frozenset({"controller", "database"})),
    (r"backup/files/(.+\.(?:service|timer))", _UNITS, "644", frozenset({"controller", "database"})),
    (r"storage/files/(client-.+\.conf)", "/etc/beegfs", "644", frozenset()),
    (r"fabric/files/GROUP/(ucx\.conf)", "/etc/ucx", "644", frozenset()),
    (r"fabric/files/GROUP/(.+\.fstab)", "/etc/enroot/mounts.d", "644", frozenset()),
    (r"fabric/files/GROUP/(roce-.+\.sh)", "/usr/local/sbin", "755", frozenset()),
    (r"fabric/files/HOST/(.+\.network)", "/etc/systemd/network", "644", frozenset()),
    (r"fabric/files/HOST/(.+\.nmconnection)", "/etc/NetworkManager/system-connections", "600", frozenset()),
    (r"fabric/files/HOST/(.+\.conf)", "{opensm}", "644", frozenset()),
    (r"tuning/files/GROUP/(.+\.sh)", "/usr/local/sbin", "755", frozenset()),
    (r"directory/files/(.+\.pem)", "/etc/ssl", "644", frozenset()),
    (r"directory/files/(.+\.conf)", "/etc/ssh/sshd_config.d", "644", frozenset()),
    (r"monitoring/files/(grafana/.+)", "/etc", "644", frozenset({"monitoring"})),
    (r"monitoring/files/(?!grafana/)(.+)", "/etc/prometheus", "644", frozenset({"monitoring"})),
)
"""File of a role, its folder and mode on the hosts, and the roles of these; all hosts when empty. `GROUP` and `HOST`
are the names of a host's group and of itself; a name in braces is a path of the operating system."""


@dataclass(frozen=True, slots=True)
class DeliveredFile:
    """A file on a host."""

    path: str
    text: str | bytes | None
    """None for a secret that this project has not: then owner and mode alone are compared."""
    mode: str = "644"
    owner: str = "root:root"

    def difference(self, found: str) -> tuple[str, str]:
        """What differs in `SHA256 MODE OWNER` of the file on a host, and what is expected there; empty if nothing.

        >>> DeliveredFile("/etc/munge/munge.key", None, "400", "munge:munge").difference("ab 777 munge:munge")
        ('mode 777', 'mode 400')
        """
        if not found:
            return "missing", f"mode {self.mode}, {self.owner}"
        sha256 = None if self.text is None else _sha256(self.text)
        pairs = zip(("sha256", "mode", "owner"), found.split(), (sha256, self.mode, self.owner), strict=True)
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
    """Files of each host by path, from the text of the project's files and of those below its `secrets`."""
    found: dict[str, dict[str, DeliveredFile]] = {}
    options, in_rack, of_hosts = exporters(stack), racks.rack_of_nodes(stack), _by_folder(files)
    units, of_tasks = file_systems.mount_units(stack), TaskTexts(files, stack.own.roles)
    for name, group in stack.group_names.items():
        common, gpu = [*_copied(stack, files, name)], gpu_of(stack, group)
        for host, address in group.addresses.items():
            imex = files.get(f"roles/gpu/files/imex/{in_rack.get(host)}.cfg") if gpu is not None else None
            every = [
                *common,
                *_copied(stack, of_hosts.get(f"roles/fabric/files/{host}", {}), name, host),
                *_secret(stack, files, secrets, frozenset(group.roles), has_exporter=host in options),
                *_derived(stack, files, name, host, units),
                *([DeliveredFile("/etc/nvidia-imex/nodes_config.cfg", imex)] if imex is not None else []),
                *_exporter_unit(stack, files, name, address, options.get(host, "")),
                *of_tasks.of(host),
            ]
            found[host] = {each.path: each for each in every}
    return found


def _by_folder(files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    folders: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        folders.setdefault(path.rpartition("/")[0], {})[path] = text
    return folders


def secrets_of(project: Path) -> dict[str, bytes]:
    """Each secret of a project, by its name; empty before the first apply."""
    folder = project / "secrets"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def secrets_to_rotate(stack: Stack) -> dict[str, tuple[str, int]]:
    """File and length of each secret of a stack that can be replaced."""
    found = {"exporter-token": ("exporter_token", 32)}
    found |= {"munge": ("munge.key", 128), "database": ("slurm_database", 32)} if stack.slurm is not None else {}
    return found | ({"grafana": ("grafana", 32)} if stack.monitoring is not None and stack.monitoring.grafana else {})


def _copied(stack: Stack, files: Mapping[str, str], group: str, host: str = "") -> Iterator[DeliveredFile]:
    """Files that one host alone gets, or those that all of a group get where no host is named."""
    roles, paths = stack.group_names[group].roles, operating_system(stack).paths.model_dump()
    for pattern, folder, mode, of in _RULES:
        if ("HOST" in pattern) != bool(host) or (of and not of.intersection(roles)):
            continue
        own = re.compile(f"roles/{pattern.replace('HOST', re.escape(host)).replace('GROUP', re.escape(group))}")
        for name, text in files.items():
            if found := own.fullmatch(name):
                yield DeliveredFile(f"{folder.format(**paths)}/{found[1]}", text, mode)


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


def _derived(
    stack: Stack, files: Mapping[str, str], name: str, host: str, units: Sequence[MountUnit]
) -> Iterator[DeliveredFile]:
    """Files whose hosts, path or text follow from more than the roles and the group of that name."""
    group = stack.group_names[name]
    roles = frozenset(group.roles)
    if exports := files.get(f"roles/storage/files/{host}/exports"):
        yield DeliveredFile(f"{operating_system(stack).paths.exports}/{stack.name}.exports", exports)
    if rails := files.get(f"roles/fabric/files/{name}/nccl.conf"):
        yield DeliveredFile(nccl_settings(gpu_of(stack, group)), rails)
        places = (("openmpi-mca-params.conf", "/etc/openmpi"), ("roce-host.service", _UNITS))
        every = ((folder, file, files.get(f"roles/fabric/files/{file}")) for file, folder in places)
        yield from (DeliveredFile(f"{folder}/{file}", text) for folder, file, text in every if text)
    for unit in units:
        if unit.facts["group"] in roles | {"all", name} and unit.facts["server"] != host:
            yield DeliveredFile(f"{_UNITS}/{unit.name}", files[f"roles/storage/files/{unit.path}"])
    if "compute" in roles and stack.slurm is not None and stack.slurm.adopt and operating_system(stack).selinux:
        yield DeliveredFile(f"/etc/selinux/{_ADOPT}", files[f"roles/access/files/{_ADOPT}"])


def _exporter_unit(
    stack: Stack, files: Mapping[str, str], group: str, address: str, options: str
) -> Iterator[DeliveredFile]:
    if stack.monitoring is None or not options:
        return
    text = jinja_template(files["roles/monitoring/templates/trainworks-exporter.service.j2"]).render(
        trainworks=stack.monitoring.trainworks,
        exporters={"this": {"listen": str(ListenAddress(address, EXPORTER_PORTS["trainworks"])), "options": options}},
        inventory_hostname="this",
        group_names=stack.group_names[group].roles,
    )
    yield DeliveredFile(f"{_UNITS}/trainworks-exporter.service", text)


@dataclass(frozen=True)
class TaskTexts:
    """What the tasks of a rendered project write; `files` are the texts of the project by path.

    Left out are tasks that loop, that ask for facts of the host, or that write secrets, files of tasks that another
    file includes, and texts with a variable of the user that is itself a template.
    """

    files: Mapping[str, str]
    own_roles: Collection[str] = ()
    """Roles of the user, whose tasks may use all that Ansible has."""

    def of(self, host: str) -> Iterator[DeliveredFile]:
        """Texts of a host of the inventory, in the order of the tasks."""
        names = [name for name, hosts in self._groups.items() if host in hosts]
        variables = {"inventory_hostname": host, "group_names": names, "groups": self._groups, "hostvars": self._hosts}
        for name in ("all", *names):
            variables |= self._yaml(f"group_vars/{name}.yaml")
        for play in self._yaml("site.yaml"):
            if play["hosts"] != "all" and not set(names).intersection(play["hosts"].split(":")):
                continue
            for role in play.get("roles", ()):
                if role["role"] not in self.own_roles and _holds(role.get("when"), variables):
                    tasks = self._yaml(f"roles/{role['role']}/tasks/main.yaml") or ()
                    yield from self._of_tasks(role["role"], tasks, variables)

    def _of_tasks(
        self, role: str, tasks: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> Iterator[DeliveredFile]:
        for task in tasks:
            if "loop" in task or "ansible_facts" in str(task.get("when")):
                continue
            copied, filled = task.get("ansible.builtin.copy", {}), task.get("ansible.builtin.template", {})
            text = copied.get("content") or self.files.get(f"roles/{role}/templates/{filled.get('src')}")
            of_task = {**copied, **filled}
            if "block" in task and _holds(task.get("when"), variables):
                yield from self._of_tasks(role, task["block"], variables)
            elif text and of_task["mode"] in _FOR_ALL_TO_READ and _holds(task.get("when"), variables):
                path, text = (jinja_template(each).render(variables) for each in (of_task["dest"], text))
                if "{{" not in text:
                    yield DeliveredFile(path, text, of_task["mode"].lstrip("0"))

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
    made.filters["extract"] = lambda key, container, *more: reduce(getitem, more, container[key])
    made.filters["flatten"] = lambda lists: [one for each in lists for one in each]
    made.filters["split"] = str.split
    made.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    return made


@cache
def jinja_template(text: str) -> Any:
    """A template as Ansible reads it."""
    return _environment().from_string(text)


def _holds(condition: object, variables: Mapping[str, Any]) -> bool:
    return condition is None or bool(jinja_template(f"{{{{ 1 if {condition} }}}}").render(variables))


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
