"""The layouts of a job on so many accelerators: legal meshes, and the options inside each of them.

A mesh is (tp, pp, cp, dp, ep); one that cannot run is reported with its reason. The usual space leaves out what costs
more trouble than it saves: tensor parallelism beyond a node, context parallelism of short sequences, replicas of less
than a node, zero-bubble schedules. A decision of the user opens what it names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from trainworks.config.layout import divisors
from trainworks.errors import UsageError
from trainworks.plan.activations import recomputes_modules
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Layouts, Recompute, Values
from trainworks.plan.parameters import chunk_counts
from trainworks.plan.shapes.conv_net import ConvNetShape

Fixed = Mapping[str, int]
"""Fields of `Layouts` that a person has decided."""

_Mesh = dict[str, int]
_Pairs = tuple[tuple[int, int], ...]
_Reject = Callable[[str, _Mesh], None]

MAX_LAYOUTS = 10_000_000
"""Layouts that one search prices: less than half a minute of one core."""
NEVER_SEARCHED = ("gradient_compression", "powersgd_rank", "expert_capacity", "fp8_all_gather")
"""Options that change what is trained: a search takes them as they are written."""
_LEAST_TOKENS = 4096
"""Tokens of a sequence that a rank keeps under context parallelism, in the usual space. Set to: published runs, of 8k
tokens split in two, those of 128k in 16 or less."""


class _Filling(NamedTuple):
    """What varies inside a mesh."""

    mesh: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, tuple[int, ...]], ...]
    """Values by field."""
    sharding: _Pairs
    """(zero, dp_shard)."""
    schedules: _Pairs
    """(interleave, zero_bubble)."""

    @property
    def size(self) -> int:
        """Layouts, incomplete schedules included."""
        return math.prod(len(values) for _, values in self.choices) * len(self.sharding) * len(self.schedules)


def recomputations(job: AnyJob) -> list[Recompute]:
    """Kinds of recomputation that the program has and that save memory.

    Fused attention keeps no scores, so repeating it alone saves nothing.
    """
    if isinstance(job.shape, ConvNetShape):
        return [Recompute.NONE]
    software = job.software
    useless = software.selective == "attention" and software.fused_attention
    useless = useless and not recomputes_modules(job.shape, software)
    return [Recompute.NONE, Recompute.FULL] if useless or not software.sequence_parallel else list(Recompute)


def fast_ranks(job: AnyJob) -> int:
    """Ranks that one fast link or one node joins: tensor parallelism stays among them."""
    return max(job.cluster.scale_up_domain, job.cluster.accelerators_per_node)


@dataclass(frozen=True, slots=True)
class Space:
    """Every layout of a job.

    Attributes:
        job: model, batch, software and cluster.
        world_size: accelerators to use.
        global_batch: sequences per step.
        fixed: decided degrees and options.
        usual: whether to leave out what is hardly ever worth its trouble.
    """

    job: AnyJob
    world_size: int
    global_batch: int
    fixed: Fixed
    usual: bool = False

    @property
    def can_recompute_less(self) -> bool:
        """True if nothing is written of recomputation, so that a part of the layers may recompute."""
        return self.fixed.keys().isdisjoint(("recompute", "recompute_layers"))

    def meshes(self, reject: _Reject) -> Iterator[_Mesh]:
        """Every factorisation of the world size into tp, pp, cp and dp, and ep beside it, that model and batch allow.

        Args:
            reject: called with the reason and the mesh of each that they do not.
        """
        for tp, pp, cp in self._splits():
            dp = self.world_size // (tp * pp * cp)
            if dp != self.fixed.get("dp", dp):
                continue
            mesh = {"tp": tp, "pp": pp, "cp": cp, "dp": dp}
            if reason := self._illegal(mesh) or (self.usual and self._unusual(mesh)):
                reject(reason, mesh)
                continue
            routed = 0 if isinstance(self.job.shape, ConvNetShape) else self.job.shape.experts
            experts = divisors(int(np.gcd(routed, dp * cp * tp))) if routed else [1]
            yield from (mesh | {"ep": ep} for ep in self._allowed("ep", experts))

    def layouts(self, reject: _Reject) -> Iterator[Layouts]:
        """Every layout, mesh by mesh, if pricing all of them is a bounded amount of work.

        Args:
            reject: called with the reason and the mesh of each that is left out.

        Raises:
            UsageError: there are more than `MAX_LAYOUTS`; nothing is built before.
        """
        fillings, count = [], 0
        for mesh in self.meshes(reject):
            fillings.append(self._filling(mesh))
            count += fillings[-1].size
            if count > MAX_LAYOUTS:
                raise UsageError(
                    f"{self.world_size:,} accelerators, {self.global_batch:,} samples and this model have more "
                    f"than {MAX_LAYOUTS:,} layouts, the most that one plan compares",
                    hint="fix a degree, such as `layout: {tp: 8}`, or take a batch with fewer divisors",
                )
        return (self._filled(filling) for filling in fillings)

    def _filled(self, filling: _Filling) -> Layouts:
        layouts = _filled(self.global_batch, filling)
        return layouts.take(self.job.runnable(layouts))

    def _allowed(self, name: str, values: list[int]) -> list[int]:
        return [value for value in values if value == self.fixed.get(name, value)]

    def _splits(self) -> Iterator[tuple[int, int, int]]:
        factors = divisors(self.world_size)
        for tp in self._allowed("tp", factors):
            if self.world_size % tp:
                continue
            for pp in self._allowed("pp", [pp for pp in factors if self.world_size // tp % pp == 0]):
                rest = self.world_size // tp // pp
                yield from ((tp, pp, cp) for cp in self._allowed("cp", [cp for cp in factors if rest % cp == 0]))

    def _illegal(self, mesh: _Mesh) -> str | None:
        tp, pp, cp, dp = mesh.values()
        uneven = f"dp does not divide {self.global_batch} sequences" if self.global_batch % dp else None
        if isinstance(self.job.shape, ConvNetShape):
            return "a convolutional network is split over dp alone" if tp * pp * cp > 1 else uneven
        shape, sequence_length = self.job.shape, self.job.sequence_length
        if shape.heads % tp or (shape.feed_forward and shape.feed_forward % tp):
            return f"tp does not divide {shape.heads} heads and {shape.feed_forward} columns of the MLP"
        if pp > shape.layers:
            return f"more stages than the {shape.layers} layers"
        if cp > 1 and not shape.causal and shape.diffusion is None:
            return "context parallelism is for causal attention and diffusion transformers"
        pieces = self.job.context_pieces if shape.causal else 1
        if cp > 1 and sequence_length % (pieces * cp):
            return f"{pieces} * cp does not divide {sequence_length} tokens"
        return uneven

    def _unusual(self, mesh: _Mesh) -> str | None:
        """Why hardly any run has this mesh; decided degrees are never unusual."""
        ranks = fast_ranks(self.job)
        if mesh["tp"] > ranks and "tp" not in self.fixed:
            return f"tp beyond the {ranks} accelerators that a fast link joins"
        if mesh["cp"] > 1 and self.job.sequence_length // mesh["cp"] < _LEAST_TOKENS and "cp" not in self.fixed:
            return f"cp leaves a rank less than {_LEAST_TOKENS:,} tokens of a sequence"
        return None

    def _filling(self, mesh: Mapping[str, int]) -> _Filling:
        job, tp, pp, cp, dp = self.job, mesh["tp"], mesh["pp"], mesh["cp"], mesh["dp"]
        layers = None if isinstance(job.shape, ConvNetShape) else job.shape.layers
        kinds = [kind for kind in recomputations(job) if kind or not self.fixed.get("recompute_layers")]
        largest = max(job.largest_micro_batch, self.fixed.get("micro_batch", 1))
        choices: dict[str, list[int]] = {
            "micro_batch": [size for size in divisors(self.global_batch // dp) if size <= largest],
            "recompute": [int(kind) for kind in kinds],
            "sequence_parallel": self._sequence_parallel(tp, pp, cp),
            "offload": [0] if layers is None else [0, 1],
            "offload_optimizer": [0] if layers is None else [0, 1],
        }
        written = (*NEVER_SEARCHED, "recompute_layers")
        choices |= {name: [self.fixed[name]] for name in written if name in self.fixed}
        # In the usual space, a node of ranks shares the weights at least.
        within = self.job.cluster.accelerators_per_node // tp if self.usual and "dp_shard" not in self.fixed else 1
        scatters, most = pp == 1 or self.fixed.get("zero") == 2, job.software.limits(pp)
        sharding = _sharding(dp * cp, dp, scatters=scatters, least=min(dp, within))
        sharding = [(zero, shards) for zero, shards in sharding if zero <= most["zero"]]
        zero_bubble = not self.usual or self.job.software.native or "zero_bubble" in self.fixed
        schedules = [(1, 0)]  # interleave, zero_bubble
        if pp > 1:
            schedules = [(chunks, 0) for chunks in chunk_counts(layers or 1, pp, most["interleave"])]
            schedules += [(1, 1)] if zero_bubble else []
        return _Filling(
            tuple(mesh.items()),
            tuple((name, tuple(self._allowed(name, values))) for name, values in choices.items()),
            self._agreeing(sharding, "zero", "dp_shard"),
            self._agreeing(schedules, "interleave", "zero_bubble"),
        )

    def _agreeing(self, pairs: list[tuple[int, int]], first: str, second: str) -> _Pairs:
        fixed = self.fixed
        return tuple(pair for pair in pairs if pair == (fixed.get(first, pair[0]), fixed.get(second, pair[1])))

    def _sequence_parallel(self, tp: int, pp: int, cp: int) -> list[int]:
        if tp == 1 or not self.job.software.limits(pp)["sequence_parallel"]:
            return [0]
        divided = self.job.sequence_length % (tp * cp) == 0
        return [int(divided)] if self.usual and "sequence_parallel" not in self.fixed else [0, 1]


@dataclass(frozen=True, slots=True)
class ListedSpace:
    """A few layouts of a job, such as those that a written layout leaves open."""

    job: AnyJob
    listed: Layouts
    can_recompute_less: ClassVar[bool] = False

    def layouts(self, reject: _Reject) -> Iterator[Layouts]:
        """Those that the software can run."""
        yield self.listed.take(self.job.runnable(self.listed))


@lru_cache(maxsize=1024)
def _filled(global_batch: int, filling: _Filling) -> Layouts:
    """Every combination in a mesh; clusters that differ in their nodes alone share it."""
    mesh, choices, sharding, schedules = filling
    pairs = [np.array(values, dtype=np.float64).reshape(-1, 2) for values in (sharding, schedules)]
    axes = [*pairs, *(np.array(values, dtype=np.float64) for _, values in choices)]
    positions = np.unravel_index(np.arange(filling.size), [len(axis) for axis in axes])
    shards, plans, *columns = (axis[at] for axis, at in zip(axes, positions, strict=True))
    named: dict[str, Values] = dict(zip((name for name, _ in choices), columns, strict=True))
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


def _sharding(copies: int, dp: int, *, scatters: bool, least: int) -> list[tuple[int, int]]:
    """(zero, dp_shard): nothing shared; states over the whole group; weights over any divisor of it (HSDP).

    Zero 2 scatters the gradients of every micro-batch. A pipeline does so where its user asks for it (Llama 3 405B).
    """
    pairs = [(0, 1)]
    if copies > 1:
        pairs.append((1, dp))
        pairs += [(2, dp)] if scatters else []
        pairs += [(3, size) for size in divisors(dp) if size >= max(2, least)] or [(3, dp)]
    return pairs
