"""Collective operations over message sizes, with the figures of nccl-tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
import torch.distributed as dist

from trainworks.catalog.bounds import Operation, bus_factor
from trainworks.record.measured.bench import BenchRequest, BenchSetting
from trainworks.worker.bench.output import figure, print_part

_OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_ELEMENT_BYTES = 4
_SMALLEST, _LARGEST, _FULL_LARGEST = 8, 16 << 20, 16 << 30
_GROWTH, _FULL_GROWTH = 8, 2
_MEMORY_SHARE = 0.25
"""Share of the free memory for the largest buffer: an exchange has two, and the library its own."""
_SECONDS_EACH, _FULL_SECONDS_EACH = 0.1, 1.0
_FEWEST, _MOST = 5, 200


def measure_collectives(
    request: BenchRequest, setting: BenchSetting, device: torch.device, subject: str, *, nodes: int
) -> None:
    """Measure every operation that is still to be measured; rank 0 prints one part for each."""
    ranks, is_first = dist.get_world_size(), dist.get_rank() == 0
    for operation in _OPERATIONS:
        part = f"collectives/{operation}@{setting.name}"
        if not request.wants("collectives", part):
            continue
        about = {"ranks": ranks, "nodes": nodes, "transport": dist.get_backend(), "setting": setting.name}
        try:
            figures = [
                _figure(operation, size, _seconds(operation, size, device, request.full), subject, about)
                for size in sizes(_limit(device, full=request.full), ranks, full=request.full)
            ]
        except (NotImplementedError, RuntimeError) as error:
            if "support" not in str(error):
                raise
            figures = []
        if is_first:
            print_part(part, figures, "" if figures else f"{dist.get_backend()} has no {operation}")


def sizes(limit: int, ranks: int, *, full: bool) -> list[int]:
    """Message sizes in bytes, from 8 B on, each a whole number of elements for every rank."""
    found, size, whole = [], _SMALLEST, _ELEMENT_BYTES * ranks
    while size <= limit:
        found.append(-(-size // whole) * whole)
        size *= _FULL_GROWTH if full else _GROWTH
    return sorted(set(found))


def _limit(device: torch.device, *, full: bool) -> int:
    """The largest message that fits into the memory of every rank."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available // dist.get_world_size()
    least = torch.tensor(free, device=device, dtype=torch.int64)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return min(_FULL_LARGEST if full else _LARGEST, int(least.item() * _MEMORY_SHARE))


def _seconds(operation: Operation, size: int, device: torch.device, full: bool) -> float:
    """Mean time of a call, averaged over the ranks as nccl-tests does; all ranks make the same number of calls."""
    call = _call(operation, size, device)
    _timed(call, 2, device)
    estimate = _mean(_timed(call, 2, device), device)
    wanted = (_FULL_SECONDS_EACH if full else _SECONDS_EACH) / max(estimate, 1e-7)
    return _mean(_timed(call, int(min(max(wanted, _FEWEST), _MOST)), device), device)


def _timed(call: Callable[[], object], times: int, device: torch.device) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(times):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / times


def _mean(seconds: float, device: torch.device) -> float:
    total = torch.tensor(seconds, device=device, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.item()) / dist.get_world_size()


def _call(operation: Operation, size: int, device: torch.device) -> Callable[[], object]:
    whole = torch.zeros(size // _ELEMENT_BYTES, device=device)
    share = torch.zeros(len(whole) // dist.get_world_size(), device=device)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if operation == "all_gather":
        return lambda: dist.all_gather_single(whole, share)
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(share, whole)
    if operation == "all_to_all":
        received = torch.zeros_like(whole)
        return lambda: dist.all_to_all_single(received, whole)
    return lambda: dist.broadcast(whole, 0)


def _figure(operation: Operation, size: int, seconds: float, subject: str, about: dict[str, Any]) -> dict[str, Any]:
    algbw = size / seconds
    busbw = algbw * bus_factor(operation, about["ranks"])
    return figure("busbw", busbw, subject, operation=operation, bytes=size, seconds=seconds, algbw=algbw, **about)
