"""Time of a step by part: marks on the device's clock, read once per logging interval, so that no step waits for them.

Tensor, context and expert parallelism communicate inside forward and backward through functional collectives, which all
end in `wait_tensor`; pipelines end in `_wait_batch_p2p`. `note_waits` puts both on a timeline. Communication that
overlaps with compute does not count as a wait. Waits inside compiled blocks are not seen, and count as compute.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional_collectives

from trainworks.record.events.training import CompiledEvent

Mark = float | torch.cuda.Event
"""A moment: of the host on a CPU, of the current stream on CUDA."""


class Timeline:
    """Makes marks, and collects the intervals in which the current step waited for other ranks."""

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

    __slots__ = (
        "begin",
        "callbacks_s",
        "called",
        "data",
        "end",
        "evaluated",
        "free",
        "gradients",
        "optimizer",
        "waits",
    )

    def __init__(self, begin: Mark) -> None:
        self.begin = begin
        self.data = self.gradients = self.optimizer = self.end = begin
        self.free: Mark | None = None
        """When the weights may change; None where nothing has to be awaited."""
        self.evaluated: Mark | None = None
        """End of the evaluation; None for a step without one."""
        self.called: Mark | None = None
        """When the user's callbacks have returned; None without any."""
        self.waits: list[tuple[Mark, Mark]] = []
        self.callbacks_s: list[float] = []
        """Time of each of the user's callbacks, on the host."""

    def durations(self) -> list[float]:
        """Seconds of [step, data, compute, communication, optimizer, checkpoint, evaluation], once CUDA work has ended.

        What a step spends in callbacks, and in logging between its end and the next step's begin, is not in it.
        """
        free = self.gradients if self.free is None else self.free
        evaluated = self.optimizer if self.evaluated is None else self.evaluated
        called = evaluated if self.called is None else self.called
        communication = sum(_elapsed_s(start, end) for start, end in self.waits)
        return [
            _elapsed_s(self.begin, self.end) - _elapsed_s(evaluated, called),
            _elapsed_s(self.begin, self.data),
            _elapsed_s(self.data, self.gradients) - communication,
            communication,
            _elapsed_s(free, self.optimizer),
            _elapsed_s(self.gradients, free) + _elapsed_s(called, self.end),
            _elapsed_s(self.optimizer, evaluated),
        ]


def _elapsed_s(start: Mark, end: Mark) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return start.elapsed_time(end) / 1e3


def _cuda_mark() -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


Waited = TypeVar("Waited")
Result = TypeVar("Result")

_timelines: list[Timeline] = []
"""Timeline of the newest model, once there is one."""
_patched: set[tuple[ModuleType, str]] = set()


def note_waits(timeline: Timeline, *, pipelined: bool) -> None:
    """Record the waits of this process in functional collectives and pipelines on `timeline`, from now on.

    (torch 2.13 has no hook for either. Both functions are looked up in their modules when they are called.)
    """
    _patch(functional_collectives, "wait_tensor")
    if pipelined:
        from torch.distributed.pipelining import schedules  # noqa: PLC0415  # half a second that few runs need

        _patch(schedules, "_wait_batch_p2p")
    _timelines[:] = [timeline]


def _patch(module: ModuleType, name: str) -> None:
    if (module, name) not in _patched:
        _patched.add((module, name))
        setattr(module, name, _noted(getattr(module, name)))


def _noted(wait: Callable[[Waited], Result]) -> Callable[[Waited], Result]:
    @functools.wraps(wait)
    def wait_and_note(what: Waited) -> Result:
        if torch.compiler.is_compiling():
            return wait(what)
        start = _timelines[0].mark()
        result = wait(what)
        _timelines[0].waited_since(start)
        return result

    return wait_and_note


def all_reduce(tensor: Tensor, group: dist.ProcessGroup, op: str = "sum") -> None:
    """All-reduce in place, by `sum` or `max`, recorded as a wait."""
    reduced = torch.ops._c10d_functional.all_reduce_(tensor, op, group.group_name)
    functional_collectives.wait_tensor(reduced)


_REPEATS = 3


def compile_gain(step: Callable[[], None], device: torch.device, *, first_s: float) -> CompiledEvent:
    """Times of one forward and backward, the fastest of a few; all ranks call it together, after the first one."""
    compiled_s = _fastest(step, device)
    with torch.compiler.set_stance("force_eager"):
        step()
        eager_s = _fastest(step, device)
    compile_s = max(0.0, first_s - compiled_s)
    return CompiledEvent(kind="compiled", compile_s=compile_s, compiled_s=compiled_s, eager_s=eager_s)


def _fastest(step: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times)
