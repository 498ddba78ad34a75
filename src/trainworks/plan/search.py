"""Price every layout of a space, memory first, and keep the best: the fastest, and of equally fast ones the plainest.

Predicted times of two layouts differ by less than their error where one is a few per cent faster. So a layout has to
save a share of the step for each thing that it does beyond plain data parallelism (`preferred_s`), and one that differs
from a better one in its schedule alone is not listed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trainworks.plan.degrees import planned_layout
from trainworks.plan.job import AnyJob, StepTimes
from trainworks.plan.layouts import Array, Layouts, Recompute
from trainworks.plan.memory import Memories
from trainworks.plan.parameters import stage_blocks
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.space import Fixed, ListedSpace, Space, fast_ranks
from trainworks.units import format_gib

_CHUNK = 16384
_LAYOUTS_OF_A_FAMILY = 64
"""Among so many times as many of the preferred layouts as families are wanted, that many are looked for first."""
_LIGHTENED, _NEAR = 256, 1.1
"""Layouts of a search that are tried with fewer layers recomputed, and how much slower than the fastest they may be
without recomputation."""
TIGHT_SHARE = 0.97
"""Share of the usable memory above which the memory outside the plan decides whether a layout fits. Assumed."""
_FAMILY = ("tp", "pp", "cp", "ep", "zero", "dp_shard", "micro_batch", "recompute", "offload", "offload_optimizer")
"""Fields that tell listed layouts apart; the number of chunks does not."""
_USABLE_SHARE, _PROGRAM_SHARE = 0.96, 0.98
"""Usable share of the nominal memory, and of the memory available to a program: the rest allows for
fragmentation that differs between runs. Assumed."""


AnySpace = Space | ListedSpace
"""Layouts to compare."""
_NOTHING: Layouts = Layouts.of(global_batch=1).take(slice(0))


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
    """Result of a search, with layouts in the order of preference."""

    evaluated: int
    fitting: int
    rejections: list[Rejection]
    layouts: Layouts
    seconds: Array
    """Predicted step times."""
    memories: Memories
    front: NDArray[np.intp]
    """Positions of the layouts that nothing beats in both time and memory."""
    families: NDArray[np.intp]
    """Positions of the best layout of each family: no two of them differ in their schedule alone."""
    nearest: Layouts
    """The layout that came nearest to fitting; empty where every one fits."""


@dataclass(slots=True)
class _Kept:
    job: AnyJob
    keep: int
    evaluated: int = 0
    fitting: int = 0
    rejections: dict[str, Rejection] = field(default_factory=dict)
    layouts: list[Layouts] = field(default_factory=list)
    seconds: list[Array] = field(default_factory=list)
    used: list[Array] = field(default_factory=list)
    nearest: Layouts = field(default_factory=lambda: _NOTHING)
    least_bytes: float = np.inf
    noted: Layouts = field(default_factory=lambda: _NOTHING)
    """Those that recompute and would be fastest if they did not."""
    noted_s: Array = field(default_factory=lambda: np.zeros(0))
    """Their step times without recomputation."""

    def note(self, layouts: Layouts, times: StepTimes) -> None:
        some = np.flatnonzero((layouts.recompute != Recompute.NONE) & (layouts.offload == 0))
        seconds = np.concatenate([self.noted_s, (times.total_s - times.recompute_s)[some]])
        first = np.argsort(seconds, kind="stable")[:_LIGHTENED]
        self.noted = Layouts.concatenate([self.noted, layouts.take(some)]).take(first)
        self.noted_s = seconds[first]

    def reject_mesh(self, reason: str, mesh: dict[str, int]) -> None:
        named = ", ".join(f"{name} {degree}" for name, degree in mesh.items())
        self.reject(reason, 1, unit="meshes", nearest=named, excess=mesh["tp"] * mesh["pp"] * mesh["cp"])

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
        """Layouts, seconds and bytes of the best families and of the front of time and memory, by preference."""
        if not self.layouts:
            return _NOTHING, np.zeros(0), np.zeros(0)
        layouts, seconds, used = Layouts.concatenate(self.layouts), *map(np.concatenate, (self.seconds, self.used))
        order = np.argsort(preferred_s(self.job, layouts, seconds, used), kind="stable")
        tried = _LAYOUTS_OF_A_FAMILY * self.keep
        while len(first := _families(layouts.take(order[:tried]))) < self.keep and tried < len(order):
            tried *= 8
        chosen = np.zeros(len(order), dtype=np.bool_)
        chosen[order[first[: self.keep]]] = chosen[pareto_front(seconds, used)] = True
        order = order[chosen[order]]
        return layouts.take(order), seconds[order], used[order]


def preferred_s(job: AnyJob, layouts: Layouts, seconds: Array, used: Array) -> Array:
    """Step time with a charge for complications, by which layouts are ranked.

        preferred = T (1 + w)^n
        n = [t > 1] + 2 log2(t / ranks of a fast link) + log2 p + log2 v + 2 [zero bubble] + [c > 1] (1 + log2 c)
            + [replicas beside shards] + [shards of a PyTorch-native program] + [offloaded activations]
            + [offloaded optimizer] + [a part of the layers recomputes] + 2 [tight memory]

    with t, p and c the tensor-, pipeline- and context-parallel degrees and v the chunks of a stage; t within the fast
    link costs no more than t = 2. Memory is tight within 3 % of its limit. The charge w is the job's `complication`.

    Args:
        job: whose cluster says how many ranks a fast link joins.
        layouts: shape [n].
        seconds: their predicted step times T, shape [n].
        used: their memory on the device in bytes, shape [n].
    """
    beyond = np.log2(np.maximum(1.0, layouts.tp / fast_ranks(job)))
    complications = (
        (layouts.tp > 1)
        + 2.0 * beyond
        + np.log2(layouts.pp * layouts.interleave)
        + 2.0 * layouts.zero_bubble
        + np.where(layouts.cp > 1, 1.0 + np.log2(layouts.cp), 0.0)
        + ((layouts.zero > 0) & (layouts.dp_shard > 1) & (layouts.dp_shard < layouts.dp))
        + (job.software.native & (layouts.zero > 0))
        + layouts.offload
        + layouts.offload_optimizer
        + (layouts.recompute_layers > 0)
        + 2.0 * (used > TIGHT_SHARE * limit_bytes(job))
    )
    charged: Array = seconds * (1.0 + job.complication) ** complications
    return charged


def _families(layouts: Layouts) -> NDArray[np.intp]:
    """Positions of the first layout of each family, ascending."""
    code = np.zeros(len(layouts))
    for name in _FAMILY:
        values, index = np.unique(getattr(layouts, name), return_inverse=True)
        code = code * len(values) + index
    first: NDArray[np.intp] = np.sort(np.unique(code, return_index=True)[1])
    return first


def fits(memories: Memories, job: AnyJob) -> NDArray[np.bool_]:
    """True if a layout's reserved memory leaves headroom on the accelerator; shape [n]."""
    return memories.device_bytes() <= limit_bytes(job)


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


def search_layouts(
    job: AnyJob, global_batch: int, fixed: Fixed, *, keep: int, only_usual: bool = False
) -> SearchResult:
    """Search the first of `spaces` that has a layout which fits; the usual one alone on request."""
    return search_first(spaces(job, global_batch, fixed)[: 1 if only_usual else None], keep=keep)


def search_first(wanted: Iterable[AnySpace], *, keep: int) -> SearchResult:
    """Search spaces in turn, until one has a layout that fits; the last result where none has."""
    for space in wanted:
        result = search(space, keep=keep)
        if result.fitting:
            break
    return result


def spaces(job: AnyJob, global_batch: int, fixed: Fixed) -> list[Space]:
    """Spaces to try in order: usual layouts, unusual ones, offloading. The next is tried only if nothing fits."""
    without = dict.fromkeys(("offload", "offload_optimizer"), 0) | dict(fixed)
    attempts = [(without, True), (without, False)] + ([(dict(fixed), False)] if without != fixed else [])
    ranks = job.cluster.num_accelerators
    return [Space(job, ranks, global_batch, decisions, usual=usual) for decisions, usual in attempts]


def any_fits(space: AnySpace) -> bool:
    """Whether any layout of a space fits, by its memory alone.

    Raises:
        UsageError: there are more than `MAX_LAYOUTS` layouts.
    """
    parts = _split_in_chunks(space.layouts(lambda reason, mesh: None))
    return any(fits(space.job.memories(part), space.job).any() for part in parts)


def search(space: AnySpace, *, keep: int = 10) -> SearchResult:
    """Predict and rank every layout of a space.

    Args:
        space: the job, and what is decided of its layout.
        keep: families of layouts to return, in addition to the front of time and memory.

    Raises:
        UsageError: the accelerator cannot compute in the job's precision, or there are more than `MAX_LAYOUTS` layouts.
    """
    job = space.job
    results = _Kept(job, keep)
    for layouts in _split_in_chunks(space.layouts(results.reject_mesh)):
        memories = job.memories(layouts)
        used, good = memories.device_bytes(), fits(memories, job)
        results.evaluated += len(layouts)
        if not good.all():
            _reject_large(layouts.take(~good), memories, used[~good], ~good, job, results)
        if good.any():
            results.fitting += int(good.sum())
            chosen = layouts.take(good)
            times = job.step_times(chosen)
            results.add(chosen, times.total_s, used[good])
            if space.can_recompute_less:
                results.note(chosen, times)
    if len(lighter := _less_recomputed(job, results)):
        results.add(lighter, job.step_times(lighter).total_s, job.memories(lighter).device_bytes())
    layouts, seconds, used = results.best()
    return SearchResult(
        evaluated=results.evaluated,
        fitting=results.fitting,
        rejections=sorted(results.rejections.values(), key=lambda r: -r.count),
        layouts=layouts,
        seconds=seconds,
        memories=job.memories(layouts),
        front=pareto_front(seconds, used),
        families=_families(layouts),
        nearest=results.nearest,
    )


def _less_recomputed(job: AnyJob, results: _Kept) -> Layouts:
    """The noted layouts with the fewest layers recomputed that leave memory to spare; those that need all or none, and
    slow ones, are left out. Memory falls with each layer. Megatron-LM counts them by chunk.
    """
    kept = results.noted.take(results.noted_s < _NEAR * min((times.min() for times in results.seconds), default=0.0))
    if isinstance(job.shape, ConvNetShape) or not len(kept):
        return _NOTHING
    limit = TIGHT_SHARE * limit_bytes(job)

    def fit(changed: Layouts) -> NDArray[np.bool_]:
        return job.memories(changed).device_bytes() <= limit

    kept = kept.take(fit(kept) & ~fit(replace(kept, recompute=np.zeros(len(kept)))))
    blocks, _ = stage_blocks(job.shape.layers, kept)
    at_once = kept.interleave if job.software.name and job.software.framework == "megatron" else np.ones(len(kept))
    low, high = np.zeros(len(kept)), blocks / at_once
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        good = fit(replace(kept, recompute_layers=np.maximum(1.0, middle) * at_once))
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    lighter = replace(kept, recompute_layers=high * at_once)
    return lighter.take(lighter.recompute_layers < blocks)


def _split_in_chunks(parts: Iterable[Layouts]) -> Iterator[Layouts]:
    """The same layouts in pieces of about a chunk: a mesh alone has too few of them, or too many."""
    waiting: list[Layouts] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _CHUNK:
            yield from Layouts.concatenate(waiting).chunks(_CHUNK)
            waiting = []
    if waiting:
        yield from Layouts.concatenate(waiting).chunks(_CHUNK)


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
    least = int(used.argmin())
    if used[least] < results.least_bytes:
        results.nearest, results.least_bytes = layouts.take(slice(least, least + 1)), float(used[least])
    capacity = job.cluster.accelerator.memory_bytes
    for index, name in enumerate(parts):
        mine = np.flatnonzero(largest == index)
        if len(mine):
            nearest = mine[used[mine].argmin()]
            stage, layout = int(memories.stage[large][nearest]), planned_layout(layouts, int(nearest))
            results.reject(
                f"too large for {format_gib(capacity)}, most of it {name}",
                len(mine),
                unit="layouts",
                nearest=f"{format_gib(used[nearest])} on stage {stage} with {layout.describe()}",
                excess=float(used[nearest]),
            )
