"""Every legal layout of a job on so many accelerators: counted, priced, and the best of them kept.

A mesh (tp, pp, cp, dp, ep) that cannot run is counted with its reason; the options inside a legal mesh (sharding,
micro-batch, recomputation, schedule, offload) are expanded to arrays and priced at once, memory first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainworks.config.layout import divisors
from trainworks.errors import UsageError
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.conv_net import AnyJob, ConvJob
from trainworks.plan.layouts import Array, Layouts, Recompute, Values
from trainworks.plan.memory import Memories
from trainworks.plan.step_time import StepTimes
from trainworks.units import format_gib

__all__ = [
    "LARGEST_INTERLEAVE",
    "LARGEST_MICRO_BATCH",
    "MAX_LAYOUTS",
    "Fixed",
    "Rejection",
    "SearchResult",
    "fits",
    "limit_bytes",
    "meshes",
    "options",
    "search",
]

Fixed = Mapping[str, int]
"""Fields of `Layouts` that a person has decided."""

_CHUNK = 16384
LARGEST_MICRO_BATCH = 64
_LARGEST_IMAGE_BATCH = 512
LARGEST_INTERLEAVE = 12
MAX_LAYOUTS = 10_000_000
"""Layouts that one search prices: less than half a minute of one core."""
_USABLE_SHARE, _PROGRAM_SHARE = 0.96, 0.98
"""Usable share of the nominal memory, and of the memory available to a program: the rest allows for
fragmentation that differs between runs."""


@dataclass(slots=True)
class Rejection:
    """Layouts, or whole meshes, that were turned down for one reason."""

    reason: str
    count: int = 0
    unit: str = "meshes"
    nearest: str = ""
    """The one of them that came nearest to being accepted."""
    excess: float = np.inf
    """Relative excess of that layout."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search, with layouts sorted by step time."""

    evaluated: int
    fitting: int
    rejections: list[Rejection]
    layouts: Layouts
    times: StepTimes
    memories: Memories
    front: NDArray[np.intp]
    """Positions of the layouts that nothing beats in both time and memory."""


@dataclass(slots=True)
class _Kept:
    """The best so far, and the counts."""

    keep: int
    evaluated: int = 0
    fitting: int = 0
    rejections: dict[str, Rejection] = field(default_factory=dict)
    layouts: list[Layouts] = field(default_factory=list)
    seconds: list[Array] = field(default_factory=list)
    used: list[Array] = field(default_factory=list)

    def reject(self, reason: str, count: int, *, unit: str, nearest: str, excess: float) -> None:
        known = self.rejections.setdefault(reason, Rejection(reason, unit=unit))
        known.count += count
        if excess < known.excess:
            known.nearest, known.excess = nearest, excess

    def add(self, layouts: Layouts, seconds: Array, used: Array) -> None:
        self.layouts.append(layouts)
        self.seconds.append(seconds)
        self.used.append(used)
        if sum(map(len, self.seconds)) > 16 * self.keep + 4096:
            layouts, seconds, used = self.best()
            self.layouts, self.seconds, self.used = [layouts], [seconds], [used]

    def best(self) -> tuple[Layouts, Array, Array]:
        """Layouts, seconds and bytes of what is among the fastest or on the front of time and memory."""
        if not self.layouts:
            return Layouts.of(global_batch=1).take(slice(0)), np.zeros(0), np.zeros(0)
        layouts, seconds, used = Layouts.concatenate(self.layouts), *map(np.concatenate, (self.seconds, self.used))
        fastest = np.argsort(seconds, kind="stable")[: self.keep]
        chosen = np.union1d(fastest, pareto_front(seconds, used))
        return layouts.take(chosen), seconds[chosen], used[chosen]


def fits(memories: Memories, job: AnyJob, coefficients: Coefficients = COEFFICIENTS) -> NDArray[np.bool_]:
    """True if a layout's reserved memory leaves headroom on the accelerator; shape [n]."""
    return memories.device_bytes(coefficients) <= limit_bytes(job)


def limit_bytes(job: AnyJob) -> float:
    """Memory of one accelerator that a plan may use."""
    accelerator = job.cluster.accelerator
    nominal = _USABLE_SHARE * accelerator.memory_bytes
    return nominal if accelerator.usable_bytes is None else min(nominal, _PROGRAM_SHARE * accelerator.usable_bytes)


def pareto_front(seconds: Array, used: Array) -> NDArray[np.intp]:
    """Positions of the points that no other point beats in one and equals in the other, fastest first.

    >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([9.0, 9.0, 1.0])).tolist()
    [0, 2]
    """
    order = np.lexsort((used, seconds))
    least = np.minimum.accumulate(used[order])
    first = np.concatenate([[True], used[order][1:] < least[:-1]])[: len(order)]
    front: NDArray[np.intp] = order[first]
    return front


def search(
    job: AnyJob,
    *,
    world_size: int,
    global_batch: int,
    fixed: Fixed | None = None,
    keep: int = 10,
    coefficients: Coefficients = COEFFICIENTS,
) -> SearchResult:
    """Predict and rank every legal layout.

    Args:
        job: model, batch, software and cluster.
        world_size: accelerators to use.
        global_batch: sequences per step.
        fixed: decided degrees and options; the rest is searched.
        keep: fastest layouts to return, in addition to the front of time and memory.
        coefficients: of the model of time and memory.

    Raises:
        UsageError: the accelerator cannot compute in the job's precision, or there are more than `MAX_LAYOUTS` layouts.
    """
    fixed = fixed or {}
    results = _Kept(keep)
    legal = _within_limit(job, meshes(job, world_size, global_batch, fixed, results), global_batch, fixed)
    filled = (options(job, mesh, global_batch, fixed) for mesh in legal)
    for layouts in _in_chunks(filled):
        _price(job, layouts, results, coefficients)
    layouts, seconds, used = results.best()
    order = np.argsort(seconds, kind="stable")
    layouts = layouts.take(order)
    return SearchResult(
        evaluated=results.evaluated,
        fitting=results.fitting,
        rejections=sorted(results.rejections.values(), key=lambda r: -r.count),
        layouts=layouts,
        times=job.step_times(layouts, coefficients),
        memories=job.memories(layouts),
        front=pareto_front(seconds[order], used[order]),
    )


def _in_chunks(parts: Iterable[Layouts]) -> Iterator[Layouts]:
    """The same layouts in pieces of about a chunk: a mesh alone has too few of them, or too many."""
    waiting: list[Layouts] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _CHUNK:
            yield from Layouts.concatenate(waiting).chunks(_CHUNK)
            waiting = []
    if waiting:
        yield from Layouts.concatenate(waiting).chunks(_CHUNK)


def _price(job: AnyJob, layouts: Layouts, results: _Kept, coefficients: Coefficients) -> None:
    memories = job.memories(layouts)
    used = memories.device_bytes(coefficients)
    good = fits(memories, job, coefficients)
    results.evaluated += len(layouts)
    if not good.all():
        _reject_large(layouts.take(~good), memories, used[~good], ~good, job, results)
    if good.any():
        results.fitting += int(good.sum())
        chosen = layouts.take(good)
        results.add(chosen, job.step_times(chosen, coefficients).total_s, used[good])


def _reject_large(
    layouts: Layouts, memories: Memories, used: Array, large: NDArray[np.bool_], job: AnyJob, results: _Kept
) -> None:
    """One reason per remedy: by what takes most of the memory."""
    parts = {
        "states": memories.weights_bytes + memories.gradients_bytes + memories.optimizer_bytes,
        "activations": memories.activations_bytes + memories.working_bytes,
        "logits": memories.logits_bytes,
    }
    largest = np.stack([part[large] for part in parts.values()]).argmax(axis=0)
    capacity = job.cluster.accelerator.memory_bytes
    for index, name in enumerate(parts):
        mine = np.flatnonzero(largest == index)
        if len(mine):
            nearest = mine[used[mine].argmin()]
            stage = int(memories.stage[large][nearest])
            results.reject(
                f"too large for {format_gib(capacity)}, most of it {name}",
                len(mine),
                unit="layouts",
                nearest=f"{format_gib(used[nearest])} on stage {stage} with {_named(layouts, int(nearest))}",
                excess=float(used[nearest]),
            )


def _named(layouts: Layouts, index: int) -> str:
    row = layouts.row(index)
    named = [f"{name} {row[name]}" for name in ("dp", "zero", "tp", "pp", "cp", "micro_batch")]
    named += ["recompute full"] if row["recompute"] == Recompute.FULL else []
    return ", ".join(named + (["offload"] if row["offload"] or row["offload_optimizer"] else []))


def meshes(job: AnyJob, world_size: int, global_batch: int, fixed: Fixed, results: _Kept) -> Iterator[dict[str, int]]:
    """Every factorisation of the world size into tp, pp, cp, dp, and ep beside it, that model and batch allow."""

    def allowed(name: str, values: list[int]) -> list[int]:
        return [value for value in values if value == fixed.get(name, value)]

    for tp, pp, cp in _splits(world_size, allowed):
        dp = world_size // (tp * pp * cp)
        if dp != fixed.get("dp", dp):
            continue
        if reason := _illegal(job, global_batch, tp=tp, pp=pp, cp=cp, dp=dp):
            results.reject(reason, 1, unit="meshes", nearest=f"tp {tp}, pp {pp}, cp {cp}, dp {dp}", excess=tp * pp * cp)
            continue
        routed = 0 if isinstance(job, ConvJob) else job.shape.experts
        experts = divisors(np.gcd(routed, dp * cp * tp)) if routed else [1]
        for ep in allowed("ep", [int(value) for value in experts]):
            yield {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep}


def _splits(world_size: int, allowed: Callable[[str, list[int]], list[int]]) -> Iterator[tuple[int, int, int]]:
    """Every tp, pp and cp whose product divides the world size."""
    factors = divisors(world_size)
    for tp in allowed("tp", factors):
        if world_size % tp:
            continue
        for pp in allowed("pp", [pp for pp in factors if world_size // tp % pp == 0]):
            rest = world_size // tp // pp
            yield from ((tp, pp, cp) for cp in allowed("cp", [cp for cp in factors if rest % cp == 0]))


def _within_limit(
    job: AnyJob, degrees: Iterable[dict[str, int]], global_batch: int, fixed: Fixed
) -> list[dict[str, int]]:
    """The meshes, if pricing all of their layouts is a bounded amount of work.

    Raises:
        UsageError: they have more than `MAX_LAYOUTS` layouts.
    """
    legal, count = [], 0
    for mesh in degrees:
        legal.append(mesh)
        choices, sharding, schedules = _choices(job, mesh, global_batch, fixed)
        count += math.prod(map(len, choices.values())) * len(sharding) * len(schedules)
        if count > MAX_LAYOUTS:
            raise UsageError(
                f"{job.cluster.num_accelerators:,} accelerators, {global_batch:,} samples and this model have more "
                f"than {MAX_LAYOUTS:,} layouts, the most that one plan compares",
                hint="fix a degree, such as `layout: {tp: 8}`, or take a batch with fewer divisors",
            )
    return legal


def _illegal(job: AnyJob, global_batch: int, *, tp: int, pp: int, cp: int, dp: int) -> str | None:
    if isinstance(job, ConvJob):
        return "a convolutional network is split over dp alone" if tp * pp * cp > 1 else _illegal_dp(global_batch, dp)
    shape, sequence_length = job.shape, job.sequence_length
    if shape.heads % tp or (shape.feed_forward and shape.feed_forward % tp):
        return f"tp does not divide {shape.heads} heads and {shape.feed_forward} columns of the MLP"
    if pp > shape.layers:
        return f"more stages than the {shape.layers} layers"
    if cp > 1 and not shape.causal:
        return "context parallelism is for causal attention"
    if cp > 1 and sequence_length % (2 * cp):
        return f"2 * cp does not divide {sequence_length} tokens"
    return _illegal_dp(global_batch, dp)


def _illegal_dp(global_batch: int, dp: int) -> str | None:
    return f"dp does not divide {global_batch} sequences" if global_batch % dp else None


def options(job: AnyJob, mesh: Mapping[str, int], global_batch: int, fixed: Fixed) -> Layouts:
    """Every way to fill a mesh: sharding, micro-batch, schedule, recomputation, offload."""
    choices, sharding, schedules = _choices(job, mesh, global_batch, fixed)
    values = tuple((name, tuple(each)) for name, each in choices.items())
    return _filled(global_batch, tuple(mesh.items()), values, tuple(sharding), tuple(schedules))


@lru_cache(maxsize=1024)
def _filled(
    global_batch: int,
    mesh: tuple[tuple[str, int], ...],
    choices: tuple[tuple[str, tuple[int, ...]], ...],
    sharding: tuple[tuple[int, int], ...],
    schedules: tuple[tuple[int, int], ...],
) -> Layouts:
    """Every combination in a mesh; clusters that differ in their nodes alone share it."""
    axes = [np.array(values, dtype=np.float64) for _, values in choices]
    grids = np.meshgrid(np.arange(len(sharding)), np.arange(len(schedules)), *axes, indexing="ij")
    flat: list[Array] = [grid.ravel().astype(np.float64) for grid in grids]
    shards = np.array(sharding, dtype=np.float64).reshape(-1, 2)[flat[0].astype(np.intp)]
    plans = np.array(schedules, dtype=np.float64).reshape(-1, 2)[flat[1].astype(np.intp)]
    named: dict[str, Values] = dict(zip((name for name, _ in choices), flat[2:], strict=True))
    degrees = dict(mesh)
    layouts = Layouts.of(
        global_batch=global_batch,
        zero=shards[:, 0],
        dp_shard=shards[:, 1],
        interleave=plans[:, 0],
        zero_bubble=plans[:, 1],
        **named,
        **degrees,
    )
    # an interleaved schedule needs as many micro-batches as stages, in whole groups
    complete = (layouts.interleave == 1) | (layouts.accum % degrees["pp"] == 0)
    return layouts.take(complete)


_Pairs = list[tuple[int, int]]


def _choices(
    job: AnyJob, mesh: Mapping[str, int], global_batch: int, fixed: Fixed
) -> tuple[dict[str, list[int]], _Pairs, _Pairs]:
    """Choices in a mesh: values by field, pairs of (zero, dp_shard), pairs of (interleave, zero_bubble)."""
    tp, pp, cp, dp = mesh["tp"], mesh["pp"], mesh["cp"], mesh["dp"]
    per_rank = global_batch // dp
    images = isinstance(job, ConvJob) or bool(job.shape.patch_values)
    largest = _LARGEST_IMAGE_BATCH if images else LARGEST_MICRO_BATCH
    choices: dict[str, list[int]] = {
        "micro_batch": [size for size in range(1, largest + 1) if per_rank % size == 0],
        "recompute": [int(kind) for kind in _recomputations(job)],
        "sequence_parallel": [0, 1] if tp > 1 else [0],
        "offload": [0] if isinstance(job, ConvJob) else [0, 1],
        "offload_optimizer": [0] if isinstance(job, ConvJob) else [0, 1],
    }
    choices = {name: [v for v in values if v == fixed.get(name, v)] for name, values in choices.items()}
    sharding = [pair for pair in _sharding(dp * cp, dp, pp) if _agrees(pair, fixed, ("zero", "dp_shard"))]
    schedules = [
        pair
        for pair in _schedules(1 if isinstance(job, ConvJob) else job.shape.layers, pp)
        if _agrees(pair, fixed, ("interleave", "zero_bubble"))
    ]
    return choices, sharding, schedules


def _recomputations(job: AnyJob) -> list[Recompute]:
    """Fused attention keeps no scores: recomputing it alone saves nothing."""
    if isinstance(job, ConvJob):
        return [Recompute.NONE]
    return [Recompute.NONE, Recompute.FULL] if job.software.fused_attention else list(Recompute)


def _agrees(pair: tuple[int, int], fixed: Fixed, names: tuple[str, str]) -> bool:
    return all(value == fixed.get(name, value) for name, value in zip(names, pair, strict=True))


def _sharding(copies: int, dp: int, pp: int) -> list[tuple[int, int]]:
    """(zero, dp_shard): nothing shared; states over the whole group; weights over any divisor of it (HSDP).

    Zero 2 with a pipeline would scatter the gradients of every micro-batch: no framework offers it.
    """
    pairs = [(0, 1)]
    if copies > 1:
        pairs.append((1, dp))
        pairs += [(2, dp)] if pp == 1 else []
        pairs += [(3, size) for size in divisors(dp) if size > 1] or [(3, dp)]
    return pairs


def _schedules(layers: int, pp: int) -> list[tuple[int, int]]:
    """(interleave, zero_bubble)."""
    if pp == 1:
        return [(1, 0)]
    chunks = [v for v in divisors(max(1, layers // pp)) if v <= LARGEST_INTERLEAVE] if layers % pp == 0 else [1]
    return [(v, 0) for v in chunks] + [(1, 1)]
