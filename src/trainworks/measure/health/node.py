"""A node as health checks see it: its files below a root, NVML, and a few programs; a test replaces each of them."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.amd import AMD, AMD_CLASSES
from trainworks.host.clock import KernelClock, read_kernel_clock
from trainworks.host.fabric import NicPort, rdma_ports
from trainworks.measure.health.expectation import Expectation
from trainworks.measure.health.gpus import Gpu, GpuDriver, read_amd_driver, read_driver
from trainworks.recover.node_history import NodeHistory

NVIDIA = "0x10de"
MOUNT_TIMEOUT_S = 1.0
_REAP_S = 0.5
"""Time for killed processes to end; one that waits for a dead server does not."""
_LOG_TIMEOUT_S = 1.0
_TICKS_PER_S = 100.0
_NETWORK_KINDS = re.compile(r"nfs4?|lustre|gpfs|ceph|beegfs|cifs|smb3|wekafs|glusterfs|fuse\.(?!lxcfs|snapfuse).+")
_CUDA_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


class NotApplicable(Exception):
    """The node does not have what a check is about."""


class Unreadable(Exception):
    """This user cannot read what a check needs."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device on the PCI bus."""

    address: str
    vendor: str
    device_class: str
    folder: Path


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A line of /proc/PID/stat."""

    pid: int
    name: str
    """At most 15 characters."""
    state: str
    start_s: float
    """Seconds after boot."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/mounts or /etc/fstab."""

    device: str
    folder: str
    kind: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return self.folder


def cuda_of_wheels() -> str:
    """CUDA version that the installed torch was built for: `12.8`; empty if there is none."""
    with suppress(metadata.PackageNotFoundError):
        if match := re.search(r"\+cu(\d\d)(\d)", metadata.version("torch")):
            return f"{match[1]}.{match[2]}"
    for package in _CUDA_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ""


@dataclass(frozen=True)
class NodeView:
    """A node; what is expensive is read once, when a check asks for it."""

    root: Path = Path("/")
    nvml: Any = pynvml
    expected: Expectation = field(default_factory=Expectation)
    run: Callable[..., process.Output] = process.run
    clock: Callable[[], KernelClock | None] = read_kernel_clock
    space: Callable[[str], os.statvfs_result] = field(default_factory=lambda: os.statvfs)
    probe: tuple[str, ...] = ("stat", "--file-system", "--terse")
    """Program that asks a file system; the folder is appended."""
    mount_timeout_s: float = MOUNT_TIMEOUT_S
    """Time that it has to answer."""
    xids_within_s: float = math.inf
    """Age from which on an XID in the kernel's log does not count."""
    cuda: Callable[[], str] = field(default=cuda_of_wheels)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    history: Callable[[str, str | None], NodeHistory | None] = lambda _name, _accelerator: None
    """Looks up what jobs have seen of the node, by its name and accelerator; None where no job is on record."""

    def path(self, name: str) -> Path:
        """Path of a file of the node."""
        return self.root / name.lstrip("/")

    def text(self, name: str | Path) -> str:
        """Content of a file without the line end; empty if there is none.

        Raises:
            Unreadable: this user must not read it.
        """
        path = name if isinstance(name, Path) else self.path(name)
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except PermissionError:
            raise Unreadable(f"only root reads {name}") from None
        except OSError:
            return ""

    def number(self, name: str | Path) -> int | None:
        """The integer in a file; None if there is none."""
        text = self.text(name)
        return int(text) if text.lstrip("-").isdigit() else None

    def files(self, pattern: str) -> list[Path]:
        """Files of the node that match a pattern, in order."""
        return sorted(self.root.glob(pattern.lstrip("/")))

    @property
    def name(self) -> str:
        """Name of the node in its cluster, else its host name without the domain."""
        own = next(filter(None, map(self.environment.get, ("SLURMD_NODENAME", "NODE_NAME"))), "")
        return own or self.text("/proc/sys/kernel/hostname").partition(".")[0]

    @property
    def inside_job(self) -> bool:
        """True in a job of Slurm, which sees its own GPUs alone; a prolog sees all of them."""
        return "SLURM_JOB_ID" in self.environment and "SLURM_SCRIPT_CONTEXT" not in self.environment

    @cached_property
    def driver(self) -> GpuDriver:
        """The driver and its GPUs: NVIDIA's by NVML, AMD's by sysfs."""
        if self.vendor == AMD:
            return read_amd_driver(self.root, [each.folder for each in self.gpus_on_the_bus], self.text)
        return read_driver(self.nvml)

    @cached_property
    def pci(self) -> list[PciDevice]:
        """Devices on the PCI bus."""
        folders = self.files("/sys/bus/pci/devices/*")
        return [PciDevice(each.name, self.text(each / "vendor"), self.text(each / "class"), each) for each in folders]

    @cached_property
    def vendor(self) -> str:
        """Vendor of the GPUs as the PCI bus has it; NVIDIA where the bus shows none, as in some containers."""
        vendors = {each.vendor for each in self.pci if _is_gpu(each)}
        return AMD if vendors == {AMD} else NVIDIA

    @cached_property
    def gpus_on_the_bus(self) -> list[PciDevice]:
        """GPUs of that vendor on the PCI bus: NVIDIA's display and 3D controllers, AMD's accelerators."""
        return [each for each in self.pci if each.vendor == self.vendor and _is_gpu(each)]

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the driver opens, at least one.

        Raises:
            NotApplicable: the node has no GPU, or its driver does not answer, which is another check.
        """
        if self.driver.gpus:
            return self.driver.gpus
        if not self.gpus_on_the_bus:
            raise NotApplicable("no GPU")
        raise NotApplicable("the driver of the GPUs does not answer")

    @cached_property
    def ports(self) -> list[NicPort]:
        """Ports of InfiniBand and RoCE devices.

        Raises:
            NotApplicable: there is none.
        """
        found = rdma_ports(self.root)
        if not found:
            raise NotApplicable("no InfiniBand or RoCE device")
        return found

    @cached_property
    def mounts(self) -> list[Mount]:
        """Mounted file systems."""
        return _mounts(self.text("/proc/mounts"))

    @cached_property
    def fstab(self) -> list[Mount]:
        """File systems that the administrator wants mounted at boot."""
        return [each for each in _mounts(self.text("/etc/fstab")) if "noauto" not in each.options]

    @cached_property
    def memory(self) -> dict[str, int]:
        """/proc/meminfo: kB, or a number of pages."""
        lines = (line.split() for line in self.text("/proc/meminfo").splitlines())
        return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}

    @cached_property
    def limits(self) -> dict[str, tuple[str, str]]:
        """Soft and hard limits of processes, by name: `Max locked memory`."""
        rows = (re.split(r"\s{2,}", line.strip()) for line in self.text("/proc/self/limits").splitlines()[1:])
        return {row[0]: (row[1], row[2]) for row in rows if len(row) > 2}

    @cached_property
    def processes(self) -> list[ProcessStat]:
        """All processes."""
        stats = (self.text(each / "stat") for each in self.files("/proc/[0-9]*"))
        return [_process(text) for text in stats if text]

    @cached_property
    def uptime_s(self) -> float:
        """Seconds since boot."""
        return float((self.text("/proc/uptime").split() or ["0"])[0])

    @property
    def log(self) -> list[str]:
        """Lines of the kernel's log since boot.

        Raises:
            Unreadable: dmesg is missing, or this user must not call it.
        """
        if self._dmesg.exit_code:
            raise Unreadable(f"the kernel's log cannot be read: {self._dmesg.stderr.strip() or 'dmesg failed'}")
        return self._dmesg.stdout.splitlines()

    @cached_property
    def _dmesg(self) -> process.Output:
        try:
            return self.run(["dmesg"], timeout_s=_LOG_TIMEOUT_S)
        except (FileNotFoundError, EnvironmentProblem) as error:
            return process.Output(1, "", str(error))

    @cached_property
    def asked(self) -> tuple[float, dict[str, process.Child]]:
        """Time, and a process for each network file system that asks it something; one folder of each.

        A process that waits for a dead server cannot be killed, so no other one waits for it.
        """
        folders = {each.device: each.folder for each in self.mounts if _NETWORK_KINDS.fullmatch(each.kind)}
        nowhere = Path(os.devnull)
        children = {
            folder: process.spawn([*self.probe, str(self.path(folder))], log=nowhere) for folder in folders.values()
        }
        return time.monotonic(), children

    def silent(self) -> list[str]:
        """Folders whose network file system has not answered in time after it was `asked`."""
        start_s, children = self.asked
        end_s = start_s + self.mount_timeout_s
        late = [folder for folder, child in children.items() if child.wait(max(0.0, end_s - time.monotonic())) is None]
        for folder in late:
            children[folder].signal_group(signal.SIGKILL)
        end_s = time.monotonic() + _REAP_S
        for folder in late:
            children[folder].wait(max(0.0, end_s - time.monotonic()))
        return late


def _is_gpu(device: PciDevice) -> bool:
    kinds = {NVIDIA: ("0x03",), AMD: AMD_CLASSES}
    return device.device_class.startswith(kinds.get(device.vendor, ("none",)))


def _process(stat: str) -> ProcessStat:
    pid, _, rest = stat.partition(" (")
    name, _, words = rest.rpartition(") ")
    fields = words.split()
    return ProcessStat(int(pid), name, fields[0], int(fields[19]) / _TICKS_PER_S)


def _mounts(text: str) -> list[Mount]:
    lines = (line.split() for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [
        Mount(_plain(words[0]), _plain(words[1]), words[2], tuple(words[3].split(",")))
        for words in lines
        if len(words) > 3
    ]


def _plain(word: str) -> str:
    r"""A path of /proc/mounts, where a blank is written `\040`."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), word)


def listed(numbers: Sequence[object]) -> str:
    """Items separated by commas."""
    return ", ".join(map(str, numbers))
