"""Measure the speed-up of `torch.compile` on the model of this run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_REPEATS = 3


def compile_gain(step: Callable[[], None], device: torch.device, *, first_s: float) -> dict[str, float]:
    """Times of one forward and backward, the fastest of a few; all ranks call it together.

    Args:
        step: one forward and backward that leaves the model as it was; it has run once.
        device: of this rank.
        first_s: what the first one took, compilation included.

    Returns:
        Seconds: `compiled_s` and `eager_s` of one, and `compile_s` that compiling took.
    """
    compiled_s = _fastest(step, device)
    with torch.compiler.set_stance("force_eager"):
        step()
        eager_s = _fastest(step, device)
    return {"compiled_s": compiled_s, "eager_s": eager_s, "compile_s": max(0.0, first_s - compiled_s)}


def _fastest(step: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times)
