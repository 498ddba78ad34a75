"""Facts about this machine: cores, memory, accelerators, disk, versions. Limits of containers apply."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from trainworks.files import free_bytes, readable_text
from trainworks.host.amd import visible_amd_gpus
from trainworks.host.processor import own_cores
from trainworks.record.environment import AcceleratorFacts, HostFacts

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_FORMAT_FLAGS: dict[Literal["bf16", "fp16"], set[str]] = {
    "bf16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""Processor flags of the kernel for the instructions that oneDNN and Arm's library multiply with."""
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "torchao")


def probe_host(disk: Path) -> HostFacts:
    """Probe this machine; `disk` is the folder whose free space counts."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return HostFacts(
        hostname=socket.gethostname(),
        operating_system=_operating_system(),
        processor=processor_name(),
        processor_formats=_processor_formats(),
        num_cores=num_cores(),
        memory_bytes=_memory_bytes(),
        disk_free_bytes=free_bytes(disk),
        accelerators=probe_accelerators(),
        python=platform.python_version(),
        packages=package_versions(),
        builds_kernels=bool(compiler) and Path(sysconfig.get_path("include"), "Python.h").exists(),
    )


def command_host(disk: Path, *, has_environment: bool) -> HostFacts:
    """This machine as a command finds it: without the packages of Trainworks where its `python` is another one.

    A command that has an `environment` of its own is in that one.
    """
    host, python = probe_host(disk), shutil.which("python")
    is_own = python is not None and Path(python).parent == Path(sys.executable).parent
    return host if is_own and not has_environment else host.model_copy(update={"packages": {}})


def num_cores() -> int:
    """Cores available to this process: its affinity, limited to the quota of the cgroup (rounded up)."""
    affinity = len(own_cores())
    quota, _, period = readable_text(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(affinity, -(-int(quota) // int(period))))
    return affinity


def probe_accelerators() -> tuple[AcceleratorFacts, ...]:
    """Accelerators that this process may use: NVIDIA's, else AMD's; empty without a driver.

    Parts by MIG stand for their GPU, with indexes after those of all GPUs; CUDA shows a process one of them alone. A
    GPU that its driver counts and cannot open, such as one that fell off the bus, is left out. The others keep their
    indexes.
    """
    found = _nvidia_accelerators()
    return _amd_accelerators() if found is None else _visible(found)


def cuda_names(devices: Sequence[int]) -> str:
    """CUDA_VISIBLE_DEVICES of accelerators of this machine: their indexes, and the UUID of a part by MIG."""
    parts = {facts.index: facts.uuids[0] for facts in _nvidia_accelerators() or () if facts.gpu is not None}
    return ",".join(parts.get(device, str(device)) for device in devices)


_MOST_PARTS = 7
"""Parts of a GPU by MIG. Source: NVIDIA's MIG user guide."""


def _nvidia_accelerators() -> list[AcceleratorFacts] | None:
    """NVIDIA's accelerators of this machine; None without a driver."""
    import pynvml  # noqa: PLC0415, 20 ms that most commands do without

    from trainworks.host.nvml import ask  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found = list[AcceleratorFacts]()
        count = pynvml.nvmlDeviceGetCount()
        for gpu in range(count):
            if (handle := ask(pynvml.nvmlDeviceGetHandleByIndex, gpu)) is None:
                continue
            mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
            if not mode or not mode[0]:
                found.append(_facts_of(handle, handle, gpu, None))
                continue
            for place in range(_MOST_PARTS):
                if (part := ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)) is not None:
                    found.append(_facts_of(part, handle, count + gpu * _MOST_PARTS + place, gpu))
        return found
    finally:
        pynvml.nvmlShutdown()


def _facts_of(handle: Any, whole: Any, index: int, gpu: int | None) -> AcceleratorFacts:
    import pynvml  # noqa: PLC0415

    return AcceleratorFacts(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=pynvml.nvmlDeviceGetCudaComputeCapability(whole),
        power_limit_w=_power_limit_w(whole) if gpu is None else None,
        uuids=tuple(dict.fromkeys(map(pynvml.nvmlDeviceGetUUID, (handle, whole)))),
        gpu=gpu,
    )


def _amd_accelerators() -> tuple[AcceleratorFacts, ...]:
    return tuple(
        AcceleratorFacts(
            index=index,
            name=gpu.name,
            memory_bytes=gpu.number("mem_info_vram_total") or 0,
            power_limit_w=gpu.power_limit_w(),
        )
        for index, gpu in visible_amd_gpus().items()
    )


def _power_limit_w(handle: Any) -> float | None:
    import pynvml  # noqa: PLC0415

    from trainworks.host.nvml import ask  # noqa: PLC0415

    milliwatts = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return None if milliwatts is None else milliwatts / 1e3


def _visible(found: list[AcceleratorFacts]) -> tuple[AcceleratorFacts, ...]:
    """Apply the rule of CUDA: names up to the first unknown one, by index or by UUID prefix.

    The index of a GPU in MIG mode is its first part. Source: NVIDIA's MIG user guide.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(found)
    visible: list[AcceleratorFacts] = []
    for name in (part.strip() for part in wanted.split(",")):
        if name.isdigit():
            match = [one for one in found if name == str(one.index if one.gpu is None else one.gpu)]
        else:
            match = [one for one in found if name and one.uuids[0].startswith(name)]
        if not match:
            break
        visible.append(match[0])
    return tuple(visible)


def _memory_bytes() -> int:
    limit = readable_text(_CGROUP / "memory.max")
    total = int(psutil.virtual_memory().total)
    return min(total, int(limit)) if limit.isdigit() else total


def _operating_system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, kernel {platform.release()}"


def processor_name() -> str:
    """Name of the processor as the kernel shows it, else the machine type."""
    for line in readable_text(_CPUINFO).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _processor_formats() -> tuple[Literal["bf16", "fp16"], ...]:
    for line in readable_text(_CPUINFO).splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.partition(":")[2].split())
            return tuple(name for name, carriers in _FORMAT_FLAGS.items() if flags & carriers)
    return ()


def package_versions() -> dict[str, str]:
    """Versions of the libraries of a rank that are installed beside Trainworks."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
