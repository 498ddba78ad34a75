"""Measure this machine for some seconds: `python -m trainworks.worker.calibrate REQUEST_JSON [NODE ADDRESS PORT]`.

Prints one Calibration as JSON. All ranks measure at the same time, because they will compete for memory bandwidth,
cores and the network when they train. Over several nodes it is started on each of them; the first listens at ADDRESS.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional

from trainworks.host import memory
from trainworks.host.network import LOOPBACK, listen
from trainworks.record.calibration import Calibration, CalibrationRequest, GemmRate
from trainworks.record.processes import Processes
from trainworks.worker.determinism import take_device
from trainworks.worker.fork_server import import_all
from trainworks.worker.mesh import join_group, open_store

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""Input types of the matrix products; fp8 products cast inside."""
_SECONDS_EACH = 0.05
_ROUNDS = 5
_MOST_QUEUED = 50
"""Calls of one action that wait on an accelerator; it takes some thousand kernels before the host has to wait."""
_QUEUEING_CYCLES = 40_000_000
"""Clock cycles, about 20 ms: enough to queue these calls."""
_LONG_ROUND_S = 2.0
"""A first round that takes longer is the only one: products without units for their type take seconds each."""
_STREAM_ELEMENTS = 1 << 24
_OPTIMIZER_TENSORS = {"cpu": (1 << 20,) * 8, "cuda": (1 << 24,) * 8}
"""Parameters; an accelerator updates fewer in less time than the host needs to launch the kernels."""
_LARGE_ALL_REDUCE_BYTES = 8 << 20
_SMALL_ALL_REDUCE_BYTES = 4 << 10


def measure(request: CalibrationRequest, node: int = 0, address: str = LOOPBACK, port: int = 0) -> Calibration | None:
    """Measure with this node's share of `request.num_ranks` processes; the result is rank 0's, None on other nodes."""
    import_all(request.modules)  # resident in a rank of a training run, and so part of the baseline
    listener = listen(port, address) if node == 0 else None
    port = listener.getsockname()[1] if listener else port
    results = mp.get_context("fork").SimpleQueue()
    per_node = request.num_ranks // request.nodes
    mp.start_processes(  # type: ignore[no-untyped-call]
        _rank, args=(node * per_node, request, address, port, listener, results), nprocs=per_node, start_method="fork"
    )
    return results.get() if node == 0 else None


def _rank(
    local_rank: int,
    first: int,
    request: CalibrationRequest,
    address: str,
    port: int,
    listener: socket.socket | None,
    results: SimpleQueue[Calibration],
) -> None:
    rank = first + local_rank
    fd = listener.detach() if listener and rank == 0 else None
    store = open_store(address, port, serves=rank == 0, listener=fd)
    processes = Processes(
        nodes=request.nodes,
        processes_per_node=request.num_ranks // request.nodes,
        threads_per_process=request.threads_per_rank,
        device=request.device,
    )
    device = take_device(processes, request.precision, local_rank)
    join_group(processes.backend, address, store, rank=rank, world_size=request.num_ranks, device=device)
    calibration = _measure(request, device)
    if rank == 0:
        results.put(calibration)
    dist.barrier()
    dist.destroy_process_group()


def _measure(request: CalibrationRequest, device: torch.device) -> Calibration:
    started = time.perf_counter()
    dtype = _DTYPES[request.precision]
    rounds = [_rates(request, dtype, device)]
    slowest_s = torch.tensor(time.perf_counter() - started, device=device)
    dist.all_reduce(slowest_s, dist.ReduceOp.MAX)  # all ranks decide alike
    if float(slowest_s) < _LONG_ROUND_S:
        rounds += [_rates(request, dtype, device) for _ in range(_ROUNDS - 1)]
    stream, optimizer, overhead, attention, *gemms = map(statistics.median, zip(*rounds, strict=True))
    latency, bandwidth = _all_reduce(device)
    return Calibration(
        device=request.device,
        precision=request.precision,
        num_ranks=request.num_ranks,
        threads_per_rank=request.threads_per_rank,
        gemms=tuple(
            GemmRate(m=m, n=n, k=k, flops_per_s=rate)
            for (m, n, k), rate in zip(request.gemm_shapes, gemms, strict=True)
        ),
        attention_flops_per_s=attention,
        memory_bytes_per_s=stream,
        optimizer_params_per_s=optimizer,
        op_overhead_s=overhead,
        all_reduce_latency_s=latency,
        all_reduce_bytes_per_s=bandwidth,
        baseline_bytes=_resident_bytes(),  # after work was done: what it made resident stays so in a run, too
        seconds=time.perf_counter() - started,
    )


def _rates(request: CalibrationRequest, dtype: torch.dtype, device: torch.device) -> tuple[float, ...]:
    """Rates of memory, optimizer, operations, attention and products, one short measurement each.

    Their medians over several rounds are what counts: other work disturbs a machine for part of a second, which is all
    that one measurement takes, so it spoils one round.
    """
    product = _gemm_in_fp8 if request.precision == "fp8" else _gemm
    return (
        _stream(device),
        _optimizer(device),
        _op_overhead(device),
        _attention(request, dtype, device),
        *(product(shape, dtype, device) for shape in request.gemm_shapes),
    )


def _median_s(action: Callable[[], object], device: torch.device, *, on_host: bool = False) -> float:
    """Median duration of an action, after one unmeasured call, over about `_SECONDS_EACH`.

    On an accelerator the mean of its own time, see `_queued_s`, unless that of the host is asked for.
    """
    action()
    dist.barrier()
    if device.type == "cuda" and not on_host:
        return _queued_s(action)
    durations: list[float] = []
    while sum(durations) < _SECONDS_EACH and len(durations) < 1000:
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def _queued_s(action: Callable[[], object]) -> float:
    """Time of an action on the accelerator alone: it waits until the host has queued all calls, as in a training step
    whose host is ahead. What the host needs to launch a kernel is measured by itself (`_op_overhead`).
    """
    started = time.perf_counter()
    action()
    torch.cuda.synchronize()
    repeats = max(1, min(_MOST_QUEUED, int(_SECONDS_EACH / (time.perf_counter() - started))))
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_QUEUEING_CYCLES)
    begin.record()
    for _ in range(repeats):
        action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def _gemm(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """Rate of a linear layer's three products: some are seven times slower on a CPU without 16-bit units."""
    m, n, k = shape
    x, weight = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    grad = torch.randn(m, n, device=device, dtype=dtype)

    def products() -> tuple[torch.Tensor, ...]:
        return functional.linear(x, weight), grad @ weight, grad.T @ x

    return 3 * 2 * m * n * k / _median_s(products, device)


def _gemm_in_fp8(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """With the casts that training does before each product, under a scale per tensor."""
    m, n, k = shape
    left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    one = torch.ones((), device=device)

    def product() -> torch.Tensor:
        left_8, right_8 = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn)
        return torch._scaled_mm(left_8, right_8.T, scale_a=one, scale_b=one, out_dtype=dtype)

    return 2 * m * n * k / _median_s(product, device)


def _attention(request: CalibrationRequest, dtype: torch.dtype, device: torch.device) -> float:
    shape = (request.micro_batch, request.heads, request.sequence_length, request.head_dim)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    grad = torch.ones(shape, device=device, dtype=dtype)

    def forward_backward() -> None:
        functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)

    flops = 12 * request.micro_batch * request.heads * request.head_dim * request.sequence_length**2
    return flops / _median_s(forward_backward, device)


def _stream(device: torch.device) -> float:
    """Triad: two arrays read, one written, each larger than the caches."""
    a, b, out = (torch.ones(_STREAM_ELEMENTS, device=device) for _ in range(3))
    return 3 * 4 * _STREAM_ELEMENTS / _median_s(lambda: torch.add(a, b, out=out), device)


def _optimizer(device: torch.device) -> float:
    sizes = _OPTIMIZER_TENSORS[device.type]
    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adamw = torch.optim.AdamW(parameters, fused=True)

    def clip_and_step() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        adamw.step()

    return sum(sizes) / _median_s(clip_and_step, device)


def _op_overhead(device: torch.device) -> float:
    """Host time of one small operation: the slope over a chain of 50."""
    x = torch.ones(8, device=device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(50):
            y = y * 1.01
        y.sum().backward()

    return _median_s(chain, device, on_host=True) / 50


def _all_reduce(device: torch.device) -> tuple[float, float]:
    """Latency and bus bandwidth: t = latency + 2(n-1)/n * S / B, from a small and a large message."""
    n = dist.get_world_size()
    if n == 1:
        return 0.0, 1e12
    small = torch.ones(_SMALL_ALL_REDUCE_BYTES // 4, device=device)
    large = torch.ones(_LARGE_ALL_REDUCE_BYTES // 4, device=device)
    latency = _collective_s(small)
    seconds = max(_collective_s(large) - latency, 1e-9)
    return latency, 2 * (n - 1) / n * _LARGE_ALL_REDUCE_BYTES / seconds


def _collective_s(buffer: torch.Tensor, repeats: int = 12) -> float:
    """Median over a fixed number of calls: ranks that stop by time would leave each other waiting."""
    dist.all_reduce(buffer)
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        dist.all_reduce(buffer)
        if buffer.is_cuda:
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def _resident_bytes() -> int:
    """Resident memory after the tensors of the measurements are freed; glibc would keep it without `malloc_trim`."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return memory.resident_bytes()


def main(request: str, node: str = "0", address: str = LOOPBACK, port: str = "0") -> None:
    """Measure, and print what was measured on the first node."""
    calibration = measure(CalibrationRequest.model_validate_json(request), int(node), address, int(port))
    if calibration is not None:
        print(calibration.model_dump_json())  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
