"""Choice of the layout and micro-batch that a run file leaves open, among replicas and shards."""

from __future__ import annotations

import math

from trainworks.config.layout import Layout, ResolvedLayout, divisors, resolve_layout
from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, LayoutError
from trainworks.plan.run.memory import predict_memory
from trainworks.plan.run.trainable import check_trainable
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import MemoryTerms
from trainworks.units import format_bytes

_MAX_BUCKET_MIB = 256

_USABLE_SHARE = 0.8
"""Usable share of a rank's memory; the rest belongs to the system and the allocator."""
_NAMES = {
    "baseline_bytes": "the program itself",
    "optimizer_bytes": "optimizer state",
    "working_bytes": "of the block being computed",
    "allocator_bytes": "the allocator's",
    "checkpoint_bytes": "the copy for a checkpoint",
}
_ENOUGH_TOKENS = 8192
"""Tokens per micro-batch above which matrix products do not get faster."""


def choose_layout(
    workload: Workload,
    shape: ModelShape,
    requested: Layout | None,
    *,
    world_size: int,
    memory_per_rank_bytes: int,
    baseline_bytes: int,
    device: str = "cpu",
) -> ResolvedLayout:
    """Replicas if the model fits on every rank, else shards, else shards with recomputed activations.

    The micro-batch is the largest that fits.

    Raises:
        LayoutError: the given degrees do not multiply to the world size, do not divide the batch, or cannot cut the
            model.
        EnvironmentProblem: nothing fits; the message says what is short.
    """
    options = [requested] if requested else _automatic(world_size)
    smallest: MemoryTerms | None = None
    refused: LayoutError | None = None
    for degrees in options:
        for layout in _micro_batches(degrees, workload, world_size):
            try:
                check_trainable(layout, workload, shape)
            except LayoutError as error:  # a smaller micro-batch may do: a pipeline needs several
                refused = refused or error
                continue
            memory = predict_memory(
                shape,
                layout,
                sequence_length=workload.data.sequence_length,
                precision=workload.precision,
                baseline_bytes=baseline_bytes,
                dropout=workload.model.dropout,
                device=device,
            )
            if memory.total_bytes <= _USABLE_SHARE * memory_per_rank_bytes:
                return layout
            smallest = min(smallest or memory, memory, key=lambda terms: terms.total_bytes)
    if smallest is None:
        assert refused is not None
        raise refused
    raise EnvironmentProblem(
        f"the model does not fit: {format_bytes(smallest.total_bytes)} per rank at least, "
        f"{format_bytes(_USABLE_SHARE * memory_per_rank_bytes)} usable; {_largest(smallest)}",
        hint="make the model or the sequence shorter, shard it over more ranks, or start fewer ranks per node",
    )


def _largest(memory: MemoryTerms) -> str:
    """The two terms that take most."""
    terms = sorted(memory.model_dump().items(), key=lambda term: -term[1])[:2]
    named = [f"{format_bytes(value)} are {_NAMES.get(name, name.removesuffix('_bytes'))}" for name, value in terms]
    return " and ".join(named)


def _automatic(world_size: int) -> list[Layout]:
    if world_size == 1:
        return [Layout(), Layout(recompute="full")]
    return [Layout(dp_replicate=world_size), Layout(dp_shard=world_size), Layout(dp_shard=world_size, recompute="full")]


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


def bucket_mib(shape: ModelShape, num_ranks: int, calibration: Calibration) -> int:
    """MiB of gradients that replicas send at a time.

    Small buckets pay the latency a often, a large last one is exposed. With G bytes of gradients in buckets of S

        G / S * a + 2(n-1)/n * S / B    is least for    S = sqrt(G a B / (2(n-1)/n))

    Edge: 25, torch's default, for one rank; never below 1 nor above 256.
    """
    if num_ranks == 1:
        return 25
    gradient_bytes = 4 * shape.num_parameters
    product = gradient_bytes * calibration.all_reduce_latency_s * calibration.all_reduce_bytes_per_s
    best_bytes = math.sqrt(product / (2 * (num_ranks - 1) / num_ranks))
    return min(_MAX_BUCKET_MIB, max(1, round(best_bytes / 2**20)))
