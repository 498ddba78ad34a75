"""What a row of the catalogue says, in base units. One direction, dense, per accelerator unless a name says otherwise."""

from __future__ import annotations

from typing import Literal

from trainworks.spec.quantities import Spec

__all__ = ["Accelerator", "Link", "Node", "Precision"]

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Accelerator(Spec):
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


class Link(Spec):
    """One port of a network."""

    name: str
    bytes_per_s: float
    latency_s: float | None = None
    """End to end through one switch."""


class Node(Spec):
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
