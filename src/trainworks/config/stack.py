"""The stack file: the machines of a cluster, and the software that they are to run."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from trainworks.config.autoscale import ConfigPath, DnsName, Name, NodeList
from trainworks.config.load import Source, problems_of, read_text
from trainworks.config.quantities import FieldError, SizeBytes
from trainworks.config.slurm_words import expand_nodes
from trainworks.config.spec import Spec
from trainworks.errors import QuantityError, RunFileError, UsageError

Role = Literal["login", "controller", "database", "monitoring", "storage", "compute"]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=32)]
AccountName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,30}$")]
PublicKey = Annotated[
    str, StringConstraints(pattern=r"^(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( [A-Za-z0-9@._-]+)?$")
]
"""A public key as in `~/.ssh/id_ed25519.pub`."""
Requirement = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?==[A-Za-z0-9.+!]+$")
]
"""A package with its exact version, `numpy==2.3.1`."""
MountSource = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@:/,\[\]-]+$", max_length=512)]


def _host_list(text: str) -> str:
    try:
        expand_nodes(text)
    except QuantityError as error:
        raise FieldError(error.message, hint=error.hint) from None
    return text


class Hardware(Spec):
    """Hardware of a node as `slurmd -C` prints it."""

    sockets: Annotated[int, Field(ge=1, le=64)]
    cores_per_socket: Annotated[int, Field(ge=1, le=1024)]
    threads_per_core: Annotated[int, Field(ge=1, le=8)] = 1
    memory: SizeBytes
    """Memory that the kernel reports: `RealMemory` of `slurmd -C`, in MiB."""
    accelerators: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+:[1-9][0-9]{0,2}$")] | None = None
    """Kind and number: `h100:8`."""


class NodeGroup(Spec):
    """Nodes of one kind."""

    hosts: Annotated[NodeList, AfterValidator(_host_list)]
    """Names, `gpu[01-04]`."""
    address: IPv4Address
    """Address of the first host; the next ones follow."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    machine: str | None = None
    """Machine or cloud instance of the catalogue, which says the hardware: `DGX H100`."""
    hardware: Hardware | None = None
    """Hardware of a machine that the catalogue does not have."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return expand_nodes(self.hosts)

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each host."""
        return {name: str(self.address + index) for index, name in enumerate(self.names)}


class GpuSoftware(Spec):
    """Software of NVIDIA GPUs on the compute nodes. CUDA comes with each environment and not with the node."""

    driver: Version
    """Branch or version of the driver: `580`, `580.126.18`."""
    fabric_manager: bool | None = None
    """Install the fabric manager of the same version, which GPUs behind NVSwitches need; by default where they are."""
    detect: Literal["files", "nvml"] = "files"
    """How Slurm finds GPUs: by device files, which every build can, or by NVML, which it must be built with."""


class Partition(Spec):
    """A partition of Slurm: a queue over all compute nodes."""

    name: Name
    default: bool = False
    max_time: Annotated[str, StringConstraints(pattern=r"^[0-9:-]+$|^UNLIMITED$")] = "UNLIMITED"
    """Longest time of a job in Slurm's form: `2-00:00:00`."""
    priority: Annotated[int, Field(ge=1, le=65533)] = 1
    """Jobs of a partition with a higher priority go first."""


class SlurmScheduler(Spec):
    """Slurm, and where its packages come from."""

    release: Version
    """Major release, `25.11`."""
    packages: Literal["distribution", "schedmd"] = "schedmd"
    """Packages of the operating system, or packages of SchedMD's names that you built into your own repository."""
    accounting: bool = True
    """Run slurmdbd and MariaDB on the node with the role `database`."""
    partitions: Annotated[tuple[Partition, ...], Field(min_length=1)] = (Partition(name="train", default=True),)


class SharedMount(Spec):
    """A shared file system on all nodes."""

    kind: Literal["nfs", "lustre"]
    at: ConfigPath
    """Folder where all nodes see it."""
    server: DnsName | None = None
    """With `nfs`: host that exports it; one of the stack with the role `storage`, or an appliance."""
    export: ConfigPath | None = None
    """With `nfs`: folder on the server."""
    device: MountSource | None = None
    """With `lustre`: what is mounted, `10.0.0.5@o2ib:/scratch`."""
    read_only: bool = False

    @model_validator(mode="after")
    def _source_of_its_kind(self) -> SharedMount:
        if self.kind == "nfs" and (self.server is None or self.export is None or self.device is not None):
            raise FieldError("a mount of NFS has `server` and `export`, and no `device`")
        if self.kind == "lustre" and (self.device is None or self.server is not None or self.export is not None):
            raise FieldError("a mount of Lustre has `device`, and neither `server` nor `export`")
        return self


class Scratch(Spec):
    """Local scratch of every compute node: its NVMe drives as one RAID 0."""

    devices: Annotated[tuple[ConfigPath, ...], Field(min_length=1)]
    """Drives: `/dev/nvme1n1`. Empty ones are formatted; several that hold something are refused."""
    at: ConfigPath = "/scratch"


class SoftwareEnvironment(Spec):
    """Software of jobs: a virtual environment on a shared file system, or a container image."""

    name: Name
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=512)] | None = None
    """A container image, best with its digest: `name@sha256:...`."""
    torch: Version | None = None
    """Release of PyTorch in a virtual environment."""
    cuda: Version | None = None
    """CUDA of the wheels or of the image; that of an image named `nvidia/cuda:` is known."""
    packages: tuple[Requirement, ...] = ()
    """Further packages of a virtual environment."""
    at: ConfigPath
    """Folder of the virtual environments or images, on a shared file system."""

    @model_validator(mode="after")
    def _one_kind(self) -> SoftwareEnvironment:
        if (self.image is None) == (self.torch is None):
            raise FieldError("an environment has exactly one of `torch` and `image`")
        if self.torch is not None and self.cuda is None:
            raise FieldError("`torch` needs `cuda`: its wheels are built for one", hint='write `cuda: "13.0"`')
        return self


class Monitoring(Spec):
    """Prometheus and Alertmanager on the node with the role `monitoring`."""

    page: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of critical alerts."""
    ticket: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of the others."""


class StackUser(Spec):
    """A user of the cluster, with the same number on all nodes."""

    name: AccountName
    uid: Annotated[int, Field(ge=1000, le=60000)]
    account: AccountName
    """Account of Slurm that the jobs are charged to."""
    keys: tuple[PublicKey, ...] = ()


class Stack(Spec):
    """One file, one cluster."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    """Name of the cluster in Slurm; lower case."""
    os: str
    """Operating system of all nodes, as in `trainworks catalog list software`."""
    network: IPv4Network
    """Network of the nodes; file systems are exported to it alone."""
    admin: AccountName = "deploy"
    """User that Ansible logs in as, and that cloud-init creates."""
    admin_keys: Annotated[tuple[PublicKey, ...], Field(min_length=1)]
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    gpu: GpuSoftware | None = None
    """Software of NVIDIA GPUs; without it, the project installs no driver, for images that have one."""
    slurm: SlurmScheduler
    mounts: tuple[SharedMount, ...] = ()
    scratch: Scratch | None = None
    environments: tuple[SoftwareEnvironment, ...] = ()
    monitoring: Monitoring | None = None
    users: tuple[StackUser, ...] = ()

    @model_validator(mode="after")
    def _one_host_per_service(self) -> Stack:
        needed: dict[Role, bool] = {
            "controller": True,
            "compute": True,
            "database": self.slurm.accounting,
            "monitoring": self.monitoring is not None,
        }
        for role, is_needed in needed.items():
            count = sum(len(group.names) for group in self.groups(role))
            if is_needed and not count:
                raise FieldError(
                    f"no node has the role `{role}`", hint=f"add `{role}` to the `roles` of one of `nodes`"
                )
            if role != "compute" and count > 1:
                raise FieldError(f"{count} hosts have the role `{role}`, and one can", hint="give it to a single host")
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
        folders = [mount.at for mount in self.mounts] + ([self.scratch.at] if self.scratch else [])
        named: dict[str, list[str | int]] = {
            "partition": [each.name for each in self.slurm.partitions],
            "default partition": ["default" for each in self.slurm.partitions if each.default],
            "mount": [*folders],
            "environment": [each.name for each in self.environments],
            "user": [each.name for each in self.users],
            "uid": [each.uid for each in self.users],
        }
        for what, names in named.items():
            if twice := [name for name in names if names.count(name) > 1]:
                raise FieldError(f"{what} `{twice[0]}` is there twice", hint="keep one of them")
        return self

    @model_validator(mode="after")
    def _compute_hardware(self) -> Stack:
        for group in self.nodes:
            if "compute" in group.roles and (group.machine is None) == (group.hardware is None):
                raise FieldError(f"compute nodes `{group.hosts}` need exactly one of `machine` and `hardware`")
        return self

    def groups(self, role: Role) -> Iterator[NodeGroup]:
        """Groups with a role."""
        return (group for group in self.nodes if role in group.roles)

    def hosts(self, role: Role) -> dict[str, str]:
        """Names and addresses of all hosts with a role."""
        return {name: address for group in self.groups(role) for name, address in group.addresses.items()}


def load_stack(path: Path) -> tuple[Stack, Source]:
    """Read and check a stack file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line.
    """
    source = Source(str(path), read_text(path, "stack file"))
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("a stack file must be a mapping of keys to values", place=f"{path}:1")])
    try:
        return Stack.model_validate(data), source
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source, Stack))) from None
