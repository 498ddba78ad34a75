"""Facts about one machine of a run, as found by `host.probe`."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Spec


class AcceleratorFacts(Spec):
    """One accelerator as its driver names it."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    """Compute capability of NVIDIA accelerators: 8.0 Ampere, 8.9 Ada, 9.0 Hopper; None in records of older versions."""
    power_limit_w: float | None = None
    """Enforced power limit; None where the driver does not report it."""
    uuids: tuple[str, ...] = ()
    """UUID, and of a part by MIG also that of its GPU; empty for AMD, and in records of older versions."""
    gpu: int | None = None
    """Index of the GPU that it is a part of by MIG; None for a whole one."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that a user may call it: its index or UUID, or those of the GPU that it is a part of."""
        return (str(self.index), *self.uuids, *([] if self.gpu is None else [str(self.gpu)]))


class HostFacts(Spec):
    """One machine. Cores and memory are those that this process may use, with affinity and cgroup limits applied."""

    hostname: str
    operating_system: str
    processor: str
    processor_formats: tuple[Literal["bf16", "fp16"], ...] = ()
    """16-bit formats with native arithmetic; fp32 is faster than an emulated format."""
    num_cores: int
    memory_bytes: int
    disk_free_bytes: int
    """Free space for the run directory."""
    accelerators: tuple[AcceleratorFacts, ...] = ()
    python: str
    packages: dict[str, str]
    """Versions of the installed packages that determine numerics and speed."""
    builds_kernels: bool = True
    """Whether Triton can: it needs a C compiler and Python's headers. Records of older versions do not say so."""
