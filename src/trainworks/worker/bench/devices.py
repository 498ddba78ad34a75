"""Measure the devices of this node: `python -m trainworks.worker.bench.devices REQUEST_JSON`.

All accelerators are measured at once, because they share power, cooling and the links to the host when they train.
Without one the processor is measured. Times are medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from trainworks.record.measured.bench import BenchRequest
from trainworks.worker.bench.output import BenchFigure, figure, print_end, print_part

_PRECISIONS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
PRECISIONS = tuple(_PRECISIONS)
_ON_ACCELERATORS_ONLY = ("tf32", "fp8")
_FP8_CAPABILITY = (8, 9)
"""Compute capability below which torch has no 8-bit products: SM89OrLater in torch/testing/_internal/common_cuda.py."""
_SIZES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
_FULL_SIZES = {"cpu": (512, 1024, 2048, 4096, 8192), "cuda": (1024, 2048, 4096, 8192, 16384)}
_SECONDS_EACH, _FULL_SECONDS_EACH = 0.5, 3.0
_SLOW_S = 1.0
"""A product that takes longer ends the sweep over sizes: a format that the processor emulates is slow at any size."""
_COPY_BYTES, _FULL_COPY_BYTES = 256 << 20, 4 << 30


def main(request_json: str) -> None:
    """Print one line per part."""
    request = BenchRequest.model_validate_json(request_json)
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())] or [torch.device("cpu")]
    seconds = _FULL_SECONDS_EACH if request.full else _SECONDS_EACH
    for precision in PRECISIONS:
        if request.wants("compute", part := f"compute/{precision}"):
            reason = _unsupported(precision, devices)
            sizes = (_FULL_SIZES if request.full else _SIZES)[devices[0].type]
            print_part(part, [] if reason else _each(devices, _gemm_figure, precision, sizes, seconds), reason)
    for part, measure in (("memory/device", _triad_figure), ("memory/host-link", _link_figures)):
        if request.wants("memory", part):
            on_cpu = devices[0].type == "cpu"
            size = _FULL_COPY_BYTES if request.full else _COPY_BYTES
            print_part(part, [] if on_cpu else _each(devices, measure, size, seconds), "no accelerator" * on_cpu)
    if request.wants("memory", "memory/host-torch"):
        print_part("memory/host-torch", [_triad_figure(torch.device("cpu"), _COPY_BYTES, seconds, "memory_bandwidth")])
    print_end()


def _unsupported(precision: str, devices: list[torch.device]) -> str:
    """Why the devices have no products of a precision; empty if they have."""
    if precision not in _ON_ACCELERATORS_ONLY:
        return ""
    if devices[0].type == "cpu":
        return "no accelerator"
    old = precision == "fp8" and torch.cuda.get_device_capability(devices[0]) < _FP8_CAPABILITY
    return "the accelerator has no 8-bit products" if old else ""


def _each(devices: list[torch.device], measure: Callable[..., Any], *arguments: Any) -> list[BenchFigure]:
    with ThreadPoolExecutor(len(devices)) as pool:
        found = list(pool.map(lambda device: measure(device, *arguments), devices))
    return [item for each in found for item in (each if isinstance(each, list) else [each])]


def _subject(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"gpu{device.index}"


def _gemm_figure(device: torch.device, precision: str, sizes: tuple[int, ...], seconds: float) -> BenchFigure:
    """The highest rate over square products of several sizes: 2 n^3 / t."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    best, best_size = 0.0, 0
    for size in sizes:
        duration = _median_s(_product(device, _PRECISIONS[precision], size), device, seconds)
        best, best_size = max((best, best_size), (2 * size**3 / duration, size))
        if duration > _SLOW_S:
            break
    shape = dict.fromkeys("mnk", best_size)
    return figure("gemm", best, _subject(device), precision=precision, device=device.type, **shape)


def _product(device: torch.device, dtype: torch.dtype, size: int) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    if dtype is torch.float8_e4m3fn:
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(left, right.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    out = torch.empty(size, size, device=device, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _triad_figure(
    device: torch.device, size: int, seconds: float, quantity: str = "device_memory_bandwidth"
) -> BenchFigure:
    """STREAM's triad a = b + s * c: two arrays read, one written."""
    a, b, c = (torch.ones(size // 4, device=device) for _ in range(3))
    duration = _median_s(lambda: torch.add(b, c, alpha=3.0, out=a), device, seconds)
    return figure(quantity, 3 * size / duration, _subject(device), operation="triad", bytes=size)


def _link_figures(device: torch.device, size: int, seconds: float) -> list[BenchFigure]:
    """Copies between pinned host memory and the device, one direction at a time."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    copies = {
        "host to device": lambda: there.copy_(host, non_blocking=True),
        "device to host": lambda: host.copy_(there, non_blocking=True),
    }
    return [
        figure("host_link", size / _median_s(copy, device, seconds), _subject(device), direction=name, bytes=size)
        for name, copy in copies.items()
    ]


def _median_s(action: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median duration of an action over about `seconds`, after one call that is not counted."""

    def timed() -> float:
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    durations = [timed()]
    while sum(durations) < seconds and len(durations) < 1000:
        durations.append(timed())
    return statistics.median(durations[1:] or durations)


if __name__ == "__main__":
    main(*sys.argv[1:])
