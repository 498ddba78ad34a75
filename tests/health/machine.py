"""A node made of files, and an NVML library that answers what a test says: a DGX H100 in good health."""

# ruff: noqa: N802, the names are those of pynvml

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from trainworks.host.clock import KernelClock
from trainworks.host.process import Output
from trainworks.measure.health.expectation import expectation_of, expected_cluster
from trainworks.measure.health.node import NodeView
from trainworks.recover.node_history import NodeHistory
from trainworks.units import DAY_S

GIB = 2**30
UPTIME_S = 400_000.0

ANSWERS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPciInfo": "pci",
    "nvmlDeviceGetCurrPcieLinkWidth": "width",
    "nvmlDeviceGetMaxPcieLinkWidth": "max_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "slot",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "generation",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "reasons",
    "nvmlDeviceGetComputeRunningProcesses": "processes",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetTotalEccErrors": "uncorrected",
    "nvmlDeviceGetRemappedRows": "rows",
    "nvmlDeviceGetRetiredPagesPendingStatus": "pages",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetTemperatureThreshold": "threshold",
    "nvmlDeviceGetEnforcedPowerLimit": "power",
    "nvmlDeviceGetPowerManagementDefaultLimit": "default_power",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetVbiosVersion": "vbios",
    "nvmlDeviceGetMaxClockInfo": "clock",
}


class FakeNvml:
    """The functions of pynvml over dictionaries, one for each GPU; what is None is not supported."""

    def __init__(self, gpus: list[dict[str, Any]], driver: str = "575.57.08", cuda: int = 12090) -> None:
        self.gpus, self.driver, self.cuda = gpus, driver, cuda
        self.broken: str = ""

    def nvmlInit(self) -> None:
        if self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.gpus[index].get("lost"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self.gpus[handle]["links"]
        return links[link] if link < len(links) else self._refuse()

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[SimpleNamespace]:
        known = self.gpus[handle]["fields"]
        return [
            SimpleNamespace(
                fieldId=field,
                nvmlReturn=pynvml.NVML_SUCCESS if field in known else pynvml.NVML_ERROR_NOT_SUPPORTED,
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
                value=SimpleNamespace(uiVal=known.get(field, 0), ullVal=0),
            )
            for field in fields
        ]

    def nvmlDeviceGetSramEccErrorStatus(self, handle: int, status: Any) -> int:
        status._obj.bThresholdExceeded = self.gpus[handle]["sram"]
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> int:
        info._obj.state, info._obj.status = self.gpus[handle]["fabric"]
        return pynvml.NVML_SUCCESS

    def __getattr__(self, function: str) -> Callable[..., Any]:
        key = ANSWERS[function]

        def answer(handle: int, *others: Any) -> Any:
            inspect.signature(getattr(pynvml, function)).bind(handle, *others)
            value = self.gpus[handle].get(key)
            return self._refuse() if value is None else value

        return answer

    def _refuse(self) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def gpu(index: int) -> dict[str, Any]:
    """What NVML says of an H100 in good health."""
    return {
        "name": "NVIDIA H100 80GB HBM3",
        "memory": SimpleNamespace(total=85_520_809_984),
        "pci": SimpleNamespace(busId=f"00000000:{index + 1:02X}:00.0"),
        "width": 16,
        "max_width": 16,
        "slot": 5,
        "generation": 5,
        "reasons": pynvml.nvmlClocksEventReasonGpuIdle,
        "processes": [],
        "mig": [0, 0],
        "ecc": [1, 1],
        "uncorrected": 0,
        "rows": (2, 1, 0, 0),
        "temperature": 31,
        "threshold": 87,
        "power": 700_000,
        "default_power": 700_000,
        "persistence": 1,
        "vbios": "96.00.5E.00.01",
        "clock": 1980,
        "links": [1] * 18,
        "fields": {pynvml.NVML_FI_DEV_MEMORY_TEMP: 40, pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 0},
        "sram": 0,
        "fabric": (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_SUCCESS),
    }


class Machine:
    """A node below a folder; a test changes its files and answers, then looks at it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nvml = FakeNvml([])
        self.log: list[str] = []
        self.clock: KernelClock | None = KernelClock(0.0001, 0.01, synchronized=True)
        self.free: dict[str, tuple[float, float]] = {}
        self.probe: tuple[str, ...] = ("true",)
        self.mount_timeout_s = 120.0  # the probe is a process, which a busy machine may start after seconds
        self.expect = ""
        self.cuda = ""
        self.environment: dict[str, str] = {}
        self.history: NodeHistory | None = NodeHistory(score=0.9, failures=0, held_s=20 * DAY_S)

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file of the node."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def view(self) -> NodeView:
        """The node as it is now."""
        return NodeView(
            root=self.root,
            nvml=self.nvml,
            run=self._run,
            clock=lambda: self.clock,
            space=self._space,
            probe=self.probe,
            mount_timeout_s=self.mount_timeout_s,
            cuda=lambda: self.cuda,
            environment=self.environment,
            history=lambda *_: self.history,
            **({"expected": expectation_of(expected_cluster(self.expect))} if self.expect else {}),
        )

    def _run(self, command: list[str], **_: object) -> Output:
        assert command == ["dmesg"]
        return Output(0, "\n".join(self.log), "")

    def _space(self, folder: str) -> os.statvfs_result:
        space, inodes = self.free.get("/" + str(Path(folder).relative_to(self.root)).removeprefix("."), (0.5, 0.5))
        blocks = 1000 * GIB // 4096
        return os.statvfs_result((4096, 4096, blocks, 0, int(space * blocks), 10**6, 0, int(inodes * 10**6), 0, 255))


def healthy(root: Path) -> Machine:
    """A DGX H100 on which every check applies and passes."""
    machine = Machine(root)
    machine.nvml = FakeNvml([gpu(index) for index in range(8)])
    machine.expect, machine.cuda = "DGX H100", "12.8"
    machine.log = ["[    0.000000] Linux version 6.8.0", "[   12.3] nvidia: loading out-of-tree module taints kernel."]
    for index in range(8):
        pci(machine, f"0000:{index + 1:02x}:00.0", "0x10de", "0x030200")
        nic(machine, index)
    pci(machine, "0000:80:00.0", "0x10de", "0x068000")
    pci(machine, "0000:90:00.0", "0x1000", "0x060400")
    machine.write("sys/bus/pci/devices/0000:90:00.0/config", acs_config(0))
    for name, text in FILES.items():
        machine.write(name, text)
    return machine


AMD_PCI = "sys/bus/pci/devices/0000:{:02x}:00.0"


def healthy_amd(root: Path, version: int = 8) -> Machine:
    """Eight MI300X whose driver shows every file that a check reads.

    Args:
        root: folder of the node.
        version: N of the metrics 1.N, whose layout differs.
    """
    machine = healthy(root)
    machine.nvml = FakeNvml([])
    machine.nvml.broken = "no library"
    machine.expect, machine.cuda = "8x MI300X", ""
    machine.write("sys/module/amdgpu/version", "6.12.12")
    pci(machine, "0000:80:00.0", "0x1000", "0x060400")  # in the place of the NVSwitch
    for index in range(8):
        folder = AMD_PCI.format(index + 1)
        pci(machine, folder.rpartition("/")[2], "0x1002", "0x120000")
        machine.write(f"{folder}/gpu_metrics", bytes([0, 1, 1, version]) + bytes(252))
        for name, text in AMD_FILES.items():
            machine.write(f"{folder}/{name}", text)
        node = f"sys/class/kfd/kfd/topology/nodes/{index + 2}"
        machine.write(f"{node}/properties", f"simd_count 1216\nlocation_id {(index + 1) << 8}\ndomain 0")
        for link in range(8):  # the first one leads to the processor
            machine.write(f"{node}/io_links/{link}/properties", f"type {2 if link == 0 else 11}\nweight 15")
    return machine


def busy_amd(root: Path) -> Machine:
    """The same at work: what metrics read beside it, and two thousand joules on each counter."""
    machine = healthy_amd(root)
    busy = {"gpu_busy_percent": "98", "mem_busy_percent": "40", "mem_info_vram_used": str(150_000 * 2**20)}
    busy |= {"pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *"}
    busy |= {"hwmon/hwmon3/power1_input": "655000000", "hwmon/hwmon3/freq1_input": "2100000000"}
    for index in range(8):
        folder = AMD_PCI.format(index + 1)
        count = (2000 * 2**16).to_bytes(8, "little")
        machine.write(f"{folder}/gpu_metrics", bytes([0, 1, 1, 8]) + bytes(20) + count + bytes(224))
        for name, text in {**busy, "unique_id": f"2eff74a10000100{index}"}.items():
            machine.write(f"{folder}/{name}", text)
    return machine


def pci(machine: Machine, address: str, vendor: str, device_class: str) -> None:
    """A device on the PCI bus."""
    folder = f"sys/bus/pci/devices/{address}"
    regions = "0x00000f0000000000 0x00000f0000ffffff 0x0000000000040200\n0x0 0x7f 0x20040101" + "\n0x0 0x0 0x0" * 5
    regions += "\n0x0 0x1ffffff 0x2014220c"  # of virtual functions, for which many machines have no room
    files = {"vendor": vendor, "class": device_class, "numa_node": "0", "resource": regions}
    for name, text in (files | {"iommu_group/type": "identity"}).items():
        machine.write(f"{folder}/{name}", text)
    for kind in ("fatal", "nonfatal"):
        machine.write(f"{folder}/aer_dev_{kind}", f"Undefined 0\nTOTAL_ERR_{kind.upper()} 0")


def nic(machine: Machine, index: int) -> None:
    """A ConnectX-7 with one NDR port."""
    device = f"sys/class/infiniband/mlx5_{index}"
    for name, text in {
        "board_id": "MT_0000000838",
        "fw_ver": "28.39.1002",
        "ports/1/state": "4: ACTIVE",
        "ports/1/rate": "400 Gb/sec (4X NDR)",
        "ports/1/counters/symbol_error": "0",
        "ports/1/counters/link_downed": "0",
        "device/current_link_width": "16",
        "device/max_link_width": "16",
        "device/current_link_speed": "32.0 GT/s PCIe",
        "device/max_link_speed": "32.0 GT/s PCIe",
        "device/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
        "device/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    }.items():
        machine.write(f"{device}/{name}", text)


def acs_config(control: int) -> bytes:
    """The configuration space of a bridge: AER at 0x100, then ACS at 0x140 with its control register."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x140 << 20).to_bytes(4, "little")
    space[0x140:0x144] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x146:0x148] = control.to_bytes(2, "little")
    return bytes(space)


AMD_FILES: Mapping[str, str] = {
    "product_name": "AMD Instinct MI300X OAM",
    "device": "0x74a1",
    "mem_info_vram_total": "206141652992",
    "vbios_version": "113-M3000100-102",
    "gpu_busy_percent": "0",
    "current_link_width": "16",
    "max_link_width": "16",
    "ras/umc_err_count": "ue: 0\nce: 4",
    "ras/gfx_err_count": "ue: 0\nce: 0",
    "ras/gpu_vram_bad_pages": "0x00001000 : 0x00001000 : R",
    "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp2_input": "41000",
    "hwmon/hwmon3/temp2_crit": "100000",
    "hwmon/hwmon3/temp3_label": "mem",
    "hwmon/hwmon3/temp3_input": "33000",
    "hwmon/hwmon3/temp3_crit": "105000",
    "hwmon/hwmon3/power1_cap": "750000000",
    "hwmon/hwmon3/power1_cap_default": "750000000",
}
FILES: Mapping[str, str] = {
    "proc/cpuinfo": "processor : 0\nflags : fpu avx512f",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08",
    "proc/meminfo": "MemTotal: 2113396000 kB\nSwapTotal: 0 kB\n"
    "HugePages_Free: 0\nHugePages_Rsvd: 0\nHugepagesize: 2048 kB",
    "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nnvidia 56823808 99 - Live 0x0",
    "proc/mounts": "/dev/md0 / ext4 rw,relatime 0 0\n/dev/nvme1n1p1 /scratch xfs rw 0 0\n"
    "tmpfs /dev/shm tmpfs rw 0 0\nfs1:/export /shared nfs4 rw,hard 0 0",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max stack size            8388608              unlimited            bytes\n"
    "Max open files            1024                 1048576              files\n"
    "Max locked memory         unlimited            unlimited            bytes",
    "proc/sys/kernel/hostname": "node17.cluster",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/kernel/osrelease": "6.8.0-51-generic",
    "proc/uptime": f"{UPTIME_S} 1.0",
    "proc/4242/stat": "4242 (nv-fabricmanage) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 900",
    "etc/fstab": "# <device> <folder>\n/dev/md0 / ext4 defaults 0 1\n/dev/nvme1n1p1 /scratch xfs defaults 0 2\n"
    "fs1:/export /shared nfs4 hard 0 0\nfs2:/old /old nfs4 noauto 0 0",
    "sys/block/md0/md/degraded": "0",
    "sys/devices/system/cpu/online": "0-223",
    "sys/devices/system/cpu/present": "0-223",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "sys/devices/system/edac/mc/mc0/ce_count": "0",
    "sys/devices/system/edac/mc/mc0/ue_count": "0",
    "sys/devices/system/node/node0/cpulist": "0-111",
    "sys/devices/system/node/node1/cpulist": "112-223",
}
