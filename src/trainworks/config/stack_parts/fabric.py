"""`fabric` of the stack file: the network that ranks talk over."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import Version

InterfaceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
KernelRelease = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*([.-][A-Za-z0-9._-]+)?$", max_length=64)]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=63)]


class MpiJobs(Spec):
    """Open MPI over UCX on the nodes, for jobs that are not Python wheels."""

    openmpi: Version
    """Release of Open MPI that is there, `4.1`: 4 takes `btl` and `pml`, 5 has no openib."""
    cuda: bool = True
    """UCX and Open MPI were built with CUDA; the role looks for it."""


class FabricDesign(Spec):
    """The network between the compute nodes, as `trainworks network` designs it."""

    nics: Annotated[int, Field(ge=1, le=256)]
    """Adapters of a node in this network."""
    port: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """One adapter, as behind `over` in a description of a cluster: `HDR`, `RoCE 400` or `200 Gb/s`."""
    topology: Annotated[str, StringConstraints(max_length=32)] = "auto"
    """Name of a topology of `trainworks network`, or `auto`."""
    switch: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    """Switch of the catalogue, or its ports such as `64x 400 Gb/s`; by default the one that fits the adapters."""
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Links down over links up of a leaf, at most."""
    sharp: bool = False
    """InfiniBand switches that reduce (SHARP): NCCL uses them, and a plan counts on it."""
    spare_slots: Annotated[int, Field(ge=0)] = 0
    """Places for nodes that a fabric manager takes."""


class NodeAdapters(Spec):
    """Adapters of one group of nodes in the stack's network; `none` in its place leaves them as they are."""

    link: Literal["infiniband", "roce", "none"] | None = None
    """Kind of the adapters; by default that of the stack."""
    devices: tuple[InterfaceName, ...] = ()
    """RDMA devices in the order of their rails; by default those of the stack."""
    interfaces: tuple[InterfaceName, ...] = ()
    """With `roce`: network interfaces of these devices; by default those of the stack."""

    @model_validator(mode="before")
    @classmethod
    def _by_a_word(cls, value: object) -> object:
        return {"link": "none"} if value == "none" else value


class Fabric(Spec):
    """Adapters of the compute nodes, their driver, and the switches between them."""

    design: FabricDesign | None = None
    """Network that Slurm's topology, the batches of an apply and the text of the switches follow; by default the one
    that Trainworks designs for the adapters."""
    link: Literal["infiniband", "roce"] | None = None
    """Kind of the adapters to configure; without it, adapters and switches are left as they are."""
    driver: Literal["inbox", "doca-ofed"] = "inbox"
    """Driver of the adapters: that of the kernel and rdma-core, or NVIDIA's DOCA-OFED, whose repository you set up."""
    doca: Version | None = None
    """Release of DOCA with `doca-ofed`: `3.2`."""
    kernel: KernelRelease | None = None
    """Kernel of the nodes as `uname -r` begins, `6.8`, or all of it, `6.8.0-60-generic`, which `deploy upgrade`
    installs; `deploy check` holds DOCA's list against it."""
    devices: tuple[InterfaceName, ...] = ()
    """With `link`: RDMA devices of a compute node, in the order of its rails: `mlx5_0`, as `rdma link` prints them."""
    interfaces: tuple[InterfaceName, ...] = ()
    """With `roce`: network interfaces of these devices, in the same order."""
    subnet_managers: tuple[HostName, ...] = ()
    """With `infiniband`: hosts that run OpenSM, the first one as the master; none where switches or UFM do."""
    network: IPv4Network | None = None
    """With `roce`: addresses of the rails, two for each port of a node, and one for each switch."""
    speed: Literal[100, 200, 400, 800] | None = None
    """With `roce` and without `design`: rate of an adapter in Gb/s."""
    asn: Annotated[int, Field(ge=64512, le=4294967294)] = 4200000000
    """With `roce`: autonomous system of the spines; leaves have the next ones. The default is private (RFC 6996)."""
    switches: Literal["cumulus", "eos", "none"] = "cumulus"
    """With `roce`: what the switches run, NVIDIA Cumulus with NVUE or Arista EOS; `none` writes no text for them."""
    mpi: MpiJobs | None = None

    def with_adapters(self, own: NodeAdapters) -> Fabric:
        """The same network with the adapters of a group.

        Raises:
            FieldError: they do not fit this network.
        """
        link = own.link if own.link in ("infiniband", "roce") else self.link
        devices = own.devices or self.devices
        interfaces = (own.interfaces or self.interfaces) if link == "roce" else ()
        if link is None or (link == "roce" and self.link != "roce"):
            hint = f"write `link: {own.link or 'infiniband'}` into the `fabric` of the stack"
            raise FieldError("adapters of a group need the `fabric` of the stack, of their kind", hint=hint)
        if link == "roce" and len(interfaces) != len(devices):
            message = f"{len(devices)} devices of a group have {len(interfaces)} interfaces"
            raise FieldError(message, hint="name an interface for each device")
        if len(set(devices)) != len(devices) or len(set(interfaces)) != len(interfaces):
            raise FieldError("a device or an interface is there twice", hint="keep one of them")
        return self.model_copy(update={"link": link, "devices": devices, "interfaces": interfaces})

    @model_validator(mode="after")
    def _a_link_or_a_design(self) -> Fabric:
        if self.link is None and (self.design is None or self.devices):
            raise FieldError("the adapters need a `link`", hint="write `link: infiniband` or `link: roce`")
        if self.link is not None and not self.devices:
            raise FieldError(f"`link: {self.link}` needs `devices`", hint="name those that `rdma link` prints")
        if self.link is not None and self.design is not None and self.design.nics != len(self.devices):
            message = f"`design` has {self.design.nics} adapters of a node, and `devices` names {len(self.devices)}"
            raise FieldError(message, hint="name the device of each adapter in this network")
        return self

    @model_validator(mode="after")
    def _keys_of_its_link(self) -> Fabric:
        if (self.doca is None) != (self.driver == "inbox"):
            raise FieldError("`doca` is the release with `driver: doca-ofed`", hint="write both, or neither")
        if self.doca is not None and self.kernel is None:
            raise FieldError("DOCA-OFED is built for a kernel", hint="write `kernel:` as `uname -r` begins, `6.8`")
        if self.link != "roce" and (self.interfaces or self.network or self.speed):
            raise FieldError("`interfaces`, `network` and `speed` are for `link: roce`", hint="remove them")
        if self.link != "infiniband" and self.subnet_managers:
            raise FieldError("Ethernet has no subnet manager", hint="remove `subnet_managers`")
        if self.speed and self.design:
            raise FieldError("`design.port` has the rate of an adapter", hint="remove `speed`")
        is_complete = self.network and (self.speed or self.design) and len(self.interfaces) == len(self.devices)
        if self.link == "roce" and not is_complete:
            raise FieldError("RoCE needs `network`, `speed`, and an interface for each device", hint="add them")
        if len(set(self.devices)) != len(self.devices) or len(set(self.interfaces)) != len(self.interfaces):
            raise FieldError("a device or an interface is there twice", hint="keep one of them")
        return self
