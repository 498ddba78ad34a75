"""GPUs that NVML reports, and AMD accelerators beside what `host.amd` reads; a figure that is not known is None.

AMD throttling:  drivers/gpu/drm/amd/include/kgd_pp_interface.h of Linux, `struct gpu_metrics_v1_*`
AMD links:       drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h of Linux
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from trainworks.host.amd import AMDGPU_MODULE, AmdGpu, ReadText, Sensor
from trainworks.host.clock import SystemClock
from trainworks.host.nvml import ask, field_values

_NVLINK_ERRORS = {
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "CRC (flit)",
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: "CRC (data)",
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "replay",
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "recovery",
}
_SLOWED = {
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of GPU memory that were replaced by spare ones."""

    uncorrectable: int
    """Rows that were replaced after an uncorrectable error."""
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None for what its driver does not tell."""

    index: int
    name: str
    bus_id: str
    memory_bytes: int | None
    link_width: int | None
    """PCIe lanes in use."""
    max_link_width: int | None
    slot_generation: int | None = None
    """Fastest PCIe generation of this GPU in this slot."""
    generation: int | None = None
    """Fastest PCIe generation of the GPU."""
    is_idle: bool
    ecc: bool | None = None
    uncorrected_errors: int | None
    """Uncorrected memory errors since the last reset."""
    sram_exceeded: bool | None = None
    """The SRAM errors exceed the vendor's limit for a replacement."""
    rows: RemappedRows | None = None
    page_pending: bool | None
    """A page of memory waits for a reset to be retired."""
    temperature_c: int | None
    slowdown_c: int | None
    memory_temperature_c: int | None
    memory_slowdown_c: int | None
    slowdowns: tuple[str, ...] | None
    """Why the clock is reduced for heat or power; empty if it is not."""
    power_limit_mw: int | None
    default_power_limit_mw: int | None
    persistence: bool | None = None
    mig: bool | None = None
    processes: tuple[int, ...] | None = None
    links: tuple[bool, ...] | None
    """Active or not, by NVLink or XGMI link."""
    link_errors: dict[str, int] | None = None
    fabric: tuple[int, int] | None = None
    """State and status of the registration with the fabric manager."""
    vbios: str | None
    max_clock_mhz: int | None = None

    def __str__(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that the driver counts and cannot open."""

    error: str
    index: int | None = None
    """None for one that this process may not open, and for AMD, whose GPUs are counted once they are driven."""

    def __str__(self) -> str:
        return self.error


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The driver and its GPUs."""

    version: str = ""
    """Empty if the driver does not answer."""
    cuda: tuple[int, int] | None = None
    """Newest CUDA version of the driver; None for AMD."""
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    error: str = ""
    """Reason why the driver does not answer."""


def read_driver(nvml: Any) -> GpuDriver:
    """Read every GPU of the driver by pynvml, or an object with its functions."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuDriver(error=f"NVML: {error}")
    try:
        opened = [_open(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        cuda = ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return GpuDriver(
            version=nvml.nvmlSystemGetDriverVersion(),
            cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(each for each in opened if isinstance(each, Gpu)),
            lost=tuple(each for each in opened if isinstance(each, LostGpu)),
        )
    except pynvml.NVMLError as error:
        return GpuDriver(error=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _open(nvml: Any, index: int) -> Gpu | LostGpu:
    try:
        return _read_gpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        is_hidden = error.value == pynvml.NVML_ERROR_NO_PERMISSION  # of another job, by the cgroup of this one
        return LostGpu(f"GPU {index} does not answer: {error}", None if is_hidden else index)


def _read_gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    slowdown, memory_max = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
    uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    fields = field_values(nvml, handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP, *_NVLINK_ERRORS])
    running = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    mig = ask(nvml.nvmlDeviceGetMigMode, handle)
    ecc = ask(nvml.nvmlDeviceGetEccMode, handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId.lower(),
        memory_bytes=None if memory is None else int(memory.total),
        link_width=ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        max_link_width=ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        slot_generation=ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        generation=ask(nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration, handle),
        is_idle=bool((reasons or 0) & pynvml.nvmlClocksEventReasonGpuIdle),
        ecc=None if ecc is None else bool(ecc[0]),
        uncorrected_errors=ask(nvml.nvmlDeviceGetTotalEccErrors, handle, *uncorrected),
        sram_exceeded=_sram_exceeded(nvml, handle),
        rows=_remapped_rows(nvml, handle),
        page_pending=_flag(ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        slowdown_c=ask(nvml.nvmlDeviceGetTemperatureThreshold, handle, slowdown) or None,
        memory_temperature_c=fields.get(pynvml.NVML_FI_DEV_MEMORY_TEMP) or None,
        memory_slowdown_c=ask(nvml.nvmlDeviceGetTemperatureThreshold, handle, memory_max) or None,
        slowdowns=None if reasons is None else tuple(name for bit, name in _SLOWED.items() if reasons & bit),
        power_limit_mw=ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        default_power_limit_mw=ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        persistence=_flag(ask(nvml.nvmlDeviceGetPersistenceMode, handle)),
        mig=None if mig is None else bool(mig[0]),
        processes=None if running is None else tuple(process.pid for process in running),
        links=_links(nvml, handle),
        link_errors={name: fields[field] for field, name in _NVLINK_ERRORS.items() if field in fields} or None,
        fabric=_fabric(nvml, handle),
        vbios=ask(nvml.nvmlDeviceGetVbiosVersion, handle),
        max_clock_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
    )


def _flag(answer: int | None) -> bool | None:
    return None if answer is None else bool(answer)


def _sram_exceeded(nvml: Any, handle: Any) -> bool | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    answer = ask(nvml.nvmlDeviceGetSramEccErrorStatus, handle, byref(status))
    return None if answer is None else bool(status.bThresholdExceeded)


def _remapped_rows(nvml: Any, handle: Any) -> RemappedRows | None:
    answer = ask(nvml.nvmlDeviceGetRemappedRows, handle)
    return None if answer is None else RemappedRows(answer[1], bool(answer[2]), bool(answer[3]))


def _links(nvml: Any, handle: Any) -> tuple[bool, ...] | None:
    states = [ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    return tuple(bool(state) for state in states if state is not None) or None


def _fabric(nvml: Any, handle: Any) -> tuple[int, int] | None:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    if ask(nvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info)) is None:
        return None
    return None if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED else (info.state, info.status)


_XGMI = "11"
"""CRAT_IOLINK_TYPE_XGMI."""
_THROTTLERS = (
    "PROCHOT",
    "",
    "socket thermal slowdown",
    "voltage regulator thermal slowdown",
    "memory thermal slowdown",
)
"""Accumulated residencies of the metrics from version 1.6 on, in order; a growing one of the power limit is usual."""
_FIRST_RESIDENCY = {6: 36, 7: 44, 8: 44}
"""Byte of the first residency by version 1.N of the metrics."""
_FLAGS_BYTE, _FLAGS_VERSION = 112, 3
"""Byte of `indep_throttle_status` in version 1.3, the only one with it."""
_THERMAL_FLAGS = range(32, 48)
"""Bits of `indep_throttle_status` for heat: SMU_THROTTLER_TEMP_* of amdgpu_smu.h."""
_SAMPLE_S = 0.1
"""Between two readings of the residencies, as `amd-smi metric --throttle` waits."""


def read_amd_driver(root: Path, devices: Sequence[Path], read: ReadText) -> GpuDriver:
    """The driver `amdgpu` in the node's file system below `root`, and the accelerators that it drives: `devices` are
    their folders on the PCI bus, in order.
    """
    if not (root / AMDGPU_MODULE).is_dir():
        return GpuDriver(error="amdgpu is not loaded")
    known = [AmdGpu(folder, read) for folder in devices]
    driven = [gpu for gpu in known if gpu.is_driven]
    lost = [LostGpu(f"GPU {gpu.folder.name} is not driven by amdgpu") for gpu in known if gpu not in driven]
    # links to other accelerators by PCI address
    found: Counter[str] = Counter()
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*")):
        about = _properties(read(node / "properties"))
        location, domain = int(about.get("location_id", 0)), int(about.get("domain", 0))
        address = f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        kinds = [_properties(read(link)).get("type") for link in node.glob("io_links/*/properties")]
        if int(about.get("simd_count", 0)):
            found[address] += kinds.count(_XGMI)
    slowed, links = _amd_slowdowns(driven), found if any(found.values()) else Counter[str]()
    gpus = tuple(
        _read_amd_gpu(index, gpu, slowed[gpu], links.get(gpu.folder.name) if links else None)
        for index, gpu in enumerate(driven)
    )
    return GpuDriver(version=read(root / AMDGPU_MODULE / "version") or "of the kernel", gpus=gpus, lost=tuple(lost))


def _read_amd_gpu(index: int, gpu: AmdGpu, slowed: tuple[str, ...] | None, links: int | None) -> Gpu:
    sensor: Sensor = "edge" if gpu.temperature_c("junction", "crit") is None else "junction"
    # a bad page waits to be reserved (P), or cannot be (F); lines are `address : size : flag`
    file = gpu.folder / "ras" / "gpu_vram_bad_pages"
    lines = gpu.read(file).splitlines()
    return Gpu(
        index=index,
        name=gpu.name,
        bus_id=gpu.folder.name,
        memory_bytes=gpu.number("mem_info_vram_total"),
        link_width=gpu.number("current_link_width"),
        max_link_width=gpu.number("max_link_width"),
        is_idle=gpu.number("gpu_busy_percent") == 0,
        uncorrected_errors=gpu.errors("ue"),
        page_pending=any(line.rstrip().endswith((": P", ": F")) for line in lines) if file.exists() else None,
        temperature_c=gpu.temperature_c(sensor),
        slowdown_c=gpu.temperature_c(sensor, "crit"),
        memory_temperature_c=gpu.temperature_c("mem"),
        memory_slowdown_c=gpu.temperature_c("mem", "crit"),
        slowdowns=slowed,
        power_limit_mw=_milliwatts(gpu.power_limit_w()),
        default_power_limit_mw=_milliwatts(gpu.power_limit_w("power1_cap_default")),
        links=None if links is None else (True,) * links,
        vbios=gpu.read(gpu.folder / "vbios_version") or None,
    )


def _milliwatts(watts: float | None) -> int | None:
    return None if watts is None else round(watts * 1000)


def _amd_slowdowns(gpus: Sequence[AmdGpu]) -> dict[AmdGpu, tuple[str, ...] | None]:
    """Why each accelerator reduces its clock; None where its metrics do not say."""
    before = {gpu: gpu.metrics() for gpu in gpus}
    if any(metrics[3:4] and metrics[3] in _FIRST_RESIDENCY for metrics in before.values()):
        SystemClock().sleep(_SAMPLE_S)
    return {gpu: _amd_slowdown(metrics, gpu.metrics()) for gpu, metrics in before.items()}


def _amd_slowdown(before: bytes, after: bytes) -> tuple[str, ...] | None:
    version = after[3] if len(after) > _FLAGS_BYTE else None
    if version == _FLAGS_VERSION and len(after) >= _FLAGS_BYTE + 8:
        flags = int.from_bytes(after[_FLAGS_BYTE : _FLAGS_BYTE + 8], "little")
        hot = flags != 2**64 - 1 and any(flags >> bit & 1 for bit in _THERMAL_FLAGS)
        return ("thermal slowdown",) if hot else ()
    if version not in _FIRST_RESIDENCY or len(before) != len(after):
        return None
    words = range(_FIRST_RESIDENCY[version], _FIRST_RESIDENCY[version] + 4 * len(_THROTTLERS), 4)
    grown = [before[at : at + 4] != after[at : at + 4] for at in words]
    return tuple(name for name, grows in zip(_THROTTLERS, grown, strict=True) if name and grows)


def _properties(text: str) -> dict[str, str]:
    return {words[0]: words[1] for words in (line.split() for line in text.splitlines()) if len(words) > 1}
