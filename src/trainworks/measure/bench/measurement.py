"""One measured figure of a node, a link, a group of ranks or a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Quantity(StrEnum):
    """What is measured; the value is the name in records."""

    GEMM = "gemm"
    """FLOP/s of matrix products."""
    HPL = "hpl"
    """FLOP/s of High-Performance Linpack."""
    MEMORY_BANDWIDTH = "memory_bandwidth"
    """B/s of STREAM's triad in host memory, counted as STREAM does."""
    DEVICE_MEMORY_BANDWIDTH = "device_memory_bandwidth"
    """B/s read and written in an accelerator's memory."""
    HOST_LINK = "host_link"
    """B/s in one direction between host and accelerator."""
    LINK_BANDWIDTH = "link_bandwidth"
    """B/s in one direction between two endpoints."""
    LINK_LATENCY = "link_latency"
    """Seconds that one message needs: half a round trip."""
    ALGORITHM_BANDWIDTH = "algbw"
    """B/s of a collective: bytes of a rank's buffer over time."""
    BUS_BANDWIDTH = "busbw"
    """B/s of a collective by nccl-tests' factor: what a ring's slowest link carries in one direction."""
    STORAGE_READ = "storage_read"
    """B/s read from a path."""
    STORAGE_WRITE = "storage_write"
    """B/s written to a path, flushed."""
    STORAGE_OPERATIONS = "storage_operations"
    """Reads or writes a second on a path."""
    METADATA_OPERATIONS = "metadata_operations"
    """Files created, opened or removed a second on a path."""


@dataclass(frozen=True)
class Measurement:
    """A figure in base units (B/s, FLOP/s, s, 1/s) with all that is needed to judge it.

    `subject` is what was measured: a node, `node1 <-> node2`, `node1 gpu3`, `/data`. `tool` is the program that
    measured, with its version. `conditions` name the rest in words of that tool: `operation`, `bytes`, `ranks`,
    `nodes`, `precision`, `rail`, `transport`, `block`, `direction`.
    """

    quantity: Quantity
    value: float
    subject: str
    tool: str
    conditions: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What was measured, with the conditions that tell figures of a kind apart."""
        about = self.conditions
        words = [str(about[name]) for name in ("precision", "operation", "direction", "transport") if name in about]
        words += [f"rail {about['rail']:g}"] if isinstance(about.get("rail"), int | float) else []
        words += [f"cache {about['cache']}"] if about.get("cache") in ("not dropped", "unknown") else []
        words += [str(about["setting"])] if about.get("setting", "default") != "default" else []
        return " ".join([self.quantity.value.replace("_", " "), *words])
