"""Resources used by one node of a job, measured by its agent and written to the run directory."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from trainworks.errors import TrainworksError
from trainworks.host.amd import AmdGpu, visible_amd_gpus
from trainworks.host.other_load import STAT, OtherLoad
from trainworks.host.probe import probe_accelerators
from trainworks.host.process_tree import ProcessTree
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage


@dataclass(eq=False)
class UsageMeter:
    """Adds up the resources used by the descendants of this process."""

    tree: ProcessTree
    now_s: Callable[[], float]
    accelerators: Callable[[], float | None] | None = None
    """Busy share since the last call, None if unknown; None for a job without accelerators."""
    energy_j: Callable[[], float | None] = lambda: None
    """Energy of the accelerators since some moment before, None if unknown."""
    before_j: float = 0.0
    """Energy that earlier agents of the run have measured."""
    stat: Path = STAT
    """The kernel's statistics of the cores; see proc(5)."""

    def __post_init__(self) -> None:
        self._cpu_s, self._disk_waits = 0.0, 0
        self._other_load = OtherLoad(self.stat, lambda: self._cpu_s + time.process_time())
        self._last_s, self._first_j = self.now_s(), self.energy_j()
        self._accelerator_s = None if self.accelerators is None else 0.0

    def look(self) -> NodeUsage:
        """Totals so far."""
        use, now_s = self.tree.look(), self.now_s()
        self._cpu_s = use.cpu_s
        others_s, cores_s = self._other_load.times() or (None, None)
        if self.accelerators is not None and self._accelerator_s is not None:
            share = self.accelerators()
            self._accelerator_s += (1.0 if share is None else share) * (now_s - self._last_s)
        self._disk_waits += use.waits_for_disk
        self._last_s = now_s
        return NodeUsage(
            agent_pid=os.getpid(),
            monotonic_s=now_s,
            cpu_s=use.cpu_s,
            io_bytes=use.io_bytes,
            network_bytes=received_bytes(),
            disk_waits=self._disk_waits,
            accelerator_s=self._accelerator_s,
            energy_j=self._energy(),
            others_s=others_s,
            cores_s=cores_s,
            host=socket.gethostname(),
        )

    def _energy(self) -> float | None:
        now_j = self.energy_j()
        if now_j is None or self._first_j is None:
            return None
        return self.before_j + max(0.0, now_j - self._first_j)  # the counter begins again with the driver


def received_bytes() -> int | None:
    """Bytes received by this machine on all interfaces but loopback; see proc(5)."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    except OSError:
        return None
    interfaces = (line.split(":", 1) for line in lines)
    return sum(int(figures.split()[0]) for name, figures in interfaces if name.strip() != "lo")


def follow_usage(
    run_dir: RunDir, node: int, *, every_s: float, on_accelerators: bool, marks: Mapping[str, str] | None = None
) -> None:
    """Measure the node of this agent every `every_s` seconds in a thread that ends with this process.

    `marks` are those of `ProcessTree`.
    """
    tree = ProcessTree(os.getpid(), marks)

    def measure() -> None:
        meter = _meter(tree, run_dir.read_usage(node), on_accelerators=on_accelerators)
        never = threading.Event()
        while not never.wait(every_s):
            try:
                run_dir.write_usage(node, meter.look())
            except (OSError, TrainworksError):  # a full disk: the job then never counts as idle
                continue

    threading.Thread(target=measure, name="usage", daemon=True).start()


def _meter(tree: ProcessTree, before: NodeUsage | None, *, on_accelerators: bool) -> UsageMeter:
    if not on_accelerators:
        return UsageMeter(tree, time.monotonic)
    use, before_j = AcceleratorUse(), (before.energy_j if before else None) or 0.0
    return UsageMeter(tree, time.monotonic, use.look, use.energy_j, before_j)


class AcceleratorUse:
    """Utilisation and energy of the accelerators that this process sees, by this job or any other process."""

    def __init__(self, nvml: Any = pynvml, amd: Callable[[], Mapping[int, AmdGpu]] = visible_amd_gpus) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        self._last_us: dict[int, int] = {}
        visible = probe_accelerators()
        self._amd = list(amd().values())
        with suppress(nvml.NVMLError):
            nvml.nvmlInit()
            self._handles = [] if self._amd else [nvml.nvmlDeviceGetHandleByIndex(facts.index) for facts in visible]

    def look(self) -> float | None:
        """Busy share of the busiest accelerator since the last call; None if one of them does not report it.

        Of AMD's it is the share of this moment.
        """
        if self._amd:
            percent = [gpu.number("gpu_busy_percent") for gpu in self._amd]
            return None if None in percent else max(each or 0 for each in percent) / 100
        try:
            shares = [self._share(number, handle) for number, handle in enumerate(self._handles)]
        except self._nvml.NVMLError:  # a part of an accelerator (MIG) has no such figure
            return None
        return max(shares, default=None)

    def energy_j(self) -> float | None:
        """Energy of all of them since the driver was loaded; None if one of them does not report it."""
        if self._amd:
            joules = [gpu.energy_j for gpu in self._amd]
            return None if None in joules else sum(each or 0.0 for each in joules)
        try:
            millijoules = [self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles]
        except self._nvml.NVMLError:
            return None
        return sum(millijoules) / 1e3 if millijoules else None

    def _share(self, number: int, handle: Any) -> float:
        """Mean of the driver's samples since the last call, at least the current value."""
        nvml, last_us = self._nvml, self._last_us.get(number, 0)
        now = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        try:
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, last_us)
        except nvml.NVMLError:
            return float(now)
        new = [sample for sample in samples if sample.timeStamp > last_us]
        if not new:
            return float(now)
        self._last_us[number] = max(sample.timeStamp for sample in new)
        mean = sum(sample.sampleValue.uiVal for sample in new) / len(new) / 100
        return max(float(now), float(mean))
