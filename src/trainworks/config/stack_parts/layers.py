"""`layers` of the stack file: what an administrator keeps beside it, and the facts of an operating system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainworks.config.spec import FieldError, Spec

PackageName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.+_:~=*-]|\{(branch|release)\})*$", max_length=128),
]
"""A package; `{branch}` is that of the driver, `{release}` that of DOCA-OFED, of ROCm or of the kernel."""
ServiceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9@._-]*$", max_length=128)]
SystemPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=255)]
RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
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
    """Packages of NVIDIA's driver by its kernel module, and how to ask for a branch of them."""

    open: Packages
    proprietary: Packages
    fabric_manager: Packages
    imex: Packages
    of_branch: Annotated[str, StringConstraints(pattern=r"^\{name\}(-\{branch\}\.\*)?$")]


class SystemPackages(Spec):
    """Packages by their purpose."""

    base: Packages
    compiler: Packages
    time: Packages
    nfs_server: Packages
    nfs_client: Packages
    directory: Packages
    """sssd with its backend for LDAP, and what lets logins use it."""
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
    rocm: Packages
    """AMD's driver and the tools of ROCm."""
    kernel_modules: Packages
    """What builds a module for the kernel that runs, and what AMD's driver links to there."""


class SystemServices(Spec):
    """Services of systemd whose names differ."""

    time: ServiceName
    sshd: ServiceName
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
    logins: Literal["pam-auth-update", "authselect"]
    """What writes PAM's files and the order of sources of users."""
    sssd_group: Literal["root", "sssd"] = "root"
    """Group that reads sssd.conf: `sssd` from its release 2.10 on, which runs as a user of its own."""
    unproven: tuple[str, ...] = ()
    """Facts that were not looked up, or not tried."""

    def pinned(self, name: str, version: str) -> str:
        """A version of a package, as the package manager is asked for it."""
        return f"{name}{'=' if self.manager == 'apt' else '-'}{version}"


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
    """Names of packages by `all`, role or hosts."""
    sysctl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    roles: Mapping[str, OwnRole] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files of `slurm.d`, `roles`, `files` and `systems` by path."""

    def below(self, folder: str) -> dict[str, str]:
        """Texts below a folder, by the rest of their paths."""
        return {path.removeprefix(f"{folder}/"): text for path, text in self.texts.items() if path.startswith(folder)}
