"""Rows of the catalogue in base units: one direction, dense, per accelerator unless a name says otherwise."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainworks.config.spec import Frozen

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


Component = Literal[
    "driver",
    "CUDA",
    "ROCm",
    "GPU generation",
    "operating system",
    "Slurm",
    "PyTorch",
    "PMIx",
    "NGC image",
    "GPU operator",
]


PYTORCH_VENDORS = ("NVIDIA", "AMD")
"""Whose accelerators run the same PyTorch program; `size` tries the others when they are named."""


class Accelerator(Frozen):
    """An accelerator: one device of the framework."""

    name: str
    """Name in run files: `A100-SXM-80GB`."""
    vendor: str
    launched: int
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: dict[Precision, float]
    """Dense matrix rate by precision; a missing precision has no matrix units."""
    matmul_flops_per_s: float | None = None
    """Fastest published bf16 product; None if unpublished."""
    multiprocessors: int | None = None
    """SMs or compute units that the tiles of a product are distributed over."""
    scale_up: str
    """Name of the link inside the scale-up domain; `none` if there is only PCIe."""
    scale_up_bytes_per_s: float
    """Bandwidth into the scale-up domain; 0 without one."""
    bridge: str | None = None
    """Name of a link that can be bought to join two cards; it counts where the description says so."""
    host_bytes_per_s: float
    """Bandwidth to the host: PCIe or a chip-to-chip link."""
    power_w: float | None = None
    """Power limit of the board."""
    rated_power_w: float | None = None
    """Power limit of the data sheet where the board has another one; else None."""
    chip_power_w: float | None = None
    """Power of the board that feeds the same chip most, where this one is a card that feeds it less; else None."""
    usable_bytes: int | None = None
    """Device capacity as the framework reports it; None if unpublished."""
    memory_type: str | None = None
    memory_stacks: int | None = None
    """HBM stacks; None for other memory."""
    architecture: str | None = None
    scale_up_group: int | None = None
    """Accelerators joined by a bridge; None if a switch, a mesh or a torus joins all of a node."""
    pair_bytes_per_s: float | None = None
    """Bandwidth of one pair in a mesh or torus; None if a pair has all of `scale_up_bytes_per_s`."""
    reference_node: str | None = None
    """Node to assume if only the accelerator is known."""


class Link(Frozen):
    """One port of a network; for a scale-up link, all ports of one accelerator together."""

    name: str
    bytes_per_s: float
    latency_s: float | None = None
    """Latency end to end through one switch."""
    network: str = "unnamed"
    """Kind of fabric; `scale-up` inside a domain, `host` for PCIe and similar."""
    lanes: int | None = None
    lane_bytes_per_s: float | None = None


class Switch(Frozen):
    """A switch of a fabric."""

    name: str
    network: str
    ports: int
    port_bytes_per_s: float
    latency_s: float | None = None
    """Latency port to port; None if unpublished."""
    in_network_reduction: bool = False
    announced: bool = False
    """True before it can be bought."""
    cage_ports: int = 1
    """Ports that share a cage, and so a transceiver: two in an OSFP cage of 2 x 400 Gb/s."""
    power_w: float | None = None
    """Largest power, with a transceiver in every cage; None if unpublished."""
    price_usd: float | None = None
    """Price without transceivers; None where no source has one."""


class AttentionKernel(Frozen):
    """Published rates of a fused attention kernel by sequence length, with heads of one size on one accelerator.

    FLOPs are those of the pairs of tokens that the mask leaves: 4 T^2 d per head forward without one and half with a
    causal one, 2.5 times that backward. An empty table was not published.
    """

    name: str
    kernel: str
    """`flash-2`, `cudnn` ..."""
    accelerator: str
    """Name of the accelerator in the catalogue; it stands for its generation."""
    head_dim: int
    forward_flops_per_s: dict[int, float] = Field(default_factory=dict)
    backward_flops_per_s: dict[int, float] = Field(default_factory=dict)
    causal_forward_flops_per_s: dict[int, float] = Field(default_factory=dict)
    causal_backward_flops_per_s: dict[int, float] = Field(default_factory=dict)


class Node(Frozen):
    """A machine as sold or rented."""

    name: str
    accelerator: str
    accelerators: int
    scale_up_domain: int
    """Accelerators that reach each other over the scale-up link; on an NVL72 those of several nodes."""
    nics: int
    nic_bytes_per_s: float = 0.0
    """Bandwidth of each NIC; the node has `nics` times that."""
    network: str
    """Kind of fabric: InfiniBand, RoCE, EFA, TCP, Omni-Path."""
    in_network_reduction: bool = False
    """The switches can reduce (SHARP)."""
    kind: Literal["machine", "instance", "reference"] = "machine"
    """Sold, rented, or assumed for an accelerator without a node."""
    provider: str | None = None
    scale_up_reduction: bool = False
    """The scale-up switches can reduce (NVLS)."""
    nic_slot_bytes_per_s: float | None = None
    """Bandwidth of the PCIe slot of each NIC; None if it is that of the accelerator."""
    processor: str | None = None
    """Name of the processor in the catalogue; None if unpublished."""
    processors: int | None = None
    """Sockets."""
    vcpus: int | None = None
    host_memory_bytes: int | None = None
    power_w: float | None = None
    cage_nics: int = 1
    """NICs that share a cage of the node, and so a transceiver."""
    scalable_unit: int | None = None
    """Nodes of the unit that the vendor builds clusters of; None without a published design."""
    ethernet_unit: int | None = None
    """Nodes of the unit of the vendor's design over Ethernet at the same rate, in two planes; None without one."""


class System(Frozen):
    """Several nodes sold or rented under one name."""

    name: str
    form: Literal["rack", "server", "pod"]
    """Form as the vendor names it."""
    node: str
    """Name of its node in the catalogue."""
    nodes: int


class Term(Frozen):
    """A common word for hardware, a network or a model that no plan can use."""

    name: str
    meaning: str
    """The predicate of a sentence about it."""
    instead: str
    """Replacement, in the imperative."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of other names with the same explanation."""
    left_out: bool = False
    """True for what Trainworks deliberately does not do or support."""
    packages: tuple[str, ...] = ()
    """Names by which files import, install or start it; `*` stands for any ending."""
    clusters: tuple[str, ...] = ()
    """Descriptions of clusters that `instead` proposes."""
    networks: tuple[str, ...] = ()
    """Networks after `over` that `instead` proposes."""
    switches: tuple[str, ...] = ()
    """Switches that `instead` proposes."""
    models: tuple[str, ...] = ()
    """Models that `instead` proposes."""
    topologies: tuple[str, ...] = ()
    """Topologies that `instead` proposes."""


class Processor(Frozen):
    """One socket of a node."""

    name: str
    vendor: str
    cores: int
    pcie_generation: int
    pcie_lanes: int
    memory_type: str
    memory_channels: int
    launched: int
    power_w: float
    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    """Instructions that its programs are compiled for, as `uname -m` prints them."""


class Storage(Frozen):
    """A kind of storage: performance of one server, and its use."""

    name: str
    form: Literal["local drives", "file server", "object store", "parallel file system", "cache"]
    posix: bool
    """Programs open its files through the file system."""
    fewest_servers: int = 1
    """Fewest servers for redundancy."""
    most_servers: int | None = None
    """1 if it does not scale out; None without a practical limit."""
    survives: Literal["nothing", "drives", "servers", "sites"]
    """The largest failure without loss of data."""
    server: str
    """Kind of server: `drive`, `storage server`; for a service, `default quota`."""
    server_read_bytes_per_s: float | None = None
    """None if only the clients limit it."""
    server_write_bytes_per_s: float | None = None
    server_capacity_bytes: int | None = None
    """Usable capacity; None if it is bought by the byte."""
    client_bytes_per_s: float | None = None
    """Highest rate of one node; None if the storage is in the node."""
    opens_per_s: float
    """Files opened per second by one metadata server or, without one, one server."""
    latency_s: float
    """Latency from opening a small file to its first byte."""
    good_for: str


class Offer(Frozen):
    """Price of a node, or of a part of one, per hour."""

    name: str
    provider: str
    node: str | None = None
    """Name of the node in the catalogue; None if the provider names the accelerator only."""
    accelerator: str
    accelerators: int
    usd_per_hour: float | None = None
    """On-demand price of all its accelerators; None if not sold on demand."""
    spot_usd_per_hour: tuple[float, ...] = ()
    """Cheapest, median and most expensive zone; empty without a spot market."""
    zones: int | None = None
    """Number of zones with a spot price."""
    region: str = "not given"
    compliance: tuple[str, ...] = ()
    """Certificates and rules that the provider states; none in the catalogue, as they are those of a contract."""
    source: str = ""
    """Source of a price from outside the catalogue; empty if the row of the catalogue has it."""


class Fleet(Frozen):
    """Observed failures of a fleet of nodes."""

    name: str
    accelerator: str | None = None
    nodes: int | None = None
    days: float | None = None
    """Days of observation; the rate is `failures / nodes / days`."""
    failures: int | None = None
    causes: dict[str, int] | None = None
    """Number of failures by cause; they add up to `failures`."""
    failures_per_node_s: float
    """Failure rate of one node."""
    hardware_share: float | None = None
    """Share of the failures after which a node needs repair; None if unpublished."""
    stands_for: tuple[str, ...] = ()
    """Architectures with this rate as default."""

    @property
    def node_mttf_s(self) -> float:
        """Mean time between failures of one node."""
        return 1 / self.failures_per_node_s


class PublishedRun(Frozen):
    """A training run whose speed was published."""

    name: str
    accelerator: str
    """Name of the accelerator in the catalogue."""
    accelerators: int
    bits: int
    """Width of the operands of its matrix products."""
    experts: bool
    """The model has routed experts."""
    mfu: float
    """Model FLOPs over the dense peak of the data sheet in the run's precision; attention counts in full."""


class Assumption(Frozen):
    """A number that differs from place to place: its typical value and range."""

    name: str
    low: float
    typical: float
    high: float
    unit: str


class ElectricityGrid(Frozen):
    """Electricity of a country, or of the location of a cloud region."""

    name: str
    kg_co2e_per_kwh: float
    """Greenhouse gases per kilowatt-hour, averaged over a year."""


class BenchAnchor(Frozen):
    """A published benchmark result, or a threshold, that bounds and expected values are tested against."""

    name: str
    kind: Literal["measured", "threshold", "impossible"]
    """`impossible`: published, and above what the hardware allows."""
    quantity: str
    """Name in benchmark records: `busbw`, `link_bandwidth`."""
    cluster: str
    """Description of the hardware."""
    value: float
    """In B/s or FLOP/s."""
    conditions: dict[str, str | float] = Field(default_factory=dict)


class Release(Frozen):
    """A release of a part of a software stack, or a GPU generation, and what it needs and supports."""

    name: str
    component: Component
    ends: str | None = None
    """Last month of free support, `2028-06`; None for a part without such a date."""
    first_driver: int | None = None
    """Oldest driver branch that runs it."""
    last_driver: int | None = None
    """Newest driver branch that runs it; None while every new one does."""
    first_cuda: str | None = None
    last_cuda: str | None = None
    """Last CUDA, or its major release, that compiles for a GPU generation; None while every new one does."""
    first_rocm: str | None = None
    """First ROCm that compiles for a GPU generation of AMD."""
    builds: tuple[str, ...] = ()
    """CUDA releases that wheels are published for."""
    rocm_builds: tuple[str, ...] = ()
    """ROCm releases that wheels are published for."""
    slurm: str | None = None
    """Release of Slurm in the packages of an operating system."""
    kernel: str | None = None
    """Generic kernel of an operating system, the one that vendors build drivers for."""
    first_slurm: str | None = None
    """Oldest release of Slurm with a plugin for it."""
    kernel_module: Literal["open", "proprietary"] | None = None
    """The kernel module of the driver that alone knows a GPU generation; None where both do."""
    first_operator: str | None = None
    """Oldest GPU operator that knows a GPU generation; None if every one of today does."""
    python: str | None = None
    """Release of an operating system's own python3."""
    first_python: str | None = None
    last_python: str | None = None
    """Newest Python that wheels are published for; None where that is not known."""
    left_out: tuple[str, ...] = ()
    """CUDA of wheels, and a GPU generation that they have no code for: `12.8 Pascal`."""
    cuda: str | None = None
    """CUDA of an image, and of later ones up to the next row."""


class XidAction(Frozen):
    """A GPU error in the kernel's log, and what to do about it."""

    name: str
    """`XID 79`."""
    action: Literal["ignore", "restart-app", "monitor", "support", "reset", "reboot", "isolate"]
    """`restart-app`: of the job alone; `isolate`: no job until it is repaired."""
    meaning: str
