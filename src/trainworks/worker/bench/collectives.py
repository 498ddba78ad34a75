"""Collective operations over message sizes: by nccl-tests where it is installed, else by torch with its figures."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
import torch
import torch.distributed as dist

from trainworks.catalog.bounds import Operation, bus_factor
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.mpirun import mpirun
from trainworks.host.network import node_addresses
from trainworks.record.measured.bench import BenchRequest, BenchSetting
from trainworks.worker.bench.output import Conditions, ProgramText, figure, print_part

_OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_ELEMENT_BYTES = 4
_SMALLEST, _LARGEST, _FULL_LARGEST = 8, 16 << 20, 16 << 30
_GROWTH, _FULL_GROWTH = 8, 2
_MEMORY_SHARE = 0.25
"""Share of the free memory for the largest buffer: an exchange has two, and the library its own."""
_SECONDS_EACH, _FULL_SECONDS_EACH = 0.1, 1.0
_FEWEST, _MOST = 5, 200
_PROGRAMS: Mapping[Operation, str] = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
}
_SIZES = ("-b", "8", "-e", "16M", "-f", "8")
_FULL_SIZES = ("-b", "8", "-e", "16G", "-f", "2")
"""The programs take less themselves where the memory of an accelerator does not suffice."""
_TIMEOUT_S = 3600.0
_FIRST_RANK = re.compile(r"^#?\s*Rank\s+0\s", re.MULTILINE)


def measure_collectives(
    request: BenchRequest, setting: BenchSetting, device: torch.device, subject: str, *, nodes: int
) -> None:
    """Measure every operation that is still to be measured; rank 0 prints one part for each."""
    ranks, is_first = dist.get_world_size(), dist.get_rank() == 0
    for operation in _OPERATIONS:
        part = f"collectives/{operation}@{setting.name}"
        if not request.wants("collectives", part):
            continue
        common: Conditions = {"ranks": ranks, "nodes": nodes, "transport": dist.get_backend(), "setting": setting.name}
        try:
            figures = []
            for size in sizes(_limit(device, full=request.full), ranks, full=request.full):
                seconds = _seconds(operation, size, device, request.full)
                algbw = size / seconds
                busbw = algbw * bus_factor(operation, ranks)
                about: dict[str, str | float] = {
                    "operation": operation,
                    "bytes": size,
                    "seconds": seconds,
                    "algbw": algbw,
                    **common,
                }
                figures.append(figure("busbw", busbw, subject, **about))
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


def measure_with_nccl_tests(request: BenchRequest, nodes: Sequence[str], ranks_per_node: int) -> BenchRequest:
    """Measure on the first node what nccl-tests can, one part for each operation and setting.

    One process measures a node, and MPI starts a process per rank for several nodes.

    Returns:
        The request without these parts. A program that is missing or fails leaves its part, and says why in the log.
    """
    done = []
    for setting in request.settings:
        for operation, program in _PROGRAMS.items():
            part = f"collectives/{operation}@{setting.name}"
            if not request.wants("collectives", part) or shutil.which(program) is None:
                continue
            try:
                text = _output(program, setting, len(nodes), ranks_per_node, full=request.full)
            except EnvironmentProblem as error:
                sys.stderr.write(f"{part}: {error.message}; measured without {program}\n")
                continue
            ranks = ranks_per_node * len(nodes)
            subject = f"{len(nodes)} nodes" if len(nodes) > 1 else f"{nodes[0]}, {ranks} ranks"
            about: dict[str, str | float] = {"ranks": ranks, "nodes": len(nodes), "setting": setting.name}
            about |= {"operation": operation, "transport": "nccl"}
            print_part(part, [ProgramText(output=text, subject=subject, version="", conditions=about)])
            done.append(part)
    return request.model_copy(update={"done": (*request.done, *done)})


def _output(program: str, setting: BenchSetting, nodes: int, ranks_per_node: int, *, full: bool) -> str:
    command = [program, *(_FULL_SIZES if full else _SIZES)]
    if nodes > 1:
        text = mpirun([*command, "-g", "1"], node_addresses(), ranks_per_node, setting.env)
        if len(_FIRST_RANK.findall(text)) > 1:
            raise EnvironmentProblem(f"{program} is built without MPI: its ranks measured alone")
        return text
    done = process.run([*command, "-g", str(ranks_per_node)], env={**os.environ, **setting.env}, timeout_s=_TIMEOUT_S)
    if done.exit_code:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EnvironmentProblem(f"{program} failed: {lines[-1] if lines else f'exit code {done.exit_code}'}")
    return done.stdout
