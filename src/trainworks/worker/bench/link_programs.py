"""A link measured by perftest or iperf3: one of two ranks serves, the other one asks it, and the store joins them."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from os import devnull
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.host.network import LOOPBACK, listen, node_addresses

_SECONDS, _FULL_SECONDS = 1, 5
_PING_BYTES = 8
_START_S, _POLL_S = 10.0, 0.1
"""Longest wait for a server that has been started, and the time between two attempts."""
_TIMEOUT_S = 60.0
_DEVICES = Path("/sys/class/infiniband")
_PCI = Path("/sys/bus/pci/devices")
_ERROR = '"error":'
"""In the JSON of an iperf3 that failed, whose exit code may be 0."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank among the nodes of a job."""

    rank: int
    local_rank: int
    node: int
    names: tuple[str, ...]
    ranks_per_node: int
    device: torch.device
    store: dist.Store

    @property
    def address(self) -> str:
        """Address of its node."""
        addresses = node_addresses()
        return addresses[self.node] if len(addresses) == len(self.names) else LOOPBACK


@dataclass(frozen=True, slots=True)
class LinkOutput:
    """What a program printed of both directions of a link, from the rank that asked."""

    sent: str
    received: str
    latency: str = ""
    """Empty for a program that does not measure it."""
    version: str = ""
    """Empty where the output has it."""


def link_program(place: RankPlace, peer: int, key: str) -> str:
    """The program that both ranks of a pair have: `perftest`, `iperf3`, or none.

    perftest needs an active port of RDMA for every rail; iperf3 is for nodes without accelerators, whose links are TCP.
    """
    mine = ",".join(_installed(place))
    place.store.set(f"{key}/programs/{place.rank}", mine)
    theirs = place.store.get(f"{key}/programs/{peer}").decode().split(",")
    return next((name for name in mine.split(",") if name in theirs), "")


def _installed(place: RankPlace) -> list[str]:
    found = []
    if all(map(shutil.which, ("ib_write_bw", "ib_write_lat"))) and len(rdma_devices()) >= place.ranks_per_node:
        found.append("perftest")
    if shutil.which("iperf3") and place.device.type == "cpu":
        found.append("iperf3")
    return found


def rdma_devices() -> list[str]:
    """RDMA devices with an active first port that NCCL_IB_HCA does not rule out; `mlx5_2` comes before `mlx5_10`.

    Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    states = _DEVICES.glob("*/ports/1/state")
    active = [state.parents[2].name for state in states if "ACTIVE" in state.read_text(encoding="utf-8")]
    return sorted(filter(_is_for_nccl, active), key=_natural_order)


def _is_for_nccl(device: str) -> bool:
    """Whether NCCL_IB_HCA names the device: prefixes, `=` before exact names, `^` before those that are left out."""
    rule = os.environ.get("NCCL_IB_HCA", "")
    names = [name.partition(":")[0] for name in rule.lstrip("^=").split(",") if name]
    exact = rule.lstrip("^").startswith("=")
    is_named = any(device == name if exact else device.startswith(name) for name in names)
    return not names or is_named is not rule.startswith("^")


def _natural_order(name: str) -> list[tuple[int, str]]:
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def rail_device(devices: Sequence[str], gpu: Path | None, local_rank: int) -> str:
    """The RDMA device of a rank: one that shares the longest PCI path with its GPU, by local rank among equals.

    Args:
        devices: at least one.
        gpu: folder of the GPU in sysfs; None where it is not known, and all devices are equally near.
        local_rank: of the rank.
    """
    near = {name: _shared_depth(gpu, _DEVICES / name / "device") if gpu else 0 for name in devices}
    nearest = [name for name in devices if near[name] == max(near.values())]
    return nearest[local_rank % len(nearest)]


def _shared_depth(first: Path, second: Path) -> int:
    """Number of folders that two devices have in common, from the root: PCI domain, root port, switches."""
    pairs = zip(first.resolve().parts, second.resolve().parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _gpu_folder(device: torch.device) -> Path | None:
    if device.type != "cuda":
        return None
    facts: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the PCI address
    folder = _PCI / f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    return folder if folder.exists() else None


def measure_with(program: str, place: RankPlace, peer: int, key: str, *, full: bool) -> LinkOutput | None:
    """Output of the program for this pair, the same on both ranks; None if it failed."""
    first, seconds = place.rank < peer, str(_FULL_SECONDS if full else _SECONDS)
    if program == "iperf3":
        serve = ["iperf3", "--server", "--one-off", "--bind", place.address]
        ask = ["iperf3", "--json", "--time", seconds, "--client"]
        commands = {"sent": (serve, ask), "received": (serve, ask)}
    else:
        device = ["--ib-dev", rail_device(rdma_devices(), _gpu_folder(place.device), place.local_rank), "-F"]
        rate = ["ib_write_bw", *device, "--report_gbits", "--duration", seconds]
        ping = ["ib_write_lat", *device, "--size", str(_PING_BYTES)]
        commands = {"sent": (rate, rate), "received": (rate, rate), "latency": (ping, ping)}
    outputs = {
        name: _exchange(place, f"{key}/{name}", serve, ask, serves=first is (name == "received"))
        for name, (serve, ask) in commands.items()
    }
    return LinkOutput(**outputs, version=_version(program)) if all(outputs.values()) else None


def _exchange(place: RankPlace, key: str, serve: list[str], ask: list[str], *, serves: bool) -> str:
    """What the rank that asks has printed; empty if it failed."""
    if not serves:
        address, _, port = place.store.get(f"{key}/at").decode().rpartition(":")
        text = _answer([*ask, address, "--port", port])
        place.store.set(f"{key}/output", text)
        return text
    with listen(address=place.address) as free:
        port = str(free.getsockname()[1])
    server = process.spawn([*serve, "--port", port], log=Path(devnull))
    try:
        place.store.set(f"{key}/at", f"{place.address}:{port}")
        return place.store.get(f"{key}/output").decode()
    finally:
        server.signal_group(signal.SIGKILL)
        server.wait()


def _answer(command: list[str]) -> str:
    """Output of a client, which is started again until its server listens; empty if it failed."""
    clock = SystemClock()
    deadline = clock.now() + _START_S
    while clock.now() < deadline:
        try:
            done = process.run(command, timeout_s=_TIMEOUT_S)
        except EnvironmentProblem:
            return ""
        if not done.exit_code and _ERROR not in done.stdout:
            return done.stdout
        clock.sleep(_POLL_S)
    return ""


def _version(program: str) -> str:
    """The version of perftest, whose output has none; empty for others."""
    if program != "perftest":
        return ""
    found = _VERSION.search(process.run(["ib_write_bw", "--version"], timeout_s=_TIMEOUT_S).stdout)
    return found[0] if found else ""
