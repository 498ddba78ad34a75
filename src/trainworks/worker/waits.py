"""How long a rank waits for others inside forward and backward, where no code of ours stands around the exchange.

Tensor, context and expert parallelism exchange through functional collectives, which all end in one function,
`wait_tensor`; so do the sends and receives of pipelines. Both are noted on a timeline: what is overlapped with compute
is not waited for, and does not count. Waits inside compiled blocks are not seen, and count as compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional_collectives

from trainworks.worker.timing import Timeline

__all__ = ["all_reduce", "note_waits"]

Waited = TypeVar("Waited")
Result = TypeVar("Result")

_timelines: list[Timeline] = []
"""The one of the newest model, once there is one."""
_patched: set[tuple[ModuleType, str]] = set()


def note_waits(timeline: Timeline, *, pipelined: bool) -> None:
    """From here on, what this process waits for in functional collectives and pipelines is noted on `timeline`.

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
    """In place, and noted like all others.

    Args:
        tensor: of this rank; afterwards the same on all.
        group: who takes part.
        op: `sum` or `max`.
    """
    reduced = torch.ops._c10d_functional.all_reduce_(tensor, op, group.group_name)
    functional_collectives.wait_tensor(reduced)
