"""Layouts that are printed in part: every way to fill what is open, and the one that a planner would take."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.states import chunk_counts
from trainworks.plan.step_time import TrainingJob


@dataclass(frozen=True, slots=True)
class OpenLayout:
    """A partly decided layout; None is open."""

    dp: int
    dp_shard: int
    zero: int
    tp: int
    pp: int
    cp: int
    ep: int
    interleave: int | None
    micro_batch: int | None
    recompute: Recompute | None
    sequence_parallel: bool
    offload: int | None = None
    """Whether activations are offloaded."""
    offload_optimizer: bool = False


_MOST_CHUNKS = 8
_CHIP_TO_CHIP_BYTES_PER_S = 2e11
_PROGRAM_SAVINGS = 1.25
"""A published layout did fit: programs have ways to save memory that no table prints. Where all need
more than that, those within this factor of the smallest are in question."""


def completions(layout: OpenLayout, *, layers: int, global_batch: int, can_offload: bool = False) -> Layouts:
    """All layouts that agree with it: micro-batches 1, 2, 4, 8 that divide a rank's share, every recomputation, and
    every number of chunks up to 8 that shares the blocks evenly.
    """
    per_rank = max(1, global_batch // layout.dp)
    sizes = (
        [size for size in (1, 2, 4, 8) if per_rank % size == 0] if layout.micro_batch is None else [layout.micro_batch]
    )
    kinds = [(kind, 0) for kind in Recompute] if layout.recompute is None else [(layout.recompute, 0)]
    if layout.offload is not None:
        kinds = [(kind, layout.offload) for kind, _ in kinds]
    elif layout.recompute is None and can_offload:
        kinds.append((Recompute.NONE, 1))
    chunks = (
        [layout.interleave]
        if layout.interleave
        else chunk_counts(layers, layout.pp, _MOST_CHUNKS if layout.pp > 1 else 1)
    )
    filled = [(size, *kind, v) for size, kind, v in itertools.product(sizes, kinds, chunks)]
    micro_batch, recompute, offload, interleave = np.array(filled, dtype=np.float64).T
    return Layouts.of(
        global_batch=global_batch,
        dp=layout.dp,
        dp_shard=layout.dp_shard,
        zero=layout.zero,
        tp=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        pp=layout.pp,
        interleave=interleave,
        cp=layout.cp,
        ep=layout.ep,
        micro_batch=micro_batch,
        recompute=recompute,
        offload=offload,
        offload_optimizer=float(layout.offload_optimizer),
    )


def _fast_host(job: TrainingJob) -> bool:
    """True if the host is on a chip-to-chip link, where offloading activations is common; False on PCIe."""
    return job.cluster.accelerator.host_bytes_per_s >= _CHIP_TO_CHIP_BYTES_PER_S


def best_completion(
    job: TrainingJob, layout: OpenLayout, *, global_batch: int, coefficients: Coefficients = COEFFICIENTS
) -> tuple[Layouts, StepTimes]:
    """The fastest completion that fits, with its step time; if none fits, the fastest of those near the smallest."""
    layouts = feasible_completions(job, layout, global_batch=global_batch, coefficients=coefficients)
    times = job.step_times(layouts, coefficients)
    best = np.array([int(times.total_s.argmin())])
    return layouts.take(best), times.take(best)


def feasible_completions(
    job: TrainingJob, layout: OpenLayout, *, global_batch: int, coefficients: Coefficients = COEFFICIENTS
) -> Layouts:
    """The completions that fit the accelerator, or those near the smallest if none does."""
    layouts = completions(layout, layers=job.shape.layers, global_batch=global_batch, can_offload=_fast_host(job))
    if len(layouts) > 1:
        used = job.memories(layouts).device_bytes(coefficients)
        fits = used <= _PROGRAM_SAVINGS * job.cluster.accelerator.memory_bytes
        layouts = layouts.take(fits if fits.any() else used <= _PROGRAM_SAVINGS * used.min())
    return layouts
