"""Layouts that are printed in part: every way to fill what is open, and the one that a planner would take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.parameters import chunk_counts
from trainworks.plan.search import fits
from trainworks.plan.space import Fixed
from trainworks.plan.step_time import TrainingJob

_MOST_CHUNKS = 8
_CHIP_TO_CHIP_BYTES_PER_S = 2e11
_NEAR_SMALLEST = 1.25
"""A published layout did fit, by ways to save memory that no table prints: where all need too much, those within this
factor of the smallest are in question."""


def completions(decided: Fixed, *, layers: int, global_batch: int, can_offload: bool = False) -> Layouts:
    """All layouts that agree with what is decided: micro-batches 1, 2, 4, 8 that divide a rank's share, every
    recomputation, and every number of chunks up to 8 that shares the blocks evenly.

    Args:
        decided: fields of `Layouts`, with `dp` and `pp` among them; those of the three above that it lacks are open.
        layers: of the model.
        global_batch: sequences per step.
        can_offload: whether activations may be offloaded where neither that nor recomputation is decided.
    """
    per_rank, pp = max(1, global_batch // decided["dp"]), decided["pp"]
    sizes = [size for size in (1, 2, 4, 8) if per_rank % size == 0]
    chunks = chunk_counts(layers, pp, _MOST_CHUNKS if pp > 1 else 1)
    kinds = [(kind, decided.get("offload", 0)) for kind in _one_or(decided, "recompute", list(Recompute))]
    if can_offload and not {"recompute", "offload"} & decided.keys():
        kinds.append((Recompute.NONE, 1))
    filled = itertools.product(_one_or(decided, "micro_batch", sizes), kinds, _one_or(decided, "interleave", chunks))
    columns = np.array([(size, *kind, v) for size, kind, v in filled], dtype=np.float64).T
    opened = dict(zip(("micro_batch", "recompute", "offload", "interleave"), columns, strict=True))
    return Layouts.of(global_batch=global_batch, **{**decided, **opened})


def _one_or(decided: Fixed, name: str, otherwise: Sequence[int]) -> Sequence[int]:
    return [decided[name]] if name in decided else otherwise


def best_completion(
    job: TrainingJob, decided: Fixed, *, global_batch: int, coefficients: Coefficients = COEFFICIENTS
) -> tuple[Layouts, StepTimes]:
    """The fastest completion that fits, with its step time; if none fits, the fastest of those near the smallest."""
    layouts = feasible_completions(job, decided, global_batch=global_batch, coefficients=coefficients)
    times = job.step_times(layouts, coefficients)
    best = np.array([int(times.total_s.argmin())])
    return layouts.take(best), times.take(best)


def can_fit(job: TrainingJob, decided: Fixed, *, global_batch: int) -> bool:
    """Whether any completion fits the accelerator."""
    layouts = completions(decided, layers=job.shape.layers, global_batch=global_batch)
    return bool(fits(job.memories(layouts), job).any())


def feasible_completions(
    job: TrainingJob, decided: Fixed, *, global_batch: int, coefficients: Coefficients = COEFFICIENTS
) -> Layouts:
    """The completions that fit the accelerator, or those near the smallest if none does."""
    # offloading activations is common where the host is on a chip-to-chip link, and not on PCIe
    can_offload = job.cluster.accelerator.host_bytes_per_s >= _CHIP_TO_CHIP_BYTES_PER_S
    layouts = completions(decided, layers=job.shape.layers, global_batch=global_batch, can_offload=can_offload)
    if len(layouts) > 1:
        memories = job.memories(layouts)
        used, good = memories.device_bytes(), fits(memories, job)
        layouts = layouts.take(good if good.any() else used <= _NEAR_SMALLEST * used.min())
    return layouts
