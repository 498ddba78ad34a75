"""Layouts that are printed in part: every way to fill what is open, and the one that a planner would take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.parameters import chunk_counts
from trainworks.plan.search import limit_bytes
from trainworks.plan.space import Fixed, recomputations
from trainworks.plan.step_time import TrainingJob

_MOST_CHUNKS = 8
_CHIP_TO_CHIP_BYTES_PER_S = 2e11
"""Offloading activations is common where the host is on such a link, and not on PCIe."""
_PROGRAM_SAVINGS = 1.25
"""A published layout did fit: programs have ways to save memory that no table prints. Where all need
more than that, those within this factor of the smallest are in question."""


def completions(job: TrainingJob, decided: Fixed, *, global_batch: int) -> Layouts:
    """All layouts that agree with what is decided: micro-batches of 1 to 8 that divide a rank's share, every
    recomputation that the program has, and every number of chunks up to 8 that shares the blocks evenly.

    `decided` has fields of `Layouts`, with `dp` and `pp` among them; those of the three above that it lacks are open.
    Where neither offloading nor recomputation is decided, activations may be offloaded over a chip-to-chip link.
    """
    per_rank, pp = max(1, global_batch // decided["dp"]), decided["pp"]
    sizes = [size for size in range(1, 9) if per_rank % size == 0]
    most = min(_MOST_CHUNKS if pp > 1 else 1, job.software.limits(pp)["interleave"])
    chunks = chunk_counts(job.shape.layers, pp, most)
    kinds = [(kind, decided.get("offload", 0)) for kind in _one_or(decided, "recompute", recomputations(job))]
    can_offload = job.cluster.accelerator.host_bytes_per_s >= _CHIP_TO_CHIP_BYTES_PER_S
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
    layouts = feasible_completions(job, decided, global_batch=global_batch)
    times = job.step_times(layouts, coefficients)
    best = np.array([int(times.total_s.argmin())])
    return layouts.take(best), times.take(best)


def lacking_bytes(job: TrainingJob, decided: Fixed, *, global_batch: int) -> float:
    """Device memory that the smallest completion needs above what a plan may use of an accelerator; 0 where it fits."""
    layouts = completions(job, decided, global_batch=global_batch)
    return max(0.0, float(job.memories(layouts).device_bytes().min()) - limit_bytes(job))


def feasible_completions(job: TrainingJob, decided: Fixed, *, global_batch: int) -> Layouts:
    """The completions that fit the accelerator, or those near the smallest if none does."""
    layouts = completions(job, decided, global_batch=global_batch)
    if len(layouts) > 1:
        used = job.memories(layouts).device_bytes()
        possible = used <= _PROGRAM_SAVINGS * job.cluster.accelerator.memory_bytes
        layouts = layouts.take(possible if possible.any() else used <= _PROGRAM_SAVINGS * used.min())
    return layouts
