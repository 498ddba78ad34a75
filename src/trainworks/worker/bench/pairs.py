"""All pairs of nodes in rounds, every node busy with one other: bandwidth in both directions, and latency, per rail."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainworks.host.network import LOOPBACK, listen
from trainworks.worker.bench.output import figure

_SECONDS, _FULL_SECONDS = 0.4, 5.0
_BLOCK_BYTES = 128 << 10
"""The default of `iperf3 --length`."""
_PING_BYTES, _PINGS = 8, 500
_MESSAGE_BYTES, _FULL_MESSAGE_BYTES = 64 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank among the nodes of a job; its rail is its local rank."""

    rank: int
    local_rank: int
    node: int
    names: tuple[str, ...]
    ranks_per_node: int
    device: torch.device
    store: dist.Store


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


def measure_pairs(place: RankPlace, setting: str, *, full: bool) -> list[dict[str, Any]]:
    """Figures of all pairs and rails on rank 0; other ranks get none."""
    measure = _over_nccl if place.device.type == "cuda" else _over_tcp
    keys = []
    for index, pairs in enumerate(rounds(len(place.names))):
        dist.barrier()
        for first, second in pairs:
            keys += [f"pair/{index}/{first}/{rail}" for rail in range(place.ranks_per_node)]
            if place.node in (first, second):
                key = f"pair/{index}/{first}/{place.local_rank}"
                peer = (second if place.node == first else first) * place.ranks_per_node + place.local_rank
                found = measure(place, peer, key, full)
                if place.node == first:
                    about = {"rail": place.local_rank, "setting": setting, "round": index}
                    place.store.set(key, json.dumps(_figures(place.names[first], place.names[second], found, about)))
    return [] if place.rank else [each for key in keys for each in json.loads(place.store.get(key))]


def _figures(first: str, second: str, found: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    subject, transport = f"{first} <-> {second}", found["transport"]
    about = about | {"transport": transport}
    return [
        figure("link_bandwidth", found["sent"], subject, direction=f"{first} to {second}", **about),
        figure("link_bandwidth", found["received"], subject, direction=f"{second} to {first}", **about),
        figure("link_latency", found["latency"], subject, bytes=_PING_BYTES, **about),
    ]


def _over_tcp(place: RankPlace, peer: int, key: str, full: bool) -> dict[str, Any]:
    """Over one TCP connection from the kernel's default settings, as `iperf3` measures it."""
    seconds = _FULL_SECONDS if full else _SECONDS
    if place.rank < peer:
        with listen(address=_own_address(place)) as server:
            place.store.set(f"{key}/at", json.dumps(server.getsockname()))
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(tuple(json.loads(place.store.get(f"{key}/at"))))
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        latency = _ping(connection, first=place.rank < peer)
        if place.rank < peer:
            _send(connection, seconds)
            sent, received = float(_exactly(connection, 32)), _receive(connection)
        else:
            rate = _receive(connection)
            connection.sendall(f"{rate:<32.1f}".encode())
            _send(connection, seconds)
            sent, received = rate, 0.0
    return {"sent": sent, "received": received, "latency": latency, "transport": "tcp"}


def _own_address(place: RankPlace) -> str:
    addresses = os.environ.get("SKYPILOT_NODE_IPS", "").split()
    return addresses[place.node] if len(addresses) == len(place.names) else LOOPBACK


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


def _over_nccl(place: RankPlace, peer: int, key: str, full: bool) -> dict[str, Any]:
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
    return {"sent": sent, "received": received, "latency": latency, "transport": "nccl"}


def _mean_s(action: Callable[[], object], device: torch.device, times: int) -> float:
    action()
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        action()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / times
