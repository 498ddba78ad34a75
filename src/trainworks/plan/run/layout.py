"""Choice of the layout and micro-batch that a run file leaves open: the search, over what the worker can train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainworks.config.layout import Layout, divisors, resolve_layout
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.plan.degrees import degrees_of, layouts_of, planned_layout, resolved_of
from trainworks.plan.layouts import Layouts, Recompute, Values
from trainworks.plan.run.pricing import RunJob
from trainworks.plan.run.trainable import check_trainable
from trainworks.plan.search import AnySpace, fits, limit_bytes, search_first, spaces
from trainworks.plan.space import ListedSpace
from trainworks.record.resolved import PlannedLayout
from trainworks.units import format_bytes

_NAMES = {
    "baseline_bytes": "the program itself",
    "optimizer_bytes": "optimizer state",
    "working_bytes": "of the block being computed",
    "allocator_bytes": "the allocator's",
    "checkpoint_bytes": "the copy for a checkpoint",
}
_TABLE_LENGTH = 8


def choose_layouts(job: RunJob, written: Layout | None, *, keep: int = _TABLE_LENGTH) -> tuple[PlannedLayout, ...]:
    """The best layouts in the order of preference (`plan.search`); without a written one all degrees are open.

    A written layout decides its degrees, of which a missing one is 1, and its options; its micro-batch, recomputation
    and offloading stay open where they are `auto`.

    Raises:
        LayoutError: the given degrees do not multiply to the world size, do not divide the batch, or cannot cut the
            model.
        EnvironmentProblem: nothing fits; the message says what is short.
    """
    result = search_first(_spaces(job, written), keep=keep)
    if not result.fitting:
        raise _too_large(job, result.nearest)
    used = result.memories.device_bytes()
    return tuple(
        PlannedLayout(
            layout=resolved_of(planned_layout(result.layouts, index), written),
            step_s=float(result.seconds[index]),
            memory_bytes=round(float(used[index])),
        )
        for index in result.families[:keep].tolist()
    )


def fastest(compared: Sequence[PlannedLayout]) -> PlannedLayout:
    """The fastest of those that were measured; the first where none was."""
    measured = [one for one in compared if one.measured_s is not None]
    return min(measured, key=lambda one: one.measured_s or 0.0) if measured else compared[0]


def largest_micro_batch(job: RunJob, written: Layout | None) -> int:
    """Sequences of the largest micro-batch that fits with any layout: what a calibration measures.

    Raises:
        LayoutError: as for `choose_layouts`.
        EnvironmentProblem: nothing fits.
    """
    nearest: list[tuple[float, Layouts]] = []
    for space in _spaces(job, written):
        largest = 0.0
        for layouts in filter(len, space.layouts(lambda reason, mesh: None)):
            memories = job.memories(layouts)
            largest = max(largest, *layouts.micro_batch[fits(memories, job)].tolist(), 0.0)
            least = int(memories.total_bytes.argmin())
            nearest.append((float(memories.total_bytes[least]), layouts.take(slice(least, least + 1))))
        if largest:
            return round(largest)
    raise _too_large(job, min(nearest, key=lambda one: one[0])[1] if nearest else None)


def _spaces(job: RunJob, written: Layout | None) -> Sequence[AnySpace]:
    """Everything that the run file leaves open; offloading, which a CPU has no use for, where nothing else fits."""
    on_cpu = job.device == "cpu"
    batch = job.workload.global_batch
    ranks, support = job.cluster.num_accelerators, job.support
    if written is None:
        decided = {"offload": 0, "offload_optimizer": 0} if on_cpu else {}
        return spaces(job, batch, decided | ({} if support.splits_sequence else {"sequence_parallel": 0}))
    size = 1 if written.micro_batch == "auto" else written.micro_batch
    layout = resolve_layout(written, world_size=ranks, global_batch=batch, micro_batch=size, support=support)
    check_trainable(layout, job.workload, job.shape, job.support)
    sizes = [size for size in divisors(batch // layout.dp) if size <= job.largest_micro_batch]
    is_open = {field for field in _OPEN if getattr(written, field) == "auto"}
    choices: list[tuple[str, list[int]]] = [("micro_batch", sizes), ("recompute", [Recompute.NONE, Recompute.FULL])]
    offloads: list[tuple[str, list[int]]] = [("offload_activations", [0, 1]), ("offload_optimizer", [0, 1])]
    ladder = [choices] if on_cpu else [choices, choices + offloads]
    return [
        ListedSpace(
            job, _filled(degrees_of(layout), [(_OPEN[name], values) for name, values in step if name in is_open], batch)
        )
        for step in ladder
    ]


_OPEN = {
    "micro_batch": "micro_batch",
    "recompute": "recompute",
    "offload_activations": "offload",
    "offload_optimizer": "offload_optimizer",
}
"""Options of a written layout that the search decides where they are `auto`, and their names in `Layouts`."""


def _filled(decided: Mapping[str, int], choices: Sequence[tuple[str, list[int]]], global_batch: int) -> Layouts:
    grids = np.meshgrid(*(np.array(values, np.float64) for _, values in choices), indexing="ij")
    named: dict[str, Values] = {name: grid.ravel() for (name, _), grid in zip(choices, grids, strict=True)}
    return Layouts.of(global_batch=global_batch, **{**decided, **named})


def _too_large(job: RunJob, nearest: Layouts | None) -> TrainworksError:
    """The layout that needs least, and what it lacks."""
    ranks, batch = job.cluster.num_accelerators, job.workload.global_batch
    if nearest is None or not len(nearest):
        with_replicas = resolve_layout(Layout(dp_replicate=ranks), world_size=ranks, global_batch=batch, micro_batch=1)
        nearest = layouts_of([with_replicas])  # or the reason why the batch cannot be shared
    memory = job.memories(nearest).terms()
    usable = limit_bytes(job)
    terms = sorted(memory.model_dump().items(), key=lambda term: -term[1])[:2]
    largest = [f"{format_bytes(value)} are {_NAMES.get(name, name.removesuffix('_bytes'))}" for name, value in terms]
    return EnvironmentProblem(
        f"the model does not fit: {format_bytes(memory.total_bytes)} per rank at least, "
        f"{format_bytes(usable)} usable; {' and '.join(largest)}",
        hint="make the model or the sequence shorter, shard it over more ranks, or start fewer ranks per node",
    )
