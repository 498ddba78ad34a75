"""All pairs of nodes in rounds, every node busy with one other: bandwidth in both directions, and latency, per rail."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from trainworks.host.network import listen
from trainworks.worker.bench.link_programs import RankPlace, link_program, measure_with
from trainworks.worker.bench.output import figure, program_output

_SECONDS, _FULL_SECONDS = 0.4, 5.0
_BLOCK_BYTES = 128 << 10
"""The default of `iperf3 --length`."""
_PING_BYTES, _PINGS = 8, 500
_MESSAGE_BYTES, _FULL_MESSAGE_BYTES = 64 << 20, 1 << 30


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


def measure_pairs(place: RankPlace, setting: str, *, full: bool, built_in: bool) -> list[dict[str, Any]]:
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
                    about = {"rail": place.local_rank, "setting": setting, "round": index}
                    place.store.set(key, json.dumps(_figures(place.names[first], place.names[second], found, about)))
    return [] if place.rank else [each for key in keys for each in json.loads(place.store.get(key))]


def _measure(place: RankPlace, peer: int, key: str, *, full: bool, built_in: bool) -> dict[str, Any]:
    """Both directions and the latency, by the program that both ranks have, else over NCCL or TCP."""
    program = "" if built_in else link_program(place, peer, key)
    found = measure_with(program, place, peer, f"{key}/{program}", full=full) if program else None
    if found is not None and found.latency:
        return {**asdict(found), "transport": "rdma"}
    if place.device.type == "cuda":
        return _over_nccl(place, peer, full=full)
    with _connected(place, peer, key) as connection:
        latency = _ping(connection, first=place.rank < peer)
        rates = _tcp_rates(connection, full=full, first=place.rank < peer) if found is None else asdict(found)
    return {**rates, "latency": latency, "transport": "tcp"}


def _figures(first: str, second: str, found: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures; the output of a program in the place of those that it measured."""
    about = about | {"transport": found["transport"]}

    def item(quantity: str, value: float | str, **conditions: str | float) -> dict[str, Any]:
        subject = f"{first} <-> {second}"
        if isinstance(value, str):
            return program_output(value, subject, found["version"], conditions={**conditions, **about})
        return figure(quantity, value, subject, **conditions, **about)

    return [
        item("link_bandwidth", found["sent"], direction=f"{first} to {second}"),
        item("link_bandwidth", found["received"], direction=f"{second} to {first}"),
        item("link_latency", found["latency"], bytes=_PING_BYTES),
    ]


def _connected(place: RankPlace, peer: int, key: str) -> socket.socket:
    """A TCP connection between two ranks, with the kernel's default settings."""
    if place.rank < peer:
        with listen(address=place.address) as server:
            place.store.set(f"{key}/at", json.dumps(server.getsockname()))
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(tuple(json.loads(place.store.get(f"{key}/at"))))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _tcp_rates(connection: socket.socket, *, full: bool, first: bool) -> dict[str, float]:
    """Over one connection, as `iperf3` measures it; the rates are the first rank's."""
    seconds = _FULL_SECONDS if full else _SECONDS
    if first:
        _send(connection, seconds)
        return {"sent": float(_exactly(connection, 32)), "received": _receive(connection)}
    rate = _receive(connection)
    connection.sendall(f"{rate:<32.1f}".encode())
    _send(connection, seconds)
    return {}


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


def _over_nccl(place: RankPlace, peer: int, *, full: bool) -> dict[str, Any]:
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
