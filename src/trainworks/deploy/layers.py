"""What differs from one cluster to the next without a change of this package: its distribution, and an administrator's
own layers over the rendered files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import ValidationError

from trainworks.catalog import software
from trainworks.config.load import problems_of
from trainworks.config.source import Source
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.layers import NoPackages, OperatingSystem, Packages
from trainworks.config.stack_parts.scheduler import SlurmScheduler
from trainworks.config.stack_parts.words import Role
from trainworks.deploy import file_systems
from trainworks.errors import ArgumentError, RunFileError, UsageError, suggest
from trainworks.files import write_atomic

MANIFEST = ".rendered.json"
Value = TypeVar("Value")
_LAYERS = {
    "group_vars/": "`vars.yaml`",
    "site.yaml": "`roles.yaml`",
    "roles/scheduler/files/slurm.conf": "`slurm.d`",
    "roles/": "`vars.yaml`, a role in `roles`, or `files`",
}
"""Layer for a change of a rendered file, by the start of its path."""
_SEVERAL = ("nodename", "partitionname", "nodeset", "downnodes", "slurmctldhost", "frontendname")
"""Parameters that slurm.conf may have several times, each for another name."""


def operating_system(stack: Stack) -> OperatingSystem:
    """Facts of the operating system of a stack, of its layers before those of the package.

    Raises:
        ArgumentError: neither the layers nor the package have it.
        RunFileError: its file is not valid.
    """
    return _described(stack.os, f"{stack.own.folder}/systems", tuple(stack.own.below("systems").items()))


@cache
def _described(name: str, folder: str, texts: tuple[tuple[str, str], ...]) -> OperatingSystem:
    own = {file: Source(f"{folder}/{file}", text) for file, text in texts}
    shipped = resources.files("trainworks.deploy").joinpath("systems").iterdir()
    files = {file.name: Source(file.name, file.read_text(encoding="utf-8")) for file in shipped} | own
    if _file_of(name) not in own:
        try:
            found = software.release(name)
        except UsageError as error:
            raise ArgumentError(error.message, argument="os", hint=error.hint) from None
        name = found.name
        if found.component != "operating system":
            message = f"`{name}` is a {found.component}, and not an operating system"
            raise ArgumentError(message, argument="os", hint="name one such as `Ubuntu 24.04`")
    if _file_of(name) not in files:
        hint = f"describe it in `systems/{_file_of(name)}` of your layers: `like: Rocky 9`, and what differs"
        raise ArgumentError(f"the names of packages of {name} are not known", argument="os", hint=hint)
    source, data = files[_file_of(name)], _facts(_file_of(name), files, ())
    try:
        return OperatingSystem.model_validate(data)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source, OperatingSystem))) from None


def _file_of(system: str) -> str:
    return f"{system.lower().replace(' ', '-')}.yaml"


def _facts(name: str, files: Mapping[str, Source], above: tuple[str, ...]) -> dict[str, object]:
    """Facts of a system over those of the one that it is `like`."""
    source = files[name]
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("an operating system is a mapping of keys to values", place=source.name)])
    like = data.pop("like", None)
    if like is None:
        return data
    base = _file_of(str(like))
    if base not in files or base in (*above, name):
        hint = suggest(base, files, otherwise="name another one")
        raise RunFileError([UsageError(f"`{name}` cannot be like `{like}`", place=source.place(("like",)), hint=hint)])
    return _over(_facts(base, files, (*above, name)), data)


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Values over others, mappings key by key; packages that a distribution does not have replace names."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict) and "none" not in {**known, **value}
        merged[key] = _over(known, value) if both else value  # type: ignore[arg-type]
    return merged


def firewall_of(stack: Stack) -> str:
    """Program of the firewall; empty without one."""
    return operating_system(stack).firewall if stack.firewall and stack.kubernetes is None else ""


def packages_of(stack: Stack) -> Mapping[str, object]:
    """Variables with the packages that a stack needs, as its operating system names them.

    Raises:
        ArgumentError: the operating system does not have them; the argument is the key that needs them.
    """
    system = operating_system(stack)
    packages, fabric, kinds = system.packages, stack.fabric, {mount.kind for mount in stack.mounts}
    needed: dict[str, tuple[Packages, str] | None] = {
        "base_packages": (packages.base, "os"),
        "time_packages": (packages.time, "os"),
        "compiler_packages": (packages.compiler, "os"),
        "munge_packages": (packages.munge, "slurm") if stack.slurm else None,
        "venv_packages": (packages.venv, "environments"),
        "database_packages": (packages.mariadb, "slurm.accounting") if stack.accounting else None,
        "nfs_server_packages": (packages.nfs_server, "mounts") if file_systems.exports(stack) else None,
        "nfs_client_packages": (packages.nfs_client, "mounts") if "nfs" in kinds else None,
        "directory_packages": (packages.directory, "directory") if stack.directory else None,
        "firewall_packages": (packages.firewall, "firewall") if firewall_of(stack) else None,
        "selinux_packages": (packages.selinux, "os") if system.selinux else None,
        "exporter_packages": (packages.node_exporter, "monitoring") if stack.monitoring else None,
        "prometheus_packages": (packages.prometheus, "monitoring") if stack.monitoring else None,
        "opensm_packages": (packages.subnet_manager, "fabric") if fabric and fabric.subnet_managers else None,
    }
    if fabric is not None and fabric.link is not None:
        needed["fabric_packages"] = (packages.doca if fabric.doca else packages.rdma, "fabric.driver")
    # that release alone: the repository of a newer one would replace the modules under running jobs
    release = str(fabric.doca) if fabric else ""
    return {
        **{name: named(*each, system, release=release) if each else [] for name, each in needed.items()},
        "slurm_packages": _slurm_packages(stack.slurm, system) if stack.slurm else {},
    }


def _slurm_packages(slurm: SlurmScheduler, system: OperatingSystem) -> Mapping[str, list[str]]:
    """Packages of Slurm by its parts."""
    packages = system.packages.distribution if slurm.packages == "distribution" else system.packages.schedmd
    if isinstance(packages, NoPackages):
        raise ArgumentError(f"{system.name}: {packages.none}", argument="slurm.packages")
    parts = ["client", "controller", "compute", *["database"] * slurm.accounting, *["adopt"] * slurm.adopt]
    return {part: named(getattr(packages, part), "slurm.packages", system) for part in parts}


def named(
    packages: Packages, argument: str, system: OperatingSystem, *, branch: str = "", release: str = ""
) -> list[str]:
    """Names of packages that a stack needs for a key, of a branch of the driver, or a release of DOCA-OFED or ROCm.

    Raises:
        ArgumentError: the distribution does not have them, with the reason of its facts.
    """
    if isinstance(packages, NoPackages):
        raise ArgumentError(f"{system.name}: {packages.none}", argument=argument)
    return [name.replace("{branch}", branch).replace("{release}", release) for name in packages]


def by_host(stack: Stack, layer: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """Values of a layer by all, role or host: those of a group of hosts for each of them.

    Raises:
        UsageError: a key names none of them.
    """
    groups = {group.hosts: group.names for group in stack.nodes}
    known = {"all", *get_args(Role), *groups, *(name for names in groups.values() for name in names)}
    for scope in given:
        if scope not in known:
            hint = suggest(scope, known, otherwise="write `all`, a role, or `hosts` of one of `nodes`")
            raise UsageError(f"`{scope}` names no hosts", place=f"{stack.own.folder}/{layer}", hint=hint)
    return {host: value for scope, value in given.items() for host in groups.get(scope, (scope,))}


def with_own_variables(ours: Mapping[str, object], stack: Stack) -> dict[str, object]:
    """Variables of the project with those of `vars.yaml` over them.

    Raises:
        UsageError: a name that the roles do not know, or a value of another type.
    """
    return _typed(ours, stack.own.variables, f"{stack.own.folder}/vars.yaml")


def _typed(ours: Mapping[str, object], own: Mapping[str, object], place: str) -> dict[str, object]:
    merged = dict(ours)
    for key, value in own.items():
        if key not in ours:
            raise UsageError(f"no role knows the variable `{key}`", place=place, hint=suggest(key, ours))
        known = ours[key]
        if type(value) is not type(known):
            hint = f"write a {type(known).__name__}, as in group_vars/all.yaml"
            raise UsageError(f"`{key}` is a {type(known).__name__}, and not `{value}`", place=place, hint=hint)
        inner = isinstance(known, dict) and isinstance(value, dict) and known
        merged[key] = _typed(known, value, f"{place}  {key}") if inner else value  # type: ignore[arg-type]
    return merged


def with_own_lines(conf: str, stack: Stack) -> str:
    """slurm.conf with the lines of `slurm.d` behind ours, each file under its name.

    Raises:
        UsageError: a line sets what another one sets.
    """
    lines, seen = [conf.rstrip("\n")], {_parameter(line): line for line in conf.splitlines()}
    for name, text in stack.own.below("slurm.d").items():
        place = f"{stack.own.folder}/slurm.d/{name}"
        # not the whole path: the daemons compare the text, whatever folder it was rendered in
        lines += ["", f"# from {Path(stack.own.folder).name}/slurm.d/{name}", text.rstrip("\n")]
        for number, line in enumerate(text.splitlines(), start=1):
            if (key := _parameter(line)) and key in seen:
                message = f"`{line.strip()}` is in slurm.conf already: `{seen[key]}`"
                hint = "remove it, and change the key of the stack file that the other one is from, if there is one"
                raise UsageError(message, place=f"{place}:{number}", hint=hint)
            seen[key] = line
    return "\n".join(lines) + "\n"


def _parameter(line: str) -> str:
    """What a line of slurm.conf sets; empty for one that sets nothing."""
    key, _, value = line.partition("#")[0].strip().lower().partition("=")
    return f"{key}={value.split()[0]}" if key in _SEVERAL and value.split() else key.strip()


def with_own_plays(site: str, stack: Stack) -> str:
    """The playbook with a play for each role of `roles.yaml`, before or after the play of another role.

    Without Slurm, the plays of its roles are left out.

    Raises:
        UsageError: a role without tasks, of one of our names, or beside a role that is not there.
    """
    place, texts = f"{stack.own.folder}/roles.yaml", stack.own.below("roles")
    plays = re.split(r"\n(?=(?:# [^\n]*\n)*- name: )", site.rstrip("\n"))
    if stack.slurm is None:
        plays = [play for play in plays if not re.search(r"\{role: (scheduler|access|backup),", play)]
    for name, role in stack.own.roles.items():
        hosts = ",".join(by_host(stack, "roles.yaml", {role.hosts: ()}))
        anchor = str(role.before or role.after)
        ours = re.findall(r"\{role: (\w+)", "\n".join(plays))
        if name in ours or f"{name}/tasks/main.yaml" not in texts:
            problem = "is the name of one of the roles here" if name in ours else "has no `tasks/main.yaml`"
            raise UsageError(f"`{name}` {problem}", place=place, hint="give it a name and tasks of its own in `roles`")
        if anchor not in ours:
            raise UsageError(f"no role `{anchor}`", place=place, hint=suggest(anchor, ours, otherwise=", ".join(ours)))
        play = f"- name: The role {name} of your own\n  hosts: {hosts}\n  become: true\n  roles:\n"
        index = next(index for index, text in enumerate(plays) if f"{{role: {anchor}, " in text)
        plays.insert(index + (role.after is not None), f"{play}    - {{role: {name}, tags: [{name}]}}\n")
    return "\n".join(plays) + "\n"


def own_files(stack: Stack, files: Mapping[str, str], delivered: Collection[str]) -> dict[str, str]:
    """Files of `files` and `roles` by their paths in the project; `delivered` are the paths that its roles copy to.

    Raises:
        UsageError: a drop-in at a path that a role writes.
    """
    written = set(re.findall(r"dest: (/[^\s{}]+)$", "\n".join(files.values()), re.MULTILINE))
    written |= {*delivered}
    drop_ins = stack.own.below("files")
    for path in drop_ins:
        if f"/{path}" in written:
            hint = "change it by `vars.yaml`, `slurm.d` or the stack file"
            raise UsageError(f"a role writes /{path}", place=f"{stack.own.folder}/files/{path}", hint=hint)
    named_roles = {f"roles/{path}": text for path, text in stack.own.below("roles").items()}
    if stray := [path for path in named_roles if path.split("/")[1] not in stack.own.roles]:
        hint = "say in `roles.yaml` where it comes: `{after: base}`"
        raise UsageError("no play has this role", place=f"{stack.own.folder}/{stray[0]}", hint=hint)
    return {f"roles/base/files/own/{path}": text for path, text in drop_ins.items()} | named_roles


def write_project(files: Mapping[str, str], into: Path, *, folder: str, force: bool = False) -> None:
    """Write a project, and remove what an earlier render wrote and this one does not.

    Its manifest has the hash of each file, so that a change by hand is known. While files are written, it has the old
    and the new one: a render that was stopped can be repeated.

    Raises:
        UsageError: a file was changed by hand, unless `force` replaces it.
    """
    manifest = into / MANIFEST
    before: dict[str, list[str]] = json.loads(manifest.read_text()) if manifest.exists() else {}
    now = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    for path in sorted({*before, *now} if before else ()):
        if not (into / path).is_file() or force:
            continue
        if hashlib.sha256((into / path).read_bytes()).hexdigest() not in (*before.get(path, ()), now.get(path)):
            layer = next((layer for start, layer in _LAYERS.items() if path.startswith(start)), "the stack file")
            hint = f"make the change in {layer if layer[0] != '`' else f'{layer} of {folder}'}; `--force` drops it here"
            raise UsageError(f"{path} was changed by hand", place=str(into / path), hint=hint)
    into.mkdir(parents=True, exist_ok=True)
    either = {path: [*before.get(path, ()), *filter(None, [now.get(path)])] for path in {*before, *now}}
    write_atomic(manifest, json.dumps(either))
    for path, text in files.items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(into / path, text, mode=0o755 if path.endswith(".sh") else 0o644)
    for path in sorted({*before} - {*now}, reverse=True):
        (into / path).unlink(missing_ok=True)
        for parent in (into / path).parents:
            if parent == into or any(parent.iterdir()):
                break
            parent.rmdir()
    write_atomic(manifest, json.dumps({path: [digest] for path, digest in now.items()}, indent=1) + "\n")
