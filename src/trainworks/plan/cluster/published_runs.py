"""Notes that hold a plan against the published runs: what none of them had, and the best of them."""

from __future__ import annotations

from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.plan.job import AnyJob
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.uncertainty import LARGEST_WORLD, LONGEST, not_compared

_EXTRAPOLATED = 10
_LONGEST_LISTED = 16384
"""Tokens of a sequence from which on MFU says how attention is counted."""
_BITS = {"fp8": 8, "fp4": 4}
_SIMILAR = 2
"""Largest ratio of two numbers of accelerators whose runs are compared."""


def outside_measured(job: AnyJob, world_size: int) -> list[str]:
    """Ways in which a job lies outside of the compared runs; each widens the interval."""
    found = not_compared(job)
    ranges = {"accelerators": (world_size, LARGEST_WORLD), "tokens": (job.sequence_length, LONGEST)}
    for name, (value, largest) in ranges.items():
        if value > largest:
            found.append(f"{value} {name} are more than the {largest} of any compared run")
    return found


def extrapolation(world_size: int) -> str | None:
    """A warning for a cluster of over ten times the largest compared run; None for a smaller one."""
    if world_size <= _EXTRAPOLATED * LARGEST_WORLD:
        return None
    times = f"{world_size / LARGEST_WORLD:,.0f} times the {LARGEST_WORLD:,}"
    return f"{world_size:,} accelerators are {times} of the largest compared run: every figure is an extrapolation"


def above_published(job: AnyJob, mfu: float) -> str | None:
    """A note on a plan above the best published run of that part, precision and scale; None where there is none.

    Args:
        job: on its cluster; of convolutional networks, encoders and long sequences no run is listed.
        mfu: model FLOPs over the dense peak, as planned.
    """
    if isinstance(job.shape, ConvNetShape) or not job.shape.causal or job.sequence_length >= _LONGEST_LISTED:
        return None
    count, part = job.cluster.num_accelerators, job.cluster.accelerator.name
    kind = (part, _BITS.get(job.precision, 16), bool(job.shape.experts))
    similar = [
        run
        for run in load_catalog().runs.values()
        if (run.accelerator, run.bits, run.experts) == kind and count / _SIMILAR <= run.accelerators <= count * _SIMILAR
    ]
    best = max(similar, key=lambda run: run.mfu, default=None)
    if best is None or mfu <= best.mfu:
        return None
    source = find_row(best.name, "runs").figures[0].source
    scale = f"{count // _SIMILAR:,} to {count * _SIMILAR:,} of this part in {kind[1]} bits"
    figures = f"{best.name}, {100 * best.mfu:.0f} %"
    return f"MFU {100 * mfu:.0f} % is above the best published run on {scale}: {figures} ({source})"
