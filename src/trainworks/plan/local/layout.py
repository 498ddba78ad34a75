"""Which layout and which micro-batch, where the run file leaves it open. A first rule; the search comes later."""

from __future__ import annotations

from trainworks.errors import EnvironmentProblem, LayoutError
from trainworks.plan.local.memory import predict_memory
from trainworks.record.resolved import ModelShape
from trainworks.spec.layout import Layout, ResolvedLayout, divisors, resolve_layout
from trainworks.spec.run_file import Workload
from trainworks.units import format_bytes

__all__ = ["choose_layout"]

_USABLE_SHARE = 0.8
"""Of a rank's memory; the rest is the system's and the allocator's."""
_ENOUGH_TOKENS = 8192
"""Per micro-batch: larger matrix products are no faster."""

_TRAINED_OPTIONS = {
    "zero": 3,
    "sequence_parallel": False,
    "interleave": 1,
    "zero_bubble": False,
    "recompute": "none",
    "offload_activations": False,
    "offload_optimizer": False,
}
"""Options of a layout and the only value that the worker can train with."""


def choose_layout(
    workload: Workload,
    shape: ModelShape,
    wanted: Layout | None,
    *,
    world_size: int,
    memory_per_rank_bytes: int,
    baseline_bytes: int,
) -> ResolvedLayout:
    """Replicas if the model fits on every rank, else shards; the largest micro-batch that fits.

    Raises:
        LayoutError: the wanted degrees do not multiply to the world size, do not divide the batch, or name an axis
            that this version cannot train with.
        EnvironmentProblem: nothing fits; the message says what is short.
    """
    options = [_trainable(wanted)] if wanted else _automatic(world_size)
    smallest = None
    for degrees in options:
        for layout in _micro_batches(degrees, workload, world_size):
            memory = predict_memory(
                shape,
                layout,
                sequence_length=workload.data.sequence_length,
                precision=workload.precision,
                baseline_bytes=baseline_bytes,
            )
            if memory.total_bytes <= _USABLE_SHARE * memory_per_rank_bytes:
                return layout
            smallest = min(smallest or memory.total_bytes, memory.total_bytes)
    raise EnvironmentProblem(
        f"the model does not fit: {format_bytes(smallest or 0)} per rank at least, "
        f"{format_bytes(_USABLE_SHARE * memory_per_rank_bytes)} usable",
        hint="make the model or the sequence shorter, shard it over more ranks, or start fewer ranks per node",
    )


def _written(value: object) -> str:
    """As YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trainable(wanted: Layout) -> Layout:
    for axis in ("tp", "pp", "cp", "ep"):
        if getattr(wanted, axis) > 1:
            raise LayoutError(
                f"{axis} ({getattr(wanted, axis)}) cannot be trained by this version",
                field=axis,
                hint="use `dp_shard` to spread the model and `dp_replicate` to copy it",
            )
    for option, trained in _TRAINED_OPTIONS.items():
        if getattr(wanted, option) not in (trained, "auto"):
            raise LayoutError(
                f"{option} ({_written(getattr(wanted, option))}) cannot be trained by this version",
                field=option,
                hint=f"leave it out, or set `{option}: {_written(trained)}`",
            )
    return wanted


def _automatic(world_size: int) -> list[Layout]:
    if world_size == 1:
        return [Layout()]
    return [Layout(dp_replicate=world_size), Layout(dp_shard=world_size)]


def _micro_batches(degrees: Layout, workload: Workload, world_size: int) -> list[ResolvedLayout]:
    """The layout with its micro-batch, or with every possible one, largest first up to enough tokens."""
    if degrees.micro_batch != "auto":
        return [_resolved(degrees, workload, world_size, degrees.micro_batch)]
    smallest = _resolved(degrees, workload, world_size, 1)
    per_rank = workload.global_batch // smallest.dp
    enough = max(1, _ENOUGH_TOKENS // workload.data.sequence_length)
    sizes = [size for size in divisors(per_rank) if size <= enough]
    return [_resolved(degrees, workload, world_size, size) for size in reversed(sizes)]


def _resolved(degrees: Layout, workload: Workload, world_size: int, micro_batch: int) -> ResolvedLayout:
    return resolve_layout(degrees, world_size=world_size, global_batch=workload.global_batch, micro_batch=micro_batch)
