"""`layers` of the stack file: what an administrator keeps beside it, and the facts of an operating system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, RootModel, StringConstraints, model_validator

from trainworks.config.load import load_model
from trainworks.config.source import read_text
from trainworks.config.spec import FieldError, Spec
from trainworks.errors import UsageError, suggest

PackageName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.+_:~=*-]|\{(branch|release)\})*$", max_length=128),
]
"""A package; `{branch}` is that of the driver, `{release}` that of DOCA-OFED."""
ServiceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9@._-]*$", max_length=128)]
SystemPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=255)]
Parameter = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_./*-]*$", max_length=128)]


class NoPackages(Spec):
    """Packages that a distribution does not have."""

    none: str
    """Why a stack that needs them is refused, and what to do instead."""


Packages = Annotated[tuple[PackageName, ...], Field(min_length=1)] | NoPackages


class SlurmPackages(Spec):
    """Packages of Slurm by part; `adopt` is the PAM module."""

    client: Packages
    controller: Packages
    compute: Packages
    database: Packages
    adopt: Packages


class DriverPackages(Spec):
    """Packages of NVIDIA's driver by its kernel module, and how to ask for a version of them."""

    open: Packages
    proprietary: Packages
    fabric_manager: Packages
    imex: Packages
    exact: Annotated[str, StringConstraints(pattern=r"^\{name\}[=-]\{version\}$")]
    of_branch: Annotated[str, StringConstraints(pattern=r"^\{name\}(-\{branch\}\.\*)?$")]


class SystemPackages(Spec):
    """Packages by their purpose."""

    base: Packages
    compiler: Packages
    time: Packages
    nfs_server: Packages
    nfs_client: Packages
    mariadb: Packages
    rdma: Packages
    doca: Packages
    subnet_manager: Packages
    munge: Packages
    venv: Packages
    node_exporter: Packages
    prometheus: Packages
    firewall: Packages
    selinux: Packages
    distribution: SlurmPackages | NoPackages
    schedmd: SlurmPackages | NoPackages
    driver: DriverPackages | NoPackages


class SystemServices(Spec):
    """Services of systemd whose names differ."""

    time: ServiceName
    mariadb: ServiceName
    nfs_server: ServiceName
    munge: ServiceName
    node_exporter: ServiceName
    prometheus: ServiceName
    alertmanager: ServiceName


class SystemPaths(Spec):
    """Files and folders that differ."""

    time_settings: SystemPath
    database_settings: SystemPath
    exports: SystemPath
    opensm: SystemPath
    pam_session: SystemPath
    """File with the session modules that sshd includes."""


class OperatingSystem(Spec):
    """What the roles and `verify` have to know about a distribution: a file of `systems`."""

    name: str
    """`Rocky 9`: ID and VERSION_ID of /etc/os-release, in any case."""
    manager: Literal["apt", "dnf"]
    packages: SystemPackages
    services: SystemServices
    paths: SystemPaths
    firewall: Literal["nftables", "firewalld"]
    selinux: bool
    network: Literal["networkd", "networkmanager"]
    """What gives rails of RoCE their addresses."""
    boot: Literal["grub.d", "grubby"]
    """How arguments of the kernel are set."""
    unproven: tuple[str, ...] = ()
    """Facts that were not looked up, or not tried."""


class OwnRole(Spec):
    """A role of Ansible in the folder `roles`, and its place in the playbook."""

    hosts: str = "all"
    """`all`, a role of the stack, or hosts."""
    before: str | None = None
    after: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> OwnRole:
        if (self.before is None) == (self.after is None):
            raise FieldError("a role is `before` or `after` another one", hint="write `{hosts: compute, after: base}`")
        return self


@dataclass(frozen=True, slots=True)
class Layers:
    """Contents of the folder of layers; empty without one."""

    folder: str = ""
    variables: Mapping[str, object] = field(default_factory=dict)
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By `all`, role or hosts."""
    sysctl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    roles: Mapping[str, OwnRole] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files of `slurm.d`, `roles`, `files` and `systems` by path."""

    def below(self, folder: str) -> dict[str, str]:
        """Texts below a folder, by the rest of their paths."""
        return {path.removeprefix(f"{folder}/"): text for path, text in self.texts.items() if path.startswith(folder)}


_VARIABLES = RootModel[dict[str, object]]
_PACKAGES = RootModel[dict[str, tuple[PackageName, ...]]]
_SYSCTL = RootModel[dict[str, dict[Parameter, str | int]]]
_ROLES = RootModel[dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")], OwnRole]]
_FILES = {"vars.yaml": _VARIABLES, "packages.yaml": _PACKAGES, "sysctl.yaml": _SYSCTL, "roles.yaml": _ROLES}
_FOLDERS = ("slurm.d", "roles", "files", "systems")


def read_layers(folder: Path) -> Layers:
    """Read the folder of layers.

    Raises:
        UsageError: it is missing, or has a file that is not a layer, or not text.
        RunFileError: a key or a value of a file is not valid.
    """
    if not folder.is_dir():
        raise UsageError(f"the folder of layers `{folder}` is missing", hint="create it, or correct `layers`")
    known = (*_FILES, *_FOLDERS)
    for name in sorted(entry.name for entry in folder.iterdir() if entry.name not in known):
        if not name.startswith((".", "README")):
            hint = suggest(name, known, otherwise=f"layers are {', '.join(known)}")
            raise UsageError(f"`{name}` is not a layer", place=str(folder), hint=hint)
    found = {
        name: load_model(folder / name, model, "layer")[0].root if (folder / name).exists() else {}
        for name, model in _FILES.items()
    }
    return Layers(
        str(folder),
        found["vars.yaml"],
        found["packages.yaml"],
        {scope: {key: str(value) for key, value in each.items()} for scope, each in found["sysctl.yaml"].items()},
        found["roles.yaml"],
        {
            str(path.relative_to(folder)): read_text(path, "layer")
            for name in _FOLDERS
            for path in sorted((folder / name).rglob("*"))
            if path.is_file()
        },
    )
