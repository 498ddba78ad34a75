"""`nodes` of the stack file."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, model_validator

from trainworks.config.autoscale import Name, NodeList
from trainworks.config.command import NodeAccelerators
from trainworks.config.quantities import SizeBytes
from trainworks.config.slurm.sbatch_amounts import expand_nodes
from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.fabric import NodeAdapters
from trainworks.config.stack_parts.software import GpuSoftware
from trainworks.config.stack_parts.storage import Scratch
from trainworks.config.stack_parts.words import KernelArgument, Role
from trainworks.errors import QuantityError


def _host_list(text: str) -> str:
    try:
        expand_nodes(text)
    except QuantityError as error:
        raise FieldError(error.message, hint=error.hint) from None
    return text


CoreRange = Annotated[str, StringConstraints(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$", max_length=255)]


class Hardware(Spec):
    """Hardware of a node as `slurmd -C` prints it."""

    sockets: Annotated[int, Field(ge=1, le=64)]
    cores_per_socket: Annotated[int, Field(ge=1, le=1024)]
    threads_per_core: Annotated[int, Field(ge=1, le=8)] = 1
    memory: SizeBytes
    """Memory that the kernel reports: `RealMemory` of `slurmd -C`, in MiB."""
    accelerators: NodeAccelerators | None = None
    """Kind and number: `h100:8`, or of the catalogue such as `A100-PCIE-40GB:8`."""
    gpu_cores: tuple[CoreRange, ...] = ()
    """Cores nearest to each GPU, in the order of the device files: `[0-55, 0-55, 56-111, 56-111]`. Slurm counts cores
    socket by socket, as `lstopo -l` does; `nvidia-smi topo -m` prints the same numbers where the kernel does so, too,
    and second threads of cores behind them, which are left out."""

    @model_validator(mode="after")
    def _cores_of_this_node(self) -> Hardware:
        if self.accelerators is not None and self.gpu_cores and len(self.gpu_cores) != self.accelerators.count:
            message = f"`gpu_cores` is for {len(self.gpu_cores)} GPUs, and a node has {self.accelerators.count}"
            raise FieldError(message, hint="write the cores of each GPU")
        cores = self.sockets * self.cores_per_socket
        last = max((int(each) for text in self.gpu_cores for each in re.findall(r"\d+", text)), default=0)
        if last >= cores:
            message = f"`gpu_cores` names core {last}, and a node has {cores} cores from 0 on"
            raise FieldError(message, hint="leave out second threads of cores")
        return self


_None = Annotated[Literal["none"], Tag("none")]
_Scratch = Annotated[Scratch, Tag("value")]
_KernelArguments = Annotated[tuple[KernelArgument, ...], Tag("value")]
_BY_FORM = Discriminator(lambda value: "none" if isinstance(value, str) else "value")
"""A word is `none`, so that a wrong value is not said to be another word."""


class NodeGroup(Spec):
    """Nodes of one kind."""

    hosts: Annotated[NodeList, AfterValidator(_host_list)]
    """Names, `gpu[01-04]`."""
    name: Name | None = None
    """Name of the group for partitions and for variables of Ansible; by default `gpu` of `gpu[01-04]`."""
    address: IPv4Address
    """Address of the first host; the next ones follow."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    machine: str | None = None
    """Machine or cloud instance of the catalogue, which says the hardware: `DGX H100`."""
    hardware: Hardware | None = None
    """Hardware of a machine that the catalogue does not have, or whose processors and memory it does not know."""
    gpu: GpuSoftware | None = None
    """Driver of these compute nodes; by default that of the stack where they have GPUs. `none` installs none."""
    fabric: NodeAdapters | None = None
    """Adapters of these compute nodes; by default those of the stack where they have GPUs, or where no node has some.
    `{}` are those of the stack on nodes without GPUs, and `none` leaves adapters as they are."""
    scratch: Annotated[_Scratch | _None, _BY_FORM] | None = None
    """Local scratch of these compute nodes; by default that of the stack. `none` is for nodes without such drives."""
    kernel_arguments: Annotated[_KernelArguments | _None, _BY_FORM] | None = None
    """Arguments of the kernel of these compute nodes, in place of those of the stack; `none` sets none."""
    weight: Annotated[int, Field(ge=1, le=65533)] | None = None
    """Slurm gives a job nodes of the least weight first; by default 1 without GPUs, and 100 with some."""
    reserved_cores: Annotated[int, Field(ge=0)] = 0
    """Cores of each of these compute nodes that no job gets, for daemons of the system and of file systems."""
    reserved_memory: SizeBytes | None = None
    """Memory of each of these compute nodes that no job gets."""

    @property
    def label(self) -> str:
        """Name of the group, as given or as its hosts begin."""
        return self.name or self.hosts.partition("[")[0].rstrip("-_.")

    def is_called(self, name: str) -> bool:
        """Whether a name means the whole group: its own, that of its hosts, or its machine."""
        return name in (self.label, self.hosts, self.hosts.partition("[")[0], self.machine)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return expand_nodes(self.hosts)

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each host."""
        return {name: str(self.address + index) for index, name in enumerate(self.names)}
