"""What a row of the catalogue says, in base units: one direction, dense, per accelerator unless a name differs."""

from __future__ import annotations

from typing import Literal

from trainworks.config.quantities import Frozen

__all__ = [
    "Accelerator",
    "Assumption",
    "Fleet",
    "Grid",
    "Link",
    "Node",
    "Offer",
    "Precision",
    "Processor",
    "Storage",
    "Switch",
    "System",
    "Term",
]

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Accelerator(Frozen):
    """One device as the framework sees it."""

    name: str
    """As a run file writes it: `A100-SXM-80GB`."""
    vendor: str
    launched: int
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: dict[Precision, float]
    """Dense matrix rate by precision; a precision that is not there has no matrix units."""
    matmul_flops_per_s: float | None = None
    """Fastest bf16 product that anybody published; None where nobody did."""
    multiprocessors: int | None = None
    """SMs or compute units that share a product's tiles."""
    scale_up: str
    """Name of the link inside the scale-up domain; `none` where there is only PCIe."""
    scale_up_bytes_per_s: float
    """Into the scale-up domain; 0 where there is none."""
    host_bytes_per_s: float
    """To the host: PCIe or a chip-to-chip link."""
    power_w: float | None = None
    usable_bytes: int | None = None
    """What the framework reports as the device's capacity; None where nobody published it."""
    memory_type: str | None = None
    memory_stacks: int | None = None
    """HBM stacks; None for other memory."""
    architecture: str | None = None
    scale_up_group: int | None = None
    """Accelerators that a bridge joins; None where a switch, a mesh or a torus joins all of a node."""
    pair_bytes_per_s: float | None = None
    """Between two accelerators alone, in a mesh or torus; None where a pair has all of `scale_up_bytes_per_s`."""
    reference_node: str | None = None
    """The node that a planner assumes when it knows the accelerator only."""


class Link(Frozen):
    """One port of a network; of a scale-up link all ports of one accelerator together."""

    name: str
    bytes_per_s: float
    latency_s: float | None = None
    """End to end through one switch."""
    network: str = "unnamed"
    """Kind of the fabric; `scale-up` inside a domain, `host` for PCIe and its like."""
    lanes: int | None = None
    lane_bytes_per_s: float | None = None


class Switch(Frozen):
    """A switch of a fabric."""

    name: str
    network: str
    ports: int
    port_bytes_per_s: float
    latency_s: float | None = None
    """Port to port; None where no vendor publishes it."""
    in_network_reduction: bool = False


class Node(Frozen):
    """A machine as it is sold or rented."""

    name: str
    accelerator: str
    accelerators: int
    scale_up_domain: int
    """Accelerators that reach each other over the scale-up link; more than one node's on an NVL72."""
    nics: int
    nic_bytes_per_s: float
    """Of each NIC; what the node can send at once is `nics` times that."""
    network: str
    """Kind of the fabric: InfiniBand, RoCE, EFA, TCP, Omni-Path."""
    in_network_reduction: bool = False
    """Whether switches can add up (SHARP)."""
    kind: Literal["machine", "instance", "reference"] = "machine"
    """Sold, rented, or assumed for an accelerator that comes without a node."""
    provider: str | None = None
    scale_up_reduction: bool = False
    """Whether the scale-up switches can add up (NVLS)."""
    nic_slot_bytes_per_s: float | None = None
    """PCIe slot of each NIC where it differs from the accelerator's; None where it is the same."""
    processor: str | None = None
    """Of the catalogue; None where nobody says."""
    processors: int | None = None
    """Sockets."""
    vcpus: int | None = None
    host_memory_bytes: int | None = None
    power_w: float | None = None


class System(Frozen):
    """Several nodes that are sold, or rented, under one name."""

    name: str
    form: Literal["rack", "server", "pod"]
    """What its vendor calls it."""
    node: str
    """The node of the catalogue that it is made of."""
    nodes: int


class Term(Frozen):
    """A word that people write for hardware, a network or a model, and that no plan can take."""

    name: str
    meaning: str
    """The predicate of a sentence about it."""
    instead: str
    """What to write, in the imperative."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of other names with the same explanation."""
    clusters: tuple[str, ...] = ()
    """Descriptions of clusters that `instead` proposes."""
    networks: tuple[str, ...] = ()
    """Networks behind `over` that `instead` proposes."""
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


class Storage(Frozen):
    """A kind of storage: what one server of it gives, and what it is good for."""

    name: str
    form: Literal["local drives", "file server", "object store", "parallel file system", "cache"]
    posix: bool
    """Whether a program opens its files as any other file."""
    fewest_servers: int = 1
    """Below which it keeps no copies, or nobody takes over."""
    most_servers: int | None = None
    """1 where it does not scale out; None where no limit is near."""
    survives: Literal["nothing", "drives", "servers", "sites"]
    """The largest thing whose loss costs no data."""
    server: str
    """What one server is: `drive`, `storage server`, of a service a `default quota`."""
    server_read_bytes_per_s: float | None = None
    """None where only the clients limit it."""
    server_write_bytes_per_s: float | None = None
    server_capacity_bytes: int | None = None
    """Usable; None where it is bought by the byte."""
    client_bytes_per_s: float | None = None
    """One node's largest rate; None where the storage is in the node."""
    opens_per_s: float
    """Files found and opened per second, by one metadata server or, where there is none, one server."""
    latency_s: float
    """From opening a small file to its first byte."""
    good_for: str


class Offer(Frozen):
    """What somebody asks for a node, or for a part of one, per hour."""

    name: str
    provider: str
    node: str | None = None
    """Of the catalogue; None where the provider names the accelerator only."""
    accelerator: str
    accelerators: int
    usd_per_hour: float | None = None
    """On demand, for all its accelerators; None where it is not sold that way."""
    spot_usd_per_hour: tuple[float, ...] = ()
    """Cheapest, median and dearest zone; empty where there is no spot market."""
    zones: int | None = None
    """With a spot price."""
    region: str = "not given"
    source: str = ""
    """Who says so, of a price that did not come with the catalogue; empty where the catalogue's row says it."""


class Fleet(Frozen):
    """How often nodes failed somewhere."""

    name: str
    accelerator: str | None = None
    nodes: int | None = None
    days: float | None = None
    """Observed; with `nodes` and `failures` they give the rate."""
    failures: int | None = None
    causes: dict[str, int] | None = None
    """What the failures were; adds up to them."""
    failures_per_node_s: float
    """Failures of one node per second."""
    hardware_share: float | None = None
    """Share of the failures after which a node needs repair; None where nobody said."""
    stands_for: tuple[str, ...] = ()
    """Architectures whose plans take this rate where none is given."""

    @property
    def node_mttf_s(self) -> float:
        """Mean time between failures of one node."""
        return 1 / self.failures_per_node_s


class Assumption(Frozen):
    """A number of the world that differs from place to place: what it is usually, and how far it strays."""

    name: str
    low: float
    typical: float
    high: float
    unit: str


class Grid(Frozen):
    """The electricity of a country, or of the place of a cloud region."""

    name: str
    kg_co2e_per_kwh: float
    """Greenhouse gases of a kilowatt-hour, averaged over a year."""
