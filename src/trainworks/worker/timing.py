"""Where a step's time goes, without stopping it: marks on the device's own clock, read once per logging interval."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

__all__ = ["Mark", "StepMarks", "Timeline"]

Mark = float | torch.cuda.Event
"""A moment: of the host on a CPU, of the current stream on CUDA."""


class Timeline:
    """Makes marks, and collects the stretches in which the current step waited for other ranks."""

    def __init__(self, device: torch.device) -> None:
        self.mark: Callable[[], Mark] = _cuda_mark if device.type == "cuda" else time.perf_counter
        self._waits: list[tuple[Mark, Mark]] = []

    def waited_since(self, start: Mark | None) -> None:
        """The current step waited from `start` until now; None means that it did not."""
        if start is not None:
            self._waits.append((start, self.mark()))

    def take_waits(self) -> list[tuple[Mark, Mark]]:
        """The waits since the last call."""
        waits, self._waits = self._waits, []
        return waits


class StepMarks:
    """The marks of one step: begin, data at hand, gradients done, weights free to change, optimizer done, end."""

    __slots__ = ("begin", "data", "end", "free", "gradients", "optimizer", "waits")

    def __init__(self, begin: Mark) -> None:
        self.begin = begin
        self.data = self.gradients = self.optimizer = self.end = begin
        self.free: Mark | None = None
        """When the weights may change; None where nothing has to be awaited."""
        self.waits: list[tuple[Mark, Mark]] = []

    def durations(self) -> list[float]:
        """Seconds of [step, data, compute, communication, optimizer, checkpoint]; CUDA work must have ended.

        What a step spends between its end and the next step's begin (logging) is not in it.
        """
        free = self.gradients if self.free is None else self.free
        communication = sum(_between(start, end) for start, end in self.waits)
        return [
            _between(self.begin, self.end),
            _between(self.begin, self.data),
            _between(self.data, self.gradients) - communication,
            communication,
            _between(free, self.optimizer),
            _between(self.gradients, free) + _between(self.optimizer, self.end),
        ]


def _between(start: Mark, end: Mark) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return start.elapsed_time(end) / 1e3


def _cuda_mark() -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
