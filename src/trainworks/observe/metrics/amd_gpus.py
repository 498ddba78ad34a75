"""Metrics of AMD GPUs under the names that NVIDIA's have.

One name for one quantity lets an alert or panel hold for both vendors; the label `modelName` says which it is.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainworks.host.amd import AmdGpu, amd_gpus
from trainworks.observe.metrics.family import MetricSample
from trainworks.observe.metrics.gpus import GPU_FAMILIES

_BY_NAME = {family.name.removeprefix("DCGM_FI_DEV_"): family for family in GPU_FAMILIES}
_MIB, _MEGA, _MILLIJOULES = 2**20, 1e6, 1e3
_LEVEL = re.compile(r"\d+: (\d+)Mhz")
"""A clock that the driver may choose: `1: 2100Mhz *`."""


def _sensor_in(unit: float, name: str) -> Callable[[AmdGpu], float | None]:
    return lambda gpu: _scaled(gpu.sensor(name), 1 / unit)


def _number(name: str, factor: float = 1.0) -> Callable[[AmdGpu], float | None]:
    return lambda gpu: _scaled(gpu.number(name), factor)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _highest_clock(gpu: AmdGpu) -> float | None:
    return max(map(int, _LEVEL.findall(gpu.read(gpu.folder / "pp_dpm_sclk"))), default=None)


def _free(gpu: AmdGpu) -> float | None:
    total, used = gpu.number("mem_info_vram_total"), gpu.number("mem_info_vram_used")
    return None if total is None or used is None else (total - used) / _MIB


_FIGURES: Mapping[str, Callable[[AmdGpu], float | None]] = {
    "SM_CLOCK": _sensor_in(_MEGA, "freq1_input"),
    "MEM_CLOCK": _sensor_in(_MEGA, "freq2_input"),
    "MAX_SM_CLOCK": _highest_clock,
    "GPU_TEMP": lambda gpu: gpu.temperature_c("junction"),
    "SLOWDOWN_TEMP": lambda gpu: gpu.temperature_c("junction", "crit"),
    "SHUTDOWN_TEMP": lambda gpu: gpu.temperature_c("junction", "emergency"),
    "MEMORY_TEMP": lambda gpu: gpu.temperature_c("mem"),
    "POWER_USAGE": lambda gpu: gpu.power_w,
    "TOTAL_ENERGY_CONSUMPTION": lambda gpu: _scaled(gpu.energy_j, _MILLIJOULES),
    "ENFORCED_POWER_LIMIT": lambda gpu: gpu.power_limit_w(),
    "POWER_MGMT_LIMIT_DEF": lambda gpu: gpu.power_limit_w("power1_cap_default"),
    "GPU_UTIL": _number("gpu_busy_percent"),
    "MEM_COPY_UTIL": _number("mem_busy_percent"),
    "FB_TOTAL": _number("mem_info_vram_total", 1 / _MIB),
    "FB_USED": _number("mem_info_vram_used", 1 / _MIB),
    "FB_FREE": _free,
    "ECC_SBE_VOL_TOTAL": lambda gpu: gpu.errors("ce"),
    "ECC_DBE_VOL_TOTAL": lambda gpu: gpu.errors("ue"),
    "PCIE_LINK_WIDTH": _number("current_link_width"),
    "PCIE_MAX_LINK_WIDTH": _number("max_link_width"),
    "PCIE_REPLAY_COUNTER": _number("pcie_replay_count"),
}


def amd_gpu_samples(root: Path = Path("/")) -> Iterator[MetricSample]:
    """Every figure that each AMD GPU of this machine has."""
    for index, gpu in enumerate(amd_gpus(root)):
        unique = gpu.read(gpu.folder / "unique_id")
        labels = (str(index), unique, gpu.folder.name, f"card{index}", gpu.name, socket.gethostname())
        for name, figure in _FIGURES.items():
            if (value := figure(gpu)) is not None:
                yield _BY_NAME[name].of(value, *labels)
