"""What this machine does now: processors, memory and NVIDIA accelerators, by all programs together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
import pynvml

from trainworks.host.nvml import ask

_LOOK_S = 0.1
"""Without a period psutil counts from the last call of the same thread, and answers 0 to the first call of each."""


@dataclass(frozen=True, slots=True)
class AcceleratorLoad:
    """One accelerator; figures that it does not report are None."""

    index: int
    name: str
    busy_share: float | None
    """Share of the last sampling period in which a kernel ran, 0 to 1; says nothing of how well it ran."""
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The machine at one moment."""

    cores_busy: float
    """Cores in use during the look of `_LOOK_S`."""
    cores: int
    memory_used_bytes: int
    memory_bytes: int
    accelerators: tuple[AcceleratorLoad, ...] = ()


def machine_load(nvml: Any = pynvml) -> MachineLoad:
    """Look at the machine for a tenth of a second; without a driver the accelerators are empty."""
    memory = psutil.virtual_memory()
    return MachineLoad(
        cores_busy=psutil.cpu_percent(_LOOK_S) / 100 * (psutil.cpu_count() or 1),
        cores=psutil.cpu_count() or 1,
        memory_used_bytes=memory.total - memory.available,
        memory_bytes=memory.total,
        accelerators=_accelerators(nvml),
    )


def _accelerators(nvml: Any) -> tuple[AcceleratorLoad, ...]:
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return ()
    return tuple(_accelerator(nvml, index) for index in range(count))


def _accelerator(nvml: Any, index: int) -> AcceleratorLoad:
    device = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    use, memory = ask(nvml.nvmlDeviceGetUtilizationRates, device), ask(nvml.nvmlDeviceGetMemoryInfo, device)
    power, limit = ask(nvml.nvmlDeviceGetPowerUsage, device), ask(nvml.nvmlDeviceGetEnforcedPowerLimit, device)
    return AcceleratorLoad(
        index=index,
        name=ask(nvml.nvmlDeviceGetName, device) or "unknown",
        busy_share=None if use is None else use.gpu / 100,
        memory_used_bytes=None if memory is None else memory.used,
        memory_bytes=None if memory is None else memory.total,
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU),
    )
