"""GPUs, and those that NVML reports; a figure that a GPU or driver does not have is None."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pynvml

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


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    index: int
    name: str
    bus_id: str
    memory_bytes: int | None
    link_width: int | None
    """PCIe lanes in use."""
    max_link_width: int | None
    slot_generation: int | None
    """Fastest PCIe generation of this GPU in this slot."""
    generation: int | None
    """Fastest PCIe generation of the GPU."""
    is_idle: bool
    ecc: bool | None
    uncorrected_errors: int | None
    """Uncorrected memory errors since the last reset."""
    sram_exceeded: bool | None
    """The SRAM errors exceed the vendor's limit for a replacement."""
    rows: RemappedRows | None
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
    persistence: bool | None
    mig: bool | None
    processes: tuple[int, ...] | None
    links: tuple[bool, ...] | None
    """Active or not, by NVLink or XGMI link."""
    link_errors: dict[str, int] | None
    fabric: tuple[int, int] | None
    """State and status of the registration with the fabric manager."""
    vbios: str | None
    max_clock_mhz: int | None

    def __str__(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The driver and its GPUs."""

    version: str = ""
    """Empty if the driver does not answer."""
    cuda: tuple[int, int] | None = None
    """Newest CUDA version of the driver; None for AMD."""
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    """GPUs that the driver counts and cannot open, each with the error."""
    error: str = ""
    """Reason why the driver does not answer."""


def read_driver(nvml: Any) -> GpuDriver:
    """Read every GPU of the driver.

    Args:
        nvml: the module pynvml, or an object with its functions.
    """
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
            lost=tuple(each for each in opened if isinstance(each, str)),
        )
    except pynvml.NVMLError as error:
        return GpuDriver(error=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _open(nvml: Any, index: int) -> Gpu | str:
    try:
        return _read_gpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return f"GPU {index} does not answer: {error}"


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
