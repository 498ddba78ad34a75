"""AMD accelerators as their driver shows them in sysfs: what `amd-smi` reads, without its library.

Files:    https://docs.kernel.org/gpu/amdgpu/driver-misc.html
Errors:   https://docs.kernel.org/gpu/amdgpu/ras.html
Sensors:  https://docs.kernel.org/gpu/amdgpu/thermal.html
Metrics:  drivers/gpu/drm/amd/include/kgd_pp_interface.h of Linux, `struct gpu_metrics_v1_*`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from trainworks.files import readable_text

AMD = "0x1002"
"""Vendor on the PCI bus."""
AMD_CLASSES = ("0x0380", "0x1200")
"""Classes of accelerators on the PCI bus; 0x0300 are graphics, which no accelerator is."""
AMDGPU_MODULE = Path("sys/module/amdgpu")
_FORM = re.compile(r"\s+(?:OAM|PCIe)\b.*")
_ENERGY_BYTE = {1: 24, 2: 24, 3: 24, 4: 24, 5: 88, 6: 16, 7: 24, 8: 24}
"""Byte of `energy_accumulator` by version 1.N of the metrics."""
_JOULES = 2**-16
"""One count of it."""
_NO_COUNT = 2**64 - 1
_MICRO, _MILLI = 1e-6, 1e-3
ReadText = Callable[[Path], str]
Sensor = Literal["junction", "edge", "mem"]


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One accelerator; a figure that its driver does not show is None."""

    folder: Path
    """On the PCI bus."""
    read: ReadText = readable_text
    """The text of a file; empty if there is none."""

    @property
    def name(self) -> str:
        """Name of the product without its form: `AMD Instinct MI300X`."""
        return _FORM.sub(
            "", self.read(self.folder / "product_name") or f"AMD device {self.read(self.folder / 'device')}"
        )

    @property
    def is_driven(self) -> bool:
        """Whether amdgpu drives it."""
        return self.number("mem_info_vram_total") is not None

    @property
    def power_w(self) -> float | None:
        """Power draw: the present one, or its mean of a moment where the driver shows that alone."""
        found = self.sensor("power1_input") or self.sensor("power1_average")
        return None if found is None else found * _MICRO

    @property
    def energy_j(self) -> float | None:
        """Energy since some moment before the driver was loaded."""
        metrics = self.metrics()
        first = _ENERGY_BYTE.get(metrics[3]) if len(metrics) > 3 else None
        if first is None or len(metrics) < first + 8:
            return None
        count = int.from_bytes(metrics[first : first + 8], "little")
        return None if count == _NO_COUNT else count * _JOULES

    def number(self, name: str) -> int | None:
        """The integer in a file."""
        text = self.read(self.folder / name)
        return int(text) if text.isdigit() else None

    def sensor(self, name: str) -> int | None:
        """A figure of hwmon: `power1_cap` in microwatts, `freq1_input` in Hz."""
        texts = (self.read(file) for file in self.folder.glob(f"hwmon/hwmon*/{name}"))
        return next((int(text) for text in texts if text.isdigit()), None)

    def power_limit_w(self, name: Literal["power1_cap", "power1_cap_default"] = "power1_cap") -> float | None:
        """The power limit, or the one of the vendor."""
        found = self.sensor(name)
        return None if found is None else found * _MICRO

    def temperature_c(self, sensor: Sensor, kind: Literal["input", "crit", "emergency"] = "input") -> int | None:
        """Temperature of a sensor, or its threshold for slower clocks (`crit`) or an end (`emergency`)."""
        for label in self.folder.glob("hwmon/hwmon*/temp*_label"):
            text = self.read(label.with_name(label.name.replace("label", kind)))
            if self.read(label) == sensor and text.isdigit():
                return int(int(text) * _MILLI) or None
        return None

    def errors(self, kind: Literal["ue", "ce"]) -> int | None:
        """Uncorrectable (`ue`) or corrected (`ce`) errors of all its blocks; lines are `ue: 0`, then `ce: 1`."""
        counts = [self.read(each) for each in sorted(self.folder.glob("ras/*_err_count"))]
        found = [re.search(rf"\b{kind}: (\d+)", count) for count in counts]
        return sum(int(match[1]) for match in found if match) if counts else None

    def metrics(self) -> bytes:
        """Binary metrics of version 1.N, whose header is their size, 1 and N; empty for another version."""
        with suppress(OSError):
            metrics = (self.folder / "gpu_metrics").read_bytes()
            return metrics if metrics[2:3] == b"\x01" else b""
        return b""


def amd_gpus(root: Path = Path("/")) -> list[AmdGpu]:
    """The accelerators that amdgpu drives, in the order of the PCI bus; none where it is not loaded."""
    if not (root / AMDGPU_MODULE).is_dir():
        return []
    found = [AmdGpu(folder) for folder in sorted(root.glob("sys/bus/pci/devices/*"))]
    ours = [gpu for gpu in found if gpu.read(gpu.folder / "vendor") == AMD and gpu.is_driven]
    return [gpu for gpu in ours if gpu.read(gpu.folder / "class").startswith(AMD_CLASSES)]


def visible_amd_gpus(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[int, AmdGpu]:
    """Those that a process with these variables sees, by their number in HIP_VISIBLE_DEVICES.

    ROCm first leaves out what ROCR_VISIBLE_DEVICES does not name, and HIP counts in what is left; HIP takes
    CUDA_VISIBLE_DEVICES where HIP_VISIBLE_DEVICES is not set. A list ends at its first unknown entry.
    Source: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    gpus = list(_chosen(environment.get("ROCR_VISIBLE_DEVICES"), amd_gpus(root)).values())
    return _chosen(environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")), gpus)


def _chosen(wanted: str | None, gpus: Sequence[AmdGpu]) -> dict[int, AmdGpu]:
    """GPUs by number, in the order of a list of numbers or of `GPU-` and a unique id; all of them without a list."""
    if wanted is None:
        return dict(enumerate(gpus))
    known = {f"GPU-{gpu.read(gpu.folder / 'unique_id')}": number for number, gpu in enumerate(gpus)}
    known |= {str(number): number for number in range(len(gpus))}
    names = takewhile(known.__contains__, (name.strip() for name in wanted.split(",")))
    return {known[name]: gpus[known[name]] for name in names}
