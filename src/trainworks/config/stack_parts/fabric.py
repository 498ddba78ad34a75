"""`fabric` of the stack file: the network that ranks talk over."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import Version

InterfaceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=63)]


class MpiJobs(Spec):
    """Open MPI over UCX on the nodes, for jobs that are not Python wheels."""

    openmpi: Version
    """Release of Open MPI that is there, `4.1`: 4 takes `btl` and `pml`, 5 has no openib."""
    cuda: bool = True
    """UCX and Open MPI were built with CUDA; the role looks for it."""


class Fabric(Spec):
    """Adapters of the compute nodes, their driver, and the switches between them."""

    link: Literal["infiniband", "roce"]
    driver: Literal["inbox", "doca-ofed"] = "inbox"
    """Driver of the adapters: that of the kernel and rdma-core, or NVIDIA's DOCA-OFED, whose repository you set up."""
    doca: Version | None = None
    """Release of DOCA with `doca-ofed`: `3.2`."""
    kernel: Version | None = None
    """Kernel of the nodes, `6.8`; `deploy check` holds DOCA's list against it."""
    devices: Annotated[tuple[InterfaceName, ...], Field(min_length=1)]
    """RDMA devices of a compute node, in the order of its rails: `mlx5_0`, as `rdma link` prints them."""
    interfaces: tuple[InterfaceName, ...] = ()
    """With `roce`: network interfaces of these devices, in the same order."""
    subnet_managers: tuple[HostName, ...] = ()
    """With `infiniband`: hosts that run OpenSM, the first one as the master; none where switches or UFM do."""
    network: IPv4Network | None = None
    """With `roce`: addresses of the rails, two for each port of a node, and one for each switch."""
    speed: Literal[100, 200, 400, 800] | None = None
    """With `roce`: rate of an adapter in Gb/s."""
    asn: Annotated[int, Field(ge=64512, le=4294967294)] = 4200000000
    """With `roce`: autonomous system of the spines; leaves have the next ones. The default is private (RFC 6996)."""
    switches: Literal["cumulus", "eos"] = "cumulus"
    """With `roce`: what the switches run, NVIDIA Cumulus with NVUE or Arista EOS."""
    mpi: MpiJobs | None = None

    @model_validator(mode="after")
    def _keys_of_its_link(self) -> Fabric:
        if (self.doca is None) != (self.driver == "inbox"):
            raise FieldError("`doca` is the release with `driver: doca-ofed`", hint="write both, or neither")
        if self.doca is not None and self.kernel is None:
            raise FieldError("DOCA-OFED is built for a kernel", hint="write `kernel:` as `uname -r` begins, `6.8`")
        if self.link == "infiniband" and (self.interfaces or self.network or self.speed):
            raise FieldError("`interfaces`, `network` and `speed` are for `link: roce`", hint="remove them")
        if self.link == "roce" and self.subnet_managers:
            raise FieldError("Ethernet has no subnet manager", hint="remove `subnet_managers`")
        is_complete = self.network and self.speed and len(self.interfaces) == len(self.devices)
        if self.link == "roce" and not is_complete:
            raise FieldError("RoCE needs `network`, `speed`, and an interface for each device", hint="add them")
        if len(set(self.devices)) != len(self.devices) or len(set(self.interfaces)) != len(self.interfaces):
            raise FieldError("a device or an interface is there twice", hint="keep one of them")
        return self
