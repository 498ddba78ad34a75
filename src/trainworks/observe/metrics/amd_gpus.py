"""Metrics of AMD GPUs, read through amdsmi (extra `amd`), under the names that NVIDIA's have.

One name for one quantity lets an alert or panel hold for both vendors; the label `modelName` says which it is.
Source: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trainworks.observe.metrics.family import MetricSample
from trainworks.observe.metrics.gpus import GPU_FAMILIES

_BY_NAME = {family.name.removeprefix("DCGM_FI_DEV_"): family for family in GPU_FAMILIES}
_MILLIJOULE = 1e-3
"""In microjoules, the unit of amdsmi's counter."""


@dataclass(frozen=True, slots=True)
class _AmdFigure:
    name: str
    """DCGM's, without its prefix."""
    function: str
    """Function of amdsmi; its first argument is the GPU."""
    keys: tuple[str, ...] = ()
    """Way to the figure in the answer."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Further arguments: enumeration and member."""
    factor: float = 1.0


def _temperature(name: str, sensor: str, metric: str) -> _AmdFigure:
    arguments = (("AmdSmiTemperatureType", sensor), ("AmdSmiTemperatureMetric", metric))
    return _AmdFigure(name, "amdsmi_get_temp_metric", arguments=arguments)


def _clock(name: str, clock: str, key: str = "clk") -> _AmdFigure:
    return _AmdFigure(name, "amdsmi_get_clock_info", (key,), (("AmdSmiClkType", clock),))


_FIGURES = (
    _clock("SM_CLOCK", "GFX"),
    _clock("MEM_CLOCK", "MEM"),
    _clock("VIDEO_CLOCK", "VCLK0"),
    _clock("MAX_SM_CLOCK", "GFX", "max_clk"),
    _temperature("GPU_TEMP", "HOTSPOT", "CURRENT"),
    _temperature("SLOWDOWN_TEMP", "HOTSPOT", "CRITICAL"),
    _temperature("SHUTDOWN_TEMP", "HOTSPOT", "EMERGENCY"),
    _temperature("MEMORY_TEMP", "VRAM", "CURRENT"),
    _AmdFigure("POWER_USAGE", "amdsmi_get_power_info", ("current_socket_power",)),
    _AmdFigure("POWER_USAGE", "amdsmi_get_power_info", ("average_socket_power",)),
    _AmdFigure("ENFORCED_POWER_LIMIT", "amdsmi_get_power_cap_info", ("power_cap",), factor=1e-6),
    _AmdFigure("POWER_MGMT_LIMIT_DEF", "amdsmi_get_power_cap_info", ("default_power_cap",), factor=1e-6),
    _AmdFigure("GPU_UTIL", "amdsmi_get_gpu_activity", ("gfx_activity",)),
    _AmdFigure("MEM_COPY_UTIL", "amdsmi_get_gpu_activity", ("umc_activity",)),
    _AmdFigure("FB_TOTAL", "amdsmi_get_gpu_vram_usage", ("vram_total",)),
    _AmdFigure("FB_USED", "amdsmi_get_gpu_vram_usage", ("vram_used",)),
    _AmdFigure("ECC_SBE_VOL_TOTAL", "amdsmi_get_gpu_total_ecc_count", ("correctable_count",)),
    _AmdFigure("ECC_DBE_VOL_TOTAL", "amdsmi_get_gpu_total_ecc_count", ("uncorrectable_count",)),
    _AmdFigure("PCIE_LINK_WIDTH", "amdsmi_get_pcie_info", ("pcie_metric", "pcie_width")),
    _AmdFigure("PCIE_MAX_LINK_WIDTH", "amdsmi_get_pcie_info", ("pcie_static", "max_pcie_width")),
    _AmdFigure("PCIE_REPLAY_COUNTER", "amdsmi_get_pcie_info", ("pcie_metric", "pcie_replay_count")),
)


def load_amdsmi() -> Any:
    """The package amdsmi, which is imported only where the kernel has AMD's driver: elsewhere it prints and fails.

    Raises:
        ImportError: the driver is not loaded, or the package is not installed.
        KeyError: ROCm's library is missing.
    """
    if not Path("/sys/module/amdgpu").exists():
        raise ImportError("no AMD driver")
    with redirect_stdout(sys.stderr):
        return import_module("amdsmi")


class AmdGpuReader:
    """Reads all AMD GPUs of this machine; the library stays open between two scrapes.

    Args:
        load: returns the module amdsmi, or an object with its functions and enumerations.
    """

    def __init__(self, load: Callable[[], Any] = load_amdsmi) -> None:
        self._load = load
        self._smi: Any = None

    def samples(self) -> Iterator[MetricSample]:
        """Every figure that each GPU has; nothing on a machine without the package, its library or a GPU."""
        smi = self._open()
        gpus = [] if smi is None else _ask(smi, "amdsmi_get_processor_handles")
        if gpus is None:  # the driver was replaced: open it again at the next scrape
            self._smi = None
        for index, gpu in enumerate(gpus or ()):
            yield from _gpu_samples(smi, index, gpu)

    def _open(self) -> Any:
        if self._smi is None:
            try:
                smi = self._load()
            except (ImportError, KeyError):
                return None
            try:
                smi.amdsmi_init()
            except smi.AmdSmiException:
                return None
            self._smi = smi
        return self._smi


def _gpu_samples(smi: Any, index: int, gpu: Any) -> Iterator[MetricSample]:
    chip = _ask(smi, "amdsmi_get_gpu_asic_info", gpu) or {}
    labels = (
        str(index),
        _ask(smi, "amdsmi_get_gpu_device_uuid", gpu) or "",
        _ask(smi, "amdsmi_get_gpu_device_bdf", gpu) or "",
        f"card{index}",
        chip.get("market_name", ""),
        socket.gethostname(),
    )
    for figure in _FIGURES:
        arguments = [getattr(getattr(smi, kind), member) for kind, member in figure.arguments]
        answer = _ask(smi, figure.function, gpu, *arguments)
        for key in figure.keys:
            answer = answer.get(key) if isinstance(answer, Mapping) else None
        if isinstance(answer, (int, float)):  # a figure that the GPU does not have is "N/A"
            yield _BY_NAME[figure.name].of(answer * figure.factor, *labels)
    if energy := _ask(smi, "amdsmi_get_energy_count", gpu):
        microjoules = energy["energy_accumulator"] * energy["counter_resolution"]
        yield _BY_NAME["TOTAL_ENERGY_CONSUMPTION"].of(microjoules * _MILLIJOULE, *labels)


def _ask(smi: Any, function: str, *arguments: Any) -> Any:
    """The answer of amdsmi; None if this GPU or driver has none."""
    try:
        return getattr(smi, function)(*arguments)
    except smi.AmdSmiException:
        return None
