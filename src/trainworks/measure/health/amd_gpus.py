"""The checks' view of AMD accelerators: slowdowns and links beside what `host.amd` reads.

Throttling:  drivers/gpu/drm/amd/include/kgd_pp_interface.h of Linux, `struct gpu_metrics_v1_*`
Links:       drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h of Linux
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trainworks.host.amd import AMDGPU_MODULE, AmdGpu, ReadText, Sensor
from trainworks.host.clock import SystemClock
from trainworks.measure.health.gpus import Gpu, GpuDriver

_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/*"
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
    """The driver `amdgpu` and the accelerators that it drives.

    Args:
        root: folder of the node's file system.
        devices: folders of the accelerators on the PCI bus, in order.
        read: the text of a file; empty if there is none.
    """
    if not (root / AMDGPU_MODULE).is_dir():
        return GpuDriver(error="amdgpu is not loaded")
    known = [AmdGpu(folder, read) for folder in devices]
    driven = [gpu for gpu in known if gpu.is_driven]
    lost = [f"GPU {gpu.folder.name} is not driven by amdgpu" for gpu in known if gpu not in driven]
    slowed, links = _slowdowns(driven), _xgmi_links(root, read)
    gpus = tuple(
        _read_gpu(index, gpu, slowed[gpu], links.get(gpu.folder.name) if links else None)
        for index, gpu in enumerate(driven)
    )
    return GpuDriver(version=read(root / AMDGPU_MODULE / "version") or "of the kernel", gpus=gpus, lost=tuple(lost))


def _read_gpu(index: int, gpu: AmdGpu, slowed: tuple[str, ...] | None, links: int | None) -> Gpu:
    sensor: Sensor = "edge" if gpu.temperature_c("junction", "crit") is None else "junction"
    return Gpu(
        index=index,
        name=gpu.name,
        bus_id=gpu.folder.name,
        memory_bytes=gpu.number("mem_info_vram_total"),
        link_width=gpu.number("current_link_width"),
        max_link_width=gpu.number("max_link_width"),
        slot_generation=None,
        generation=None,
        is_idle=gpu.number("gpu_busy_percent") == 0,
        ecc=None,
        uncorrected_errors=gpu.errors("ue"),
        sram_exceeded=None,
        rows=None,
        page_pending=_is_pending(gpu),
        temperature_c=gpu.temperature_c(sensor),
        slowdown_c=gpu.temperature_c(sensor, "crit"),
        memory_temperature_c=gpu.temperature_c("mem"),
        memory_slowdown_c=gpu.temperature_c("mem", "crit"),
        slowdowns=slowed,
        power_limit_mw=_milliwatts(gpu.power_limit_w()),
        default_power_limit_mw=_milliwatts(gpu.power_limit_w("power1_cap_default")),
        persistence=None,
        mig=None,
        processes=None,
        links=None if links is None else (True,) * links,
        link_errors=None,
        fabric=None,
        vbios=gpu.read(gpu.folder / "vbios_version") or None,
        max_clock_mhz=None,
    )


def _milliwatts(watts: float | None) -> int | None:
    return None if watts is None else round(watts * 1000)


def _is_pending(gpu: AmdGpu) -> bool | None:
    """Whether a bad page waits to be reserved (P), or cannot be (F); lines are `address : size : flag`."""
    file = gpu.folder / "ras" / "gpu_vram_bad_pages"
    lines = gpu.read(file).splitlines()
    return any(line.rstrip().endswith((": P", ": F")) for line in lines) if file.exists() else None


def _slowdowns(gpus: Sequence[AmdGpu]) -> dict[AmdGpu, tuple[str, ...] | None]:
    """Why each accelerator reduces its clock; None where its metrics do not say."""
    before = {gpu: gpu.metrics() for gpu in gpus}
    if any(metrics[3:4] and metrics[3] in _FIRST_RESIDENCY for metrics in before.values()):
        SystemClock().sleep(_SAMPLE_S)
    return {gpu: _slowdown(metrics, gpu.metrics()) for gpu, metrics in before.items()}


def _slowdown(before: bytes, after: bytes) -> tuple[str, ...] | None:
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


def _xgmi_links(root: Path, read: ReadText) -> Counter[str]:
    """Links to other accelerators by PCI address; empty without any."""
    found: Counter[str] = Counter()
    for node in sorted(root.glob(_TOPOLOGY)):
        about = _properties(read(node / "properties"))
        location, domain = int(about.get("location_id", 0)), int(about.get("domain", 0))
        address = f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        kinds = [_properties(read(link)).get("type") for link in node.glob("io_links/*/properties")]
        if int(about.get("simd_count", 0)):
            found[address] += kinds.count(_XGMI)
    return found if any(found.values()) else Counter()


def _properties(text: str) -> dict[str, str]:
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: words[1] for words in pairs if len(words) > 1}
