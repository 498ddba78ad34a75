"""All pairs of nodes in rounds, every node busy with one other: bandwidth in both directions, and latency, per rail.

A pair is measured by perftest or iperf3 where both ranks have it: one rank serves, the other one asks it, and the store
joins them. Else it is measured over NCCL or TCP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from os import devnull
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.host.network import LOOPBACK, listen, node_addresses, reserve
from trainworks.worker.bench.output import BenchFigure, Conditions, ProgramText, figure

_PROGRAM_SECONDS, _FULL_PROGRAM_SECONDS = 1, 5
_START_S, _POLL_S = 10.0, 0.1
"""Longest wait for a server that has been started, and the time between two attempts."""
_TIMEOUT_S = 60.0
_DEVICES = Path("/sys/class/infiniband")
_PCI = Path("/sys/bus/pci/devices")
_ERROR = '"error":'
"""In the JSON of an iperf3 that failed, whose exit code may be 0."""
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_SECONDS, _FULL_SECONDS = 0.4, 5.0
_BLOCK_BYTES = 128 << 10
"""The default of `iperf3 --length`."""
_PING_BYTES, _PINGS = 8, 500
_MESSAGE_BYTES, _FULL_MESSAGE_BYTES = 64 << 20, 1 << 30


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
class PairOutput:
    """Both directions and latency of a link as figures, or as what a program printed in their place."""

    sent: float | str
    received: float | str
    latency: float | str
    """Empty for a program that does not measure it."""
    transport: str
    version: str = ""
    """Version of the program; empty where the output has it."""


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
    return sorted(
        filter(_is_for_nccl, active),
        key=lambda name: [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)],
    )


def _is_for_nccl(device: str) -> bool:
    """Whether NCCL_IB_HCA names the device: prefixes, `=` before exact names, `^` before those that are left out."""
    rule = os.environ.get("NCCL_IB_HCA", "")
    names = [name.partition(":")[0] for name in rule.lstrip("^=").split(",") if name]
    exact = rule.lstrip("^").startswith("=")
    is_named = any(device == name if exact else device.startswith(name) for name in names)
    return not names or is_named is not rule.startswith("^")


def rail_device(devices: Sequence[str], gpu: Path | None, local_rank: int) -> str:
    """The RDMA device of a rank: one that shares the longest PCI path with its GPU, by local rank among equals.

    All are equally near where the folder of the GPU in sysfs is not known (None).
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


def measure_with(program: str, place: RankPlace, peer: int, key: str, *, full: bool) -> PairOutput | None:
    """Output of the program for this pair, the same on both ranks; None if it failed."""
    first, seconds = place.rank < peer, str(_FULL_PROGRAM_SECONDS if full else _PROGRAM_SECONDS)
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
    if not all(outputs.values()):
        return None
    transport = "tcp" if program == "iperf3" else "rdma"
    return PairOutput(outputs["sent"], outputs["received"], outputs.get("latency", ""), transport, _version(program))


def _exchange(place: RankPlace, key: str, serve: list[str], ask: list[str], *, serves: bool) -> str:
    """What the rank that asks has printed; empty if it failed."""
    if not serves:
        address, _, port = place.store.get(f"{key}/at").decode().rpartition(":")
        text = _answer([*ask, address, "--port", port])
        place.store.set(f"{key}/output", text)
        return text
    with reserve(place.address) as reserved:  # until the server has ended: it may listen late
        port = str(reserved.getsockname()[1])
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


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Pairs of a round-robin tournament by the circle method: every pair once, every node at most once a round.

    `nodes - 1` rounds of nodes / 2 pairs for an even number, else `nodes` rounds in which one node rests.
    """
    players = [*range(nodes), *([-1] if nodes % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        players = [players[0], players[-1], *players[1:-1]]
    return found


def measure_pairs(place: RankPlace, setting: str, *, full: bool, built_in: bool) -> list[BenchFigure | ProgramText]:
    """Figures of all pairs and rails on rank 0; other ranks get none."""
    keys = []
    for index, pairs in enumerate(rounds(len(place.names))):
        dist.barrier()
        for first, second in pairs:
            keys += [f"pair/{index}/{first}/{rail}" for rail in range(place.ranks_per_node)]
            if place.node in (first, second):
                key = f"pair/{index}/{first}/{place.local_rank}"
                peer = (second if place.node == first else first) * place.ranks_per_node + place.local_rank
                found = _measure(place, peer, key, full=full, built_in=built_in)
                if place.node == first:
                    about: Conditions = {"rail": place.local_rank, "setting": setting, "round": index}
                    place.store.set(key, json.dumps(_figures(place.names[first], place.names[second], found, about)))
    return [] if place.rank else [each for key in keys for each in json.loads(place.store.get(key))]


def _measure(place: RankPlace, peer: int, key: str, *, full: bool, built_in: bool) -> PairOutput:
    """Both directions and the latency, by the program that both ranks have, else over NCCL or TCP."""
    program = "" if built_in else link_program(place, peer, key)
    found = measure_with(program, place, peer, f"{key}/{program}", full=full) if program else None
    if found is not None and found.latency:
        return found
    if place.device.type == "cuda":
        return _measure_nccl(place, peer, full=full)
    with _connected(place, peer, key) as connection:
        latency = _ping(connection, first=place.rank < peer)
        if found is None:
            sent, received = _tcp_rates(connection, full=full, first=place.rank < peer)
            return PairOutput(sent, received, latency, "tcp")
    return replace(found, latency=latency)


def _figures(first: str, second: str, found: PairOutput, about: Conditions) -> list[BenchFigure | ProgramText]:
    """The figures; the output of a program in the place of those that it measured."""

    def item(quantity: str, value: float | str, **conditions: str | float) -> BenchFigure | ProgramText:
        subject = f"{first} <-> {second}"
        conditions |= {**about, "transport": found.transport}
        if isinstance(value, str):
            return ProgramText(output=value, subject=subject, version=found.version, conditions=conditions)
        return figure(quantity, value, subject, **conditions)

    return [
        item("link_bandwidth", found.sent, direction=f"{first} to {second}"),
        item("link_bandwidth", found.received, direction=f"{second} to {first}"),
        item("link_latency", found.latency, bytes=_PING_BYTES),
    ]


def _connected(place: RankPlace, peer: int, key: str) -> socket.socket:
    if place.rank < peer:
        with listen(address=place.address) as server:
            place.store.set(f"{key}/at", json.dumps(server.getsockname()))
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(tuple(json.loads(place.store.get(f"{key}/at"))))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _tcp_rates(connection: socket.socket, *, full: bool, first: bool) -> tuple[float, float]:
    """Sent and received over one connection, as `iperf3` measures it, on the first rank; zeros on the other."""
    seconds = _FULL_SECONDS if full else _SECONDS
    if first:
        _send(connection, seconds)
        return float(_exactly(connection, 32)), _receive(connection)
    received = _receive(connection)
    connection.sendall(f"{received:<32.1f}".encode())
    _send(connection, seconds)
    return 0.0, 0.0


def _ping(connection: socket.socket, *, first: bool) -> float:
    """Half a round trip, the median of many."""
    message, durations = bytes(_PING_BYTES), []
    for _ in range(_PINGS):
        started = time.perf_counter()
        if first:
            connection.sendall(message)
        _exactly(connection, _PING_BYTES)
        if not first:
            connection.sendall(message)
        durations.append(time.perf_counter() - started)
    return sorted(durations)[_PINGS // 2] / 2


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionError("the other rank closed the connection")
        received += more
    return received


def _send(connection: socket.socket, seconds: float) -> None:
    """Whole blocks for a time, each begun with 0; the last one begins with 1."""
    block, until = bytearray(_BLOCK_BYTES), time.perf_counter() + seconds
    while time.perf_counter() < until:
        connection.sendall(block)
    block[0] = 1
    connection.sendall(block)


def _receive(connection: socket.socket) -> float:
    """Bytes per second from the first byte to the last block."""
    block, total, filled, started = memoryview(bytearray(_BLOCK_BYTES)), 0, 0, 0.0
    while True:
        got = connection.recv_into(block[filled:])
        if not got:
            raise ConnectionError("the other rank closed the connection")
        started = started or time.perf_counter()
        total, filled = total + got, filled + got
        if filled == _BLOCK_BYTES:
            if block[0]:
                return total / (time.perf_counter() - started)
            filled = 0


def _measure_nccl(place: RankPlace, peer: int, *, full: bool) -> PairOutput:
    """Between two accelerators, in one direction and then in the other."""
    small = torch.zeros(_PING_BYTES, dtype=torch.uint8, device=place.device)
    large = torch.zeros(_FULL_MESSAGE_BYTES if full else _MESSAGE_BYTES, dtype=torch.uint8, device=place.device)
    first = place.rank < peer

    def send(buffer: torch.Tensor, forward: bool) -> None:
        transfer: Callable[..., object] = dist.send if forward is first else dist.recv
        transfer(buffer, peer)

    def ping() -> None:
        send(small, True)
        send(small, False)

    latency = _mean_s(ping, place.device, 100) / 2
    sent, received = (
        large.numel() / _mean_s(lambda forward=forward: send(large, forward), place.device, 10)  # type: ignore[misc]
        for forward in (True, False)
    )
    return PairOutput(sent, received, latency, "nccl")


def _mean_s(action: Callable[[], object], device: torch.device, times: int) -> float:
    action()
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        action()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / times
