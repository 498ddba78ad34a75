"""AMD accelerators as their driver shows them in sysfs: what `amd-smi` reads, without its library.

Errors and retired pages:  https://docs.kernel.org/gpu/amdgpu/ras.html
Temperatures and clocks:   https://docs.kernel.org/gpu/amdgpu/thermal.html
Throttling:                drivers/gpu/drm/amd/include/kgd_pp_interface.h of Linux, `struct gpu_metrics_v1_*`
Links:                     drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h of Linux
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainworks.host.clock import SystemClock
from trainworks.measure.health.gpus import Gpu, GpuDriver

AMD = "0x1002"
_MODULE = Path("sys/module/amdgpu")
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/*"
_XGMI = "11"
"""CRAT_IOLINK_TYPE_XGMI."""
_FORM = re.compile(r"\s+(?:OAM|PCIe)\b.*")
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
ReadText = Callable[[Path], str]


def read_amd_driver(root: Path, devices: Sequence[Path], read: ReadText) -> GpuDriver:
    """The driver `amdgpu` and the accelerators that it drives.

    Args:
        root: folder of the node's file system.
        devices: folders of the accelerators on the PCI bus, in order.
        read: the text of a file; empty if there is none.
    """
    if not (root / _MODULE).is_dir():
        return GpuDriver(error="amdgpu is not loaded")
    driven = [folder for folder in devices if read(folder / "mem_info_vram_total")]
    lost = [f"GPU {folder.name} is not driven by amdgpu" for folder in devices if folder not in driven]
    slowed, links = _slowdowns(driven), _xgmi_links(root, read)
    gpus = tuple(
        _read_gpu(index, folder, read, slowed[folder], links.get(folder.name) if links else None)
        for index, folder in enumerate(driven)
    )
    return GpuDriver(version=read(root / _MODULE / "version") or "of the kernel", gpus=gpus, lost=tuple(lost))


def _read_gpu(index: int, folder: Path, read: ReadText, slowed: tuple[str, ...] | None, links: int | None) -> Gpu:
    def number(name: str) -> int | None:
        text = read(folder / name)
        return int(text) if text.isdigit() else None

    errors = [read(each) for each in sorted(folder.glob("ras/*_err_count"))]
    heat = _temperatures(folder, read)
    device = read(folder / "product_name") or f"AMD device {read(folder / 'device')}"
    return Gpu(
        index=index,
        name=_FORM.sub("", device),
        bus_id=folder.name,
        memory_bytes=number("mem_info_vram_total"),
        link_width=number("current_link_width"),
        max_link_width=number("max_link_width"),
        slot_generation=None,
        generation=None,
        is_idle=number("gpu_busy_percent") == 0,
        ecc=None,
        uncorrected_errors=sum(map(_uncorrected, errors)) if errors else None,
        sram_exceeded=None,
        rows=None,
        page_pending=_is_pending(folder, read),
        temperature_c=heat.get("junction", heat.get("edge", (None, None)))[0],
        slowdown_c=heat.get("junction", heat.get("edge", (None, None)))[1],
        memory_temperature_c=heat.get("mem", (None, None))[0],
        memory_slowdown_c=heat.get("mem", (None, None))[1],
        slowdowns=slowed,
        power_limit_mw=_milliwatts(folder, "power1_cap", read),
        default_power_limit_mw=_milliwatts(folder, "power1_cap_default", read),
        persistence=None,
        mig=None,
        processes=None,
        links=None if links is None else (True,) * links,
        link_errors=None,
        fabric=None,
        vbios=read(folder / "vbios_version") or None,
        max_clock_mhz=None,
    )


def _uncorrected(counts: str) -> int:
    """The uncorrectable errors of a block: `ue: 0`, then `ce: 1`."""
    found = re.search(r"\bue: (\d+)", counts)
    return int(found[1]) if found else 0


def _is_pending(folder: Path, read: ReadText) -> bool | None:
    """Whether a bad page waits to be reserved (P), or cannot be (F); lines are `address : size : flag`."""
    file = folder / "ras" / "gpu_vram_bad_pages"
    return any(line.rstrip().endswith((": P", ": F")) for line in read(file).splitlines()) if file.exists() else None


def _temperatures(folder: Path, read: ReadText) -> dict[str, tuple[int, int]]:
    """Temperature and critical temperature in degrees Celsius by sensor: `edge`, `junction`, `mem`."""
    found = {}
    for label in folder.glob("hwmon/hwmon*/temp*_label"):
        now, most = (read(label.with_name(label.name.replace("label", name))) for name in ("input", "crit"))
        if now.isdigit() and most.isdigit() and int(most):
            found[read(label)] = (int(now) // 1000, int(most) // 1000)
    return found


def _milliwatts(folder: Path, name: str, read: ReadText) -> int | None:
    texts = [read(file) for file in folder.glob(f"hwmon/hwmon*/{name}")]
    return next((int(text) // 1000 for text in texts if text.isdigit()), None)


def _slowdowns(folders: Sequence[Path]) -> dict[Path, tuple[str, ...] | None]:
    """Why each accelerator reduces its clock; None where its metrics do not say."""
    before = {folder: _metrics(folder) for folder in folders}
    if any(metrics[3:4] and metrics[3] in _FIRST_RESIDENCY for metrics in before.values()):
        SystemClock().sleep(_SAMPLE_S)
    return {folder: _slowdown(metrics, _metrics(folder)) for folder, metrics in before.items()}


def _metrics(folder: Path) -> bytes:
    """Metrics of version 1.N; the header is their size, 1 and N."""
    with suppress(OSError):
        metrics = (folder / "gpu_metrics").read_bytes()
        return metrics if metrics[2:3] == b"\x01" else b""
    return b""


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
