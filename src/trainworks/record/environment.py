"""Where a run ran: facts about one machine, as found by `host.probe`."""

from __future__ import annotations

from typing import Literal

from trainworks.config.quantities import Spec

__all__ = ["AcceleratorFacts", "HostFacts"]


class AcceleratorFacts(Spec):
    """One accelerator as its driver names it."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    """Of NVIDIA's architectures: 8.0 Ampere, 8.9 Ada, 9.0 Hopper; None in records of older versions."""


class HostFacts(Spec):
    """One machine. Cores and memory are what this process may use: affinity and cgroup limits are applied."""

    hostname: str
    operating_system: str
    processor: str
    processor_formats: tuple[Literal["bf16", "fp16"], ...] = ()
    """16-bit formats that the processor has arithmetic for; where it emulates one, fp32 is faster."""
    num_cores: int
    memory_bytes: int
    disk_free_bytes: int
    """Free where the run directory will be."""
    accelerators: tuple[AcceleratorFacts, ...] = ()
    python: str
    packages: dict[str, str]
    """Versions of the packages that decide numerics and speed; absent ones are left out."""
