"""Metrics of GPUs under the names of DCGM's exporter: of NVIDIA's through NVML, of AMD's from the kernel.

One name for one quantity lets an alert or panel hold for both vendors; the label `modelName` says which it is.
Activity of SMs, tensor cores and memory (`DCGM_FI_PROF_...`) is a mean between two scrapes, from Hopper on.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pynvml

from trainworks.host.amd import AmdGpu, amd_gpus
from trainworks.host.nvml import ask, field_values
from trainworks.observe.metrics.family import MetricFamily, MetricKind, MetricSample

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
_MIB = 2**20
_GAUGE: MetricKind = "gauge"
_COUNTER: MetricKind = "counter"
_CLOCK, _MEMORY_CLOCK, _VIDEO_CLOCK = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_CLOCK_VIDEO
_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC


@dataclass(frozen=True, slots=True)
class _GpuMetric:
    family: MetricFamily
    function: str
    """Function of NVML; its first argument is the GPU."""
    arguments: tuple[int, ...]
    convert: Callable[[Any], float]


def _metric(
    name: str,
    text: str,
    function: str,
    *arguments: int,
    convert: Callable[[Any], float] = float,
    kind: MetricKind = "gauge",
) -> _GpuMetric:
    family = MetricFamily(f"DCGM_FI_DEV_{name}", text, kind, _LABELS, f"NVML: `{function}`")
    return _GpuMetric(family, function, arguments, convert)


def _ecc(name: str, text: str, error: int, counter: int) -> _GpuMetric:
    return _metric(name, text, "nvmlDeviceGetTotalEccErrors", error, counter, kind="counter")


def _row(name: str, text: str, part: int, kind: MetricKind = "gauge") -> _GpuMetric:
    return _metric(name, text, "nvmlDeviceGetRemappedRows", convert=itemgetter(part), kind=kind)


def _violation(name: str, text: str, policy: int) -> _GpuMetric:
    return _metric(
        f"{name}_VIOLATION",
        f"Time at lower clocks {text}, in ns.",
        "nvmlDeviceGetViolationStatus",
        policy,
        convert=attrgetter("violationTime"),
        kind="counter",
    )


_METRICS = (
    _metric("SM_CLOCK", "Clock of the SMs in MHz.", "nvmlDeviceGetClockInfo", _CLOCK),
    _metric("MEM_CLOCK", "Memory clock in MHz.", "nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
    _metric("VIDEO_CLOCK", "Video clock in MHz.", "nvmlDeviceGetClockInfo", _VIDEO_CLOCK),
    _metric("MAX_SM_CLOCK", "Highest clock of the SMs in MHz.", "nvmlDeviceGetMaxClockInfo", _CLOCK),
    _metric("GPU_TEMP", "Temperature in C.", "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    _metric(
        "SLOWDOWN_TEMP",
        "Temperature at which the clocks go down, in C.",
        "nvmlDeviceGetTemperatureThreshold",
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    ),
    _metric(
        "SHUTDOWN_TEMP",
        "Temperature at which the GPU shuts down, in C.",
        "nvmlDeviceGetTemperatureThreshold",
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    ),
    _metric("POWER_USAGE", "Power draw in W.", "nvmlDeviceGetPowerUsage", convert=lambda mw: mw / 1e3),
    _metric(
        "TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded, in mJ.",
        "nvmlDeviceGetTotalEnergyConsumption",
        kind="counter",
    ),
    _metric(
        "ENFORCED_POWER_LIMIT", "Power limit in W.", "nvmlDeviceGetEnforcedPowerLimit", convert=lambda mw: mw / 1e3
    ),
    _metric(
        "POWER_MGMT_LIMIT_DEF",
        "Default power limit in W.",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        convert=lambda mw: mw / 1e3,
    ),
    _metric(
        "GPU_UTIL",
        "Share of time in which a kernel ran, in %.",
        "nvmlDeviceGetUtilizationRates",
        convert=attrgetter("gpu"),
    ),
    _metric(
        "MEM_COPY_UTIL",
        "Share of time in which memory was read or written, in %.",
        "nvmlDeviceGetUtilizationRates",
        convert=attrgetter("memory"),
    ),
    _metric("ENC_UTIL", "Use of the encoder in %.", "nvmlDeviceGetEncoderUtilization", convert=itemgetter(0)),
    _metric("DEC_UTIL", "Use of the decoder in %.", "nvmlDeviceGetDecoderUtilization", convert=itemgetter(0)),
    _metric("FB_TOTAL", "Memory in MiB.", "nvmlDeviceGetMemoryInfo", convert=lambda memory: memory.total / _MIB),
    _metric("FB_USED", "Memory in use, in MiB.", "nvmlDeviceGetMemoryInfo", convert=lambda memory: memory.used / _MIB),
    _metric("FB_FREE", "Free memory in MiB.", "nvmlDeviceGetMemoryInfo", convert=lambda memory: memory.free / _MIB),
    _ecc("ECC_SBE_VOL_TOTAL", "Corrected memory errors since the last reset.", _CORRECTED, _VOLATILE),
    _ecc("ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the last reset.", _UNCORRECTED, _VOLATILE),
    _ecc("ECC_SBE_AGG_TOTAL", "Corrected memory errors of the GPU's life.", _CORRECTED, _AGGREGATE),
    _ecc("ECC_DBE_AGG_TOTAL", "Uncorrected memory errors of the GPU's life.", _UNCORRECTED, _AGGREGATE),
    _row("CORRECTABLE_REMAPPED_ROWS", "Memory rows replaced after corrected errors.", 0, "counter"),
    _row("UNCORRECTABLE_REMAPPED_ROWS", "Memory rows replaced after uncorrected errors.", 1, "counter"),
    _row("ROW_REMAP_PENDING", "1 if a replacement of a row waits for a reset.", 2),
    _row("ROW_REMAP_FAILURE", "1 if a row could not be replaced.", 3),
    _metric("RETIRED_PENDING", "1 if a memory page waits to be retired.", "nvmlDeviceGetRetiredPagesPendingStatus"),
    _metric("PCIE_REPLAY_COUNTER", "Repeated PCIe packets.", "nvmlDeviceGetPcieReplayCounter", kind="counter"),
    _metric("PCIE_LINK_GEN", "PCIe generation in use.", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _metric("PCIE_LINK_WIDTH", "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth"),
    _metric("PCIE_MAX_LINK_GEN", "Highest PCIe generation in this slot.", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _metric("PCIE_MAX_LINK_WIDTH", "Most PCIe lanes in this slot.", "nvmlDeviceGetMaxPcieLinkWidth"),
    _metric(
        "CLOCKS_EVENT_REASONS",
        "Reasons for lower clocks: bits of nvmlClocksEventReasons.",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    _violation("POWER", "because of the power limit", pynvml.NVML_PERF_POLICY_POWER),
    _violation("THERMAL", "because of the temperature", pynvml.NVML_PERF_POLICY_THERMAL),
    _violation("SYNC_BOOST", "because of synchronized boost", pynvml.NVML_PERF_POLICY_SYNC_BOOST),
    _violation("BOARD_LIMIT", "because of the limit of the board", pynvml.NVML_PERF_POLICY_BOARD_LIMIT),
    _violation("LOW_UTIL", "because of low use", pynvml.NVML_PERF_POLICY_LOW_UTILIZATION),
    _violation("RELIABILITY", "because of reliability", pynvml.NVML_PERF_POLICY_RELIABILITY),
    _metric("PSTATE", "Performance state, 0 (highest) to 15.", "nvmlDeviceGetPerformanceState"),
    _metric("FAN_SPEED", "Fan speed in % of the highest.", "nvmlDeviceGetFanSpeed"),
    _metric("MIG_MODE", "1 if the GPU is partitioned.", "nvmlDeviceGetMigMode", convert=itemgetter(0)),
    _metric("PERSISTENCE_MODE", "1 if the driver stays loaded.", "nvmlDeviceGetPersistenceMode"),
    _metric("COMPUTE_MODE", "0 shared, 2 prohibited, 3 exclusive.", "nvmlDeviceGetComputeMode"),
)


_FIELDS = {
    getattr(pynvml, f"NVML_FI_DEV_{name}"): MetricFamily(
        f"DCGM_FI_DEV_{name}", text, kind, _LABELS, "NVML: `nvmlDeviceGetFieldValues`"
    )
    for name, text, kind in (
        ("MEMORY_TEMP", "Temperature of the memory in C.", _GAUGE),
        ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "CRC errors of NVLink's flow control.", _COUNTER),
        ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "CRC errors of NVLink's data.", _COUNTER),
        ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Repeated NVLink packets.", _COUNTER),
        ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Recoveries of NVLinks.", _COUNTER),
    )
}
_PERCENT, _MIB_PER_S = 0.01, float(_MIB)
_ACTIVITIES = {
    getattr(pynvml, f"NVML_GPM_METRIC_{metric}"): (
        MetricFamily(f"DCGM_FI_PROF_{name}", text, "gauge", _LABELS, "NVML: `nvmlGpmMetricsGet`, between two scrapes"),
        unit,
    )
    for metric, name, text, unit in (
        ("GRAPHICS_UTIL", "GR_ENGINE_ACTIVE", "Time with any work, 0 to 1.", _PERCENT),
        ("SM_UTIL", "SM_ACTIVE", "Time with a warp on an SM, 0 to 1.", _PERCENT),
        ("SM_OCCUPANCY", "SM_OCCUPANCY", "Warps over most warps, 0 to 1.", _PERCENT),
        ("ANY_TENSOR_UTIL", "PIPE_TENSOR_ACTIVE", "Time with work for tensor cores, 0 to 1.", _PERCENT),
        ("DRAM_BW_UTIL", "DRAM_ACTIVE", "Memory bandwidth in use, 0 to 1.", _PERCENT),
        ("FP64_UTIL", "PIPE_FP64_ACTIVE", "Time with FP64 work, 0 to 1.", _PERCENT),
        ("FP32_UTIL", "PIPE_FP32_ACTIVE", "Time with FP32 work, 0 to 1.", _PERCENT),
        ("FP16_UTIL", "PIPE_FP16_ACTIVE", "Time with FP16 work, 0 to 1.", _PERCENT),
        ("PCIE_TX_PER_SEC", "PCIE_TX_BYTES", "Bytes sent over PCIe, per s.", _MIB_PER_S),
        ("PCIE_RX_PER_SEC", "PCIE_RX_BYTES", "Bytes received over PCIe per second.", _MIB_PER_S),
        ("NVLINK_TOTAL_TX_PER_SEC", "NVLINK_TX_BYTES", "Bytes sent over NVLink per second.", _MIB_PER_S),
        ("NVLINK_TOTAL_RX_PER_SEC", "NVLINK_RX_BYTES", "Bytes received over NVLink per second.", _MIB_PER_S),
    )
}
_XID = MetricFamily(
    "DCGM_FI_DEV_XID_ERRORS",
    "Last XID since the exporter started; 0 before the first.",
    labels=_LABELS,
    source="NVML: `nvmlEventSetWait_v2`",
)
_MOST_EVENTS = 1000
"""Events that one scrape takes."""
GPUS_LOST = MetricFamily("trainworks_gpus_lost", "GPUs that the driver counts and cannot open.", source="NVML")
GPU_FAMILIES = (
    *(metric.family for metric in _METRICS),
    *_FIELDS.values(),
    *(family for family, _ in _ACTIVITIES.values()),
    _XID,
    GPUS_LOST,
)


class GpuReader:
    """Reads all GPUs of this machine; the driver stays open between two scrapes.

    `nvml` is the module pynvml, or an object with its functions.
    """

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._is_open = False
        self._before: dict[int, Any] = {}
        """Last sample of activities by GPU."""
        self._events: Any = None
        self._xids: dict[int, int] = {}
        """Last XID by GPU; only GPUs that report them."""

    def samples(self) -> Iterator[MetricSample]:
        """Every figure that each GPU has; nothing on a machine without a driver."""
        nvml = self._nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
                self._events = ask(nvml.nvmlEventSetCreate)
            handles = [ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(nvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:  # no driver, or one that was replaced: open it again at the next scrape
            self._is_open = False
            self._before.clear()
            self._xids.clear()
            return
        self._take_xids(handles)
        yield GPUS_LOST.sample(sum(handle is None for handle in handles))
        for index, handle in enumerate(handles):
            if handle is not None:
                yield from self._gpu_samples(index, handle)

    def _take_xids(self, handles: Sequence[Any]) -> None:
        """Register GPUs that are new, and take the XIDs since the last scrape."""
        nvml, xid = self._nvml, pynvml.nvmlEventTypeXidCriticalError
        if self._events is None:
            return
        for index, handle in enumerate(handles):
            if handle is not None and index not in self._xids:
                with suppress(pynvml.NVMLError):  # a GPU that has no such events
                    nvml.nvmlDeviceRegisterEvents(handle, xid, self._events)
                    self._xids[index] = 0
        for _ in range(_MOST_EVENTS):
            event = ask(nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # no more of them
                return
            index = ask(nvml.nvmlDeviceGetIndex, event.device)
            if index in self._xids:
                self._xids[index] = int(event.eventData)

    def _gpu_samples(self, index: int, handle: Any) -> Iterator[MetricSample]:
        nvml = self._nvml
        pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
        labels = (
            str(index),
            ask(nvml.nvmlDeviceGetUUID, handle) or "",
            pci.busId if pci is not None else "",
            f"nvidia{index}",
            ask(nvml.nvmlDeviceGetName, handle) or "",
            socket.gethostname(),
        )
        for metric in _METRICS:
            answer = ask(getattr(nvml, metric.function), handle, *metric.arguments)
            if answer is not None:
                yield metric.family.sample(metric.convert(answer), *labels)
        for field, value in field_values(nvml, handle, list(_FIELDS)).items():
            yield _FIELDS[field].sample(value, *labels)
        if index in self._xids:
            yield _XID.sample(self._xids[index], *labels)
        for number, activity in self._activities(index, handle).items():
            family, unit = _ACTIVITIES[number]
            yield family.sample(activity * unit, *labels)

    def _activities(self, index: int, handle: Any) -> Mapping[int, float]:
        """Means since the last scrape; empty at the first one, and for a GPU without these figures."""
        nvml = self._nvml
        support = ask(nvml.nvmlGpmQueryDeviceSupport, handle)
        if support is None or not support.isSupportedDevice:
            return {}
        sample = ask(nvml.nvmlGpmSampleAlloc)
        now = None if sample is None else ask(nvml.nvmlGpmSampleGet, handle, sample)
        if now is None:  # a partitioned GPU (MIG) takes no sample
            if sample is not None:
                ask(nvml.nvmlGpmSampleFree, sample)
            return {}
        before = self._before.get(index)
        self._before[index] = now
        return {} if before is None else self._mean_activities(before, now)

    def _mean_activities(self, before: Any, now: Any) -> Mapping[int, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_ACTIVITIES)
        request.sample1, request.sample2 = before, now
        for place, number in enumerate(_ACTIVITIES):
            request.metrics[place].metricId = number
        answer = ask(self._nvml.nvmlGpmMetricsGet, request)
        ask(self._nvml.nvmlGpmSampleFree, before)
        found = answer.metrics[: len(_ACTIVITIES)] if answer is not None else []
        return {each.metricId: each.value for each in found if each.nvmlReturn == pynvml.NVML_SUCCESS}


_BY_NAME = {family.name.removeprefix("DCGM_FI_DEV_"): family for family in GPU_FAMILIES}
_MEGA, _MILLIJOULES = 1e6, 1e3
_LEVEL = re.compile(r"\d+: (\d+)Mhz")
"""A clock that the driver may choose: `1: 2100Mhz *`."""


def _sensor(unit: float, name: str) -> Callable[[AmdGpu], float | None]:
    return lambda gpu: _scaled(gpu.sensor(name), 1 / unit)


def _number(name: str, factor: float = 1.0) -> Callable[[AmdGpu], float | None]:
    return lambda gpu: _scaled(gpu.number(name), factor)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _free(gpu: AmdGpu) -> float | None:
    total, used = gpu.number("mem_info_vram_total"), gpu.number("mem_info_vram_used")
    return None if total is None or used is None else (total - used) / _MIB


_FIGURES: Mapping[str, Callable[[AmdGpu], float | None]] = {
    "SM_CLOCK": _sensor(_MEGA, "freq1_input"),
    "MEM_CLOCK": _sensor(_MEGA, "freq2_input"),
    "MAX_SM_CLOCK": lambda gpu: max(map(int, _LEVEL.findall(gpu.read(gpu.folder / "pp_dpm_sclk"))), default=None),
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
                yield _BY_NAME[name].sample(value, *labels)
