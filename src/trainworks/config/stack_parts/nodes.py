"""`nodes` of the stack file."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

from pydantic import AfterValidator, Field

from trainworks.config.autoscale import NodeList
from trainworks.config.command import NodeAccelerators
from trainworks.config.quantities import SizeBytes
from trainworks.config.slurm.sbatch_amounts import expand_nodes
from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import Role
from trainworks.errors import QuantityError


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
    accelerators: NodeAccelerators | None = None
    """Kind and number: `h100:8`, or of the catalogue such as `A100-PCIE-40GB:8`."""


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
    """Hardware of a machine that the catalogue does not have, or whose processors and memory it does not know."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return expand_nodes(self.hosts)

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each host."""
        return {name: str(self.address + index) for index, name in enumerate(self.names)}
