"""What Linux says of the processors of this machine: sockets, clock and the width of the vector units."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from trainworks.files import readable_text

_FLOPS_PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("avx", 16), ("sse2", 8), ("sve", 32), ("asimd", 16))
"""Operations in fp32 that a core completes in a cycle at most, by the flag of its widest unit, two of them. A processor
with one such unit has half.
https://stackoverflow.com/questions/15655835/flops-per-cycle-for-sandy-bridge-and-haswell-sse2-avx-avx2"""


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors of a machine."""

    model: str
    sockets: int
    flops_per_cycle: int
    """Operations of one core in fp32; 0 where no flag tells."""
    clock_hz: float
    """Nominal clock, or the current one where Linux says no other; 0 if it says none."""
    highest_clock_hz: float | None
    """Clock that no core exceeds; None where Linux does not say."""
    is_virtual: bool
    """A virtual machine: a core may be one of two threads."""


def own_cores() -> frozenset[int]:
    """Numbers of the logical cores that this process may use; all of the machine where its system has no affinities."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processors(root: Path = Path("/")) -> Processors:
    """The processors of this machine, or of the tree under `root`."""
    text = readable_text(root / "proc/cpuinfo")
    fields = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in text.splitlines())]
    facts = dict(reversed(fields))  # of the first core
    flags = set(f"{facts.get('flags', '')} {facts.get('Features', '')}".split())
    khz = readable_text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return Processors(
        model=facts.get("model name", ""),
        sockets=max(1, len({value for name, value in fields if name == "physical id"})),
        flops_per_cycle=next((flops for flag, flops in _FLOPS_PER_CYCLE if flag in flags), 0),
        clock_hz=float(facts.get("cpu MHz") or 0) * 1e6,
        highest_clock_hz=float(khz) * 1e3 if khz else None,
        is_virtual="hypervisor" in flags,
    )
