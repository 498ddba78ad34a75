"""The stack file: the machines of a cluster, and the software that they are to run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from pydantic import Field, PrivateAttr, RootModel, StringConstraints, model_validator

from trainworks.config.load import load_model
from trainworks.config.source import Source, read_text
from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts import software
from trainworks.config.stack_parts.fabric import Fabric
from trainworks.config.stack_parts.layers import Layers, OwnRole, PackageName, Parameter, RoleName
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.scheduler import SlurmAccount, SlurmScheduler
from trainworks.config.stack_parts.storage import MetadataArray, Scratch, SharedMount
from trainworks.config.stack_parts.users import Directory, StackUser
from trainworks.config.stack_parts.words import AccountName, Folder, KernelArgument, PublicKey, Role, is_of_stack
from trainworks.errors import UsageError, suggest

Value = TypeVar("Value")
_FILES = ("vars.yaml", "packages.yaml", "sysctl.yaml", "roles.yaml")
_OF_COMPUTE_NODES = ("gpu", "fabric", "scratch", "kernel_arguments", "weight", "reserved_cores", "reserved_memory")
"""Keys of a group that are for compute nodes; the last three are for Slurm."""
_FOLDERS = ("slurm.d", "roles", "files", "systems")
"""Files and folders of the layers."""


class Stack(Spec):
    """One file, one cluster."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    """Name of the cluster, also in Slurm; lower case."""
    os: str
    """Operating system of all nodes, as in `trainworks catalog list software`."""
    network: IPv4Network
    """Network of the nodes; file systems are exported to it alone."""
    admin: AccountName = "deploy"
    """User that Ansible logs in as, and that cloud-init creates."""
    admin_home: Folder | None = None
    """Home of `admin`, with its keys; by default /var/lib/ADMIN, over which nothing is mounted. An account
    whose home is below one of `mounts` is moved here."""
    admin_keys: Annotated[tuple[PublicKey, ...], Field(min_length=1)]
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    gpu: software.GpuSoftware | None = None
    """Driver of the groups with GPUs of that maker; without it, the project installs none, for images that have one."""
    fabric: Fabric | None = None
    """Network that ranks talk over; without it, adapters and switches are left as they are."""
    slurm: SlurmScheduler | None = None
    """Scheduler of the compute nodes. Without it none is installed, and each run names the nodes that it takes."""
    mounts: tuple[SharedMount, ...] = ()
    scratch: Scratch | None = None
    metadata: MetadataArray | None = None
    environments: tuple[software.SoftwareEnvironment, ...] = ()
    images: tuple[software.ImageRecipe, ...] = ()
    """Container images to build."""
    machine_image: software.MachineImage | None = None
    kubernetes: software.KubernetesBundle | None = None
    monitoring: software.Monitoring | None = None
    users: tuple[StackUser, ...] = ()
    directory: Directory | None = None
    """LDAP servers with the users of the site, beside those that `users` gives a `uid`."""
    firewall: bool = False
    """Let each node accept what its roles need, from `network` and the fabric alone; ssh from everywhere. Without it,
    and with `kubernetes`, whose network sets its own rules, no rule is written."""
    kernel_arguments: tuple[KernelArgument, ...] = ()
    """Arguments of the kernel of compute nodes, such as `iommu=pt`; a change restarts them."""
    layers: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$", max_length=255)] | None = None
    """Folder of your own packages, kernel parameters, roles and lines of slurm.conf. By default it is beside this file,
    and has its name with `.d` for `.yaml`."""
    _own: Layers = PrivateAttr(default_factory=Layers)

    @model_validator(mode="after")
    def _one_host_per_service(self) -> Stack:
        needed: dict[Role, bool] = {
            "controller": self.slurm is not None,
            "compute": True,
            "database": self.accounting,
            "monitoring": self.monitoring is not None,
        }
        for role, is_needed in needed.items():
            count = sum(len(group.names) for group in self.groups(role))
            if count and self.slurm is None and role in ("controller", "database"):
                raise FieldError(f"the role `{role}` is one of Slurm", hint="remove it, or add `slurm`")
            if is_needed and not count:
                raise FieldError(
                    f"no node has the role `{role}`", hint=f"add `{role}` to the `roles` of one of `nodes`"
                )
            if role not in ("compute", "controller") and count > 1:
                raise FieldError(f"{count} hosts have the role `{role}`, and one can", hint="give it to a single host")
        return self

    @model_validator(mode="after")
    def _controllers_share_their_state(self) -> Stack:
        controllers = self.hosts("controller")
        shared = [mount.at for mount in self.mounts if not mount.read_only and mount.server not in controllers]
        if len(controllers) > 1 and not any(PurePosixPath(self.scheduler.state).is_relative_to(at) for at in shared):
            raise FieldError(
                f"{len(controllers)} controllers need one state, and `{self.scheduler.state}` is local to each",
                hint="set `slurm.state` to a folder below one of `mounts` that no controller serves: `/shared/slurm`",
            )
        return self

    @model_validator(mode="after")
    def _groups_fit_the_stack(self) -> Stack:
        for group in self.nodes:
            given = [key for key in _OF_COMPUTE_NODES if getattr(group, key)]
            if given and "compute" not in group.roles:
                message = f"`{given[0]}` is for compute nodes, and `{group.label}` has none"
                raise FieldError(message, hint="remove it")
            if self.slurm is None and (of_slurm := [key for key in given if key in _OF_COMPUTE_NODES[-3:]]):
                raise FieldError(f"`{of_slurm[0]}` is for Slurm, and the stack has none", hint="remove it")
            if group.fabric is None or group.fabric.link == "none":
                continue
            if self.fabric is None:
                message = f"`fabric` of `{group.label}` has adapters in the network of the stack, which has no `fabric`"
                raise FieldError(message, hint="add `fabric` beside `nodes`")
            if self.fabric.link is not None or group.fabric.devices:
                self.fabric.with_adapters(group.fabric)
        if len(self.group_names) < len(self.nodes):
            raise FieldError("two groups of `nodes` have one name", hint="give each a `name` of its own")
        return self

    @model_validator(mode="after")
    def _partitions_name_what_is_there(self) -> Stack:
        if self.slurm is None:
            return self
        if nameless := [user.name for user in self.users if user.account is None]:
            message = f"the user `{nameless[0]}` has no `account`, which Slurm charges jobs to"
            raise FieldError(message, hint="name one, of `slurm.accounts` or of its own")
        accounts = {"root", *(each.name for each in self.accounts)}
        for partition in self.slurm.partitions:
            for name in partition.nodes:
                if not any(group.is_called(name) or name in group.names for group in self.groups("compute")):
                    known = ", ".join(f"`{group.label}`" for group in self.groups("compute"))
                    message = f"partition `{partition.name}` names `{name}`, and no compute node is called so"
                    raise FieldError(message, hint=f"name groups of `nodes` or hosts: {known}")
            if partition.accounts and not self.slurm.accounting:
                raise FieldError("`accounts` of partitions are kept by slurmdbd", hint="remove `accounting: false`")
            if missing := [name for name in partition.accounts if name not in accounts]:
                message = f"partition `{partition.name}` is for the account `{missing[0]}`, which is not there"
                raise FieldError(message, hint="add it to `slurm.accounts`")
        return self

    @model_validator(mode="after")
    def _distinct_hosts_in_the_network(self) -> Stack:
        seen: set[str] = set()
        for group in self.nodes:
            last = int(group.address) + len(group.names) - 1
            if group.address not in self.network or last > int(self.network.broadcast_address):
                raise FieldError(f"the addresses of `{group.hosts}` from {group.address} are outside of {self.network}")
            for name, address in group.addresses.items():
                if name in seen or address in seen:
                    raise FieldError(f"`{name if name in seen else address}` belongs to two hosts")
                seen |= {name, address}
        return self

    @model_validator(mode="after")
    def _distinct_names(self) -> Stack:
        named: dict[str, list[str | int]] = {
            "mount": [*self.folders],
            "environment": [each.name for each in self.environments],
            "image": [each.name for each in self.images],
            "user": [each.name for each in self.users],
            "uid": [each.uid for each in self.users if each.uid is not None],
        }
        if self.slurm is not None:
            named |= {
                "partition": [each.name for each in self.slurm.partitions],
                "default partition": ["default" for each in self.slurm.partitions if each.default],
                "QOS": ["normal", *(each.name for each in self.slurm.qos)],
                "account": ["root", *(each.name for each in self.slurm.accounts)],
            }
        for what, names in named.items():
            if twice := [name for name in names if names.count(name) > 1]:
                raise FieldError(f"{what} `{twice[0]}` is there twice", hint="keep one of them")
        return self

    @model_validator(mode="after")
    def _parts_have_what_they_need(self) -> Stack:
        strangers = [user.name for user in self.users if user.uid is None]
        if strangers and self.directory is None:
            message = f"the user `{strangers[0]}` has no `uid`, and there is no `directory` that could have one"
            raise FieldError(message, hint="write a `uid`, or describe the `directory`")
        if self.metadata is not None and not self.hosts("storage"):
            raise FieldError("`metadata` is on hosts with the role `storage`, and there are none")
        if self.kubernetes is not None and not self.accounts:
            hint = "add `slurm.accounts`, or `users` with an `account`"
            raise FieldError("`kubernetes` has a queue for each account, and there is none", hint=hint)
        used_on = {**self.hosts("compute"), **self.hosts("login")}
        for mount in self.mounts:
            if mount.kind == "nfs" and mount.server in used_on and mount.export != mount.at:
                message = f"`{mount.server}` serves `{mount.at}` from {mount.export}, where its programs do not look"
                raise FieldError(message, hint=f"write `export: {mount.at}`")
        names = {name for group in self.nodes for name in group.names}
        wanted = self.fabric.subnet_managers if self.fabric else ()
        if missing := [name for name in wanted if name not in names]:
            raise FieldError(f"no host `{missing[0]}` for the subnet manager", hint="name one of `nodes`")
        return self

    @model_validator(mode="after")
    def _no_mount_hides_the_administrator(self) -> Stack:
        for folder in self.folders:
            if PurePosixPath(self.home_of_admin).is_relative_to(folder):
                raise FieldError(
                    f"`{folder}` is mounted over {self.home_of_admin}, the home of `{self.admin}`, and hides its keys: "
                    "no playbook would reach a node again",
                    hint=f"remove `admin_home`, which is /var/lib/{self.admin} then, or mount at another folder",
                )
        return self

    @model_validator(mode="after")
    def _compute_hardware(self) -> Stack:
        for group in self.nodes:
            if "compute" in group.roles and group.machine is None and group.hardware is None:
                raise FieldError(f"compute nodes `{group.hosts}` need `machine` or `hardware`")
            if group.machine is not None and group.hardware is not None and group.hardware.accelerators:
                message = f"`machine` of `{group.hosts}` has accelerators, and `hardware` names some, too"
                raise FieldError(message, hint="keep one: remove `hardware.accelerators`, or `machine`")
        return self

    @property
    def own(self) -> Layers:
        """Contents of the folder of layers; empty for a stack that was not read from a file."""
        return self._own

    @property
    def scheduler(self) -> SlurmScheduler:
        """Slurm, for what only a stack with it has."""
        assert self.slurm is not None
        return self.slurm

    @property
    def accounting(self) -> bool:
        """Whether slurmdbd keeps accounts, with a database on a node of its own role."""
        return self.slurm is not None and self.slurm.accounting

    @property
    def accounts(self) -> list[SlurmAccount]:
        """Accounts that jobs are charged to, with those that only users name, which have no limits."""
        accounts = list(self.slurm.accounts) if self.slurm is not None else []
        named = {each.name for each in accounts}
        others = dict.fromkeys(user.account for user in self.users if user.account and user.account not in named)
        return accounts + [SlurmAccount(name=name) for name in others]

    @property
    def clocks(self) -> list[str]:
        """Hosts whose clock all nodes follow: the controllers; without Slurm the first host."""
        return [*self.hosts("controller")] or [self.nodes[0].names[0]]

    @property
    def home_of_admin(self) -> str:
        """Home of the user that Ansible logs in as."""
        return self.admin_home or f"/var/lib/{self.admin}"

    @property
    def folders(self) -> list[str]:
        """Folders that file systems are mounted at."""
        scratch = dict.fromkeys(each.at for _, each in self.scratches)
        return [mount.at for mount in self.mounts] + [*scratch] + ([self.metadata.at] if self.metadata else [])

    @property
    def scratches(self) -> list[tuple[str, Scratch]]:
        """Local scratch by the group of the inventory that has it: `compute` where all have that of the stack."""
        groups = {name: group for name, group in self.group_names.items() if "compute" in group.roles}
        if all(group.scratch in (None, self.scratch) for group in groups.values()):
            return [("compute", self.scratch)] if self.scratch else []
        found = ((name, self.scratch_of(group)) for name, group in groups.items())
        return [(name, scratch) for name, scratch in found if scratch is not None]

    def scratch_of(self, group: NodeGroup) -> Scratch | None:
        """Local scratch of a group of compute nodes."""
        return None if group.scratch == "none" else group.scratch or self.scratch

    @property
    def group_names(self) -> dict[str, NodeGroup]:
        """Groups by their names in the inventory: `nodes_gpu`, or `nodes_gpu09` where the hosts of another begin so."""
        labels = [group.label for group in self.nodes]
        named = {
            (group.name or group.names[0]) if labels.count(group.label) > 1 else group.label: group
            for group in self.nodes
        }
        return {f"nodes_{re.sub('[^A-Za-z0-9_]', '_', name)}": group for name, group in named.items()}

    def nodes_of(self, names: Sequence[str]) -> list[tuple[NodeGroup, str]]:
        """Groups that some names of groups and hosts mean, each with its nodes in Slurm's words; all without a name."""
        found = [
            (group, group.hosts if group.is_called(name) else name)
            for name in names
            for group in self.groups("compute")
            if group.is_called(name) or name in group.names
        ]
        return list(dict.fromkeys(found)) if names else [(group, group.hosts) for group in self.groups("compute")]

    def groups(self, role: Role) -> Iterator[NodeGroup]:
        """Groups with a role."""
        return (group for group in self.nodes if role in group.roles)

    def hosts(self, role: Role) -> dict[str, str]:
        """Names and addresses of all hosts with a role."""
        return {name: address for group in self.groups(role) for name, address in group.addresses.items()}


def is_stack_file(path: str) -> bool:
    """Whether a file describes the machines of a cluster, and not a run; False for one that is not there."""
    if not path.endswith((".yaml", ".yml")) or not Path(path).is_file():
        return False
    return is_of_stack(re.findall(r"^(\w+)\s*:", read_text(Path(path), "stack file"), re.MULTILINE))


def load_stack(path: Path) -> tuple[Stack, Source]:
    """Read and check a stack file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, or in a file of its layers, each with its line.
    """
    stack, source = load_model(path, Stack, "stack file")
    folder = path.parent / (stack.layers or f"{path.stem}.d")
    if stack.layers is not None or folder.is_dir():
        stack._own = read_layers(folder)
    return stack, source


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
    sysctl = _values(folder / "sysctl.yaml", RootModel[dict[str, dict[Parameter, str | int]]])
    return Layers(
        str(folder),
        _values(folder / "vars.yaml", RootModel[dict[str, object]]),
        _values(folder / "packages.yaml", RootModel[dict[str, tuple[PackageName, ...]]]),
        {scope: {key: str(value) for key, value in each.items()} for scope, each in sysctl.items()},
        _values(folder / "roles.yaml", RootModel[dict[RoleName, OwnRole]]),
        {
            str(path.relative_to(folder)): read_text(path, "layer")
            for name in _FOLDERS
            for path in sorted((folder / name).rglob("*"))
            if path.is_file()
        },
    )


def _values(path: Path, model: type[RootModel[dict[str, Value]]]) -> dict[str, Value]:
    """Values of a file of layers; empty without the file."""
    return load_model(path, model, "layer")[0].root if path.exists() else {}
