"""Prediction of one layout: step time with an interval, memory, and its reliability."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import NamedTuple

from trainworks.config.layout import Layout
from trainworks.config.spec import Frozen
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.conv_net import AnyJob, ConvJob
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import Memories
from trainworks.plan.step_time import StepTimes
from trainworks.plan.uncertainty import Belief, interval_s, parts_s

_MEASURED_ARCHITECTURES = ("Volta", "Ampere", "Hopper", "Blackwell", "Blackwell Ultra")
_MEASURED_WORLD = 6144
_EXTRAPOLATED = 10
_MEASURED_LENGTH = 131072
_UNLIKE = 0.15
"""Standard deviation for a part or a kind of model that was never compared."""
_PER_DOUBLING = 0.05
"""The same for each doubling beyond the largest compared run or the longest compared sequence."""


class MemoryPrediction(Frozen):
    """Bytes of the fullest rank; the terms add up to `allocated_bytes`."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    working_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    """Memory the device reports: reserved, the driver's context and buffers of the collectives."""
    stage: int
    """The pipeline stage that needs most."""


class Prediction(Frozen):
    """One layout of one job."""

    layout: Layout
    accum: int
    """Micro-batches per step."""
    step_time_s: float
    low_s: float
    high_s: float
    """Ends of the 80 % interval."""
    terms_s: dict[str, float]
    """Components of the step time; they add up to `step_time_s`."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs over the dense peak of the data sheet in the run's precision."""
    memory: MemoryPrediction


def predictions(
    job: AnyJob,
    layouts: Layouts,
    times: StepTimes,
    memories: Memories,
    *,
    global_batch: int,
    belief: Belief,
    coefficients: Coefficients = COEFFICIENTS,
) -> list[Prediction]:
    """Predictions of these layouts, in their order.

    Args:
        job: with the belief's slowdowns.
        layouts: of the job.
        times: their step times.
        memories: their memory.
        global_batch: sequences per step.
        belief: of the cluster.
        coefficients: of the model of time and memory.
    """
    seconds = times.total_s
    doubts = outside_measured(job, int(layouts.world_size.max(initial=1)))
    distance = sum(doubt.deviation**2 for doubt in doubts)
    low, high = interval_s(parts_s(job, layouts, coefficients), belief, distance=distance)
    tokens = global_batch * job.sequence_length
    flops = global_batch * job.flops_per_sequence
    peak = job.cluster.accelerator.peak_flops_per_s[job.precision]  # type: ignore[index]
    return [
        Prediction(
            layout=to_layout(layouts, index),
            accum=round(float(layouts.accum[index])),
            step_time_s=float(seconds[index]),
            low_s=float(low[index]),
            high_s=float(high[index]),
            terms_s={term.name.removesuffix("_s"): float(getattr(times, term.name)[index]) for term in fields(times)},
            tokens_per_s=tokens / float(seconds[index]),
            mfu=flops / (float(seconds[index]) * peak * float(layouts.world_size[index])),
            memory=_memory(memories, index, coefficients),
        )
        for index in range(len(layouts))
    ]


def _memory(memories: Memories, index: int, coefficients: Coefficients) -> MemoryPrediction:
    terms = {term.name: round(float(getattr(memories, term.name)[index])) for term in fields(memories)}
    return MemoryPrediction(
        **terms,
        allocated_bytes=round(float(memories.allocated_bytes[index])),
        reserved_bytes=round(float(memories.reserved_bytes(coefficients)[index])),
        device_bytes=round(float(memories.device_bytes(coefficients)[index])),
    )


def to_layout(layouts: Layouts, index: int) -> Layout:
    """One of the layouts as a run file writes it."""
    row = layouts.row(index)
    return Layout(
        dp_replicate=row["dp"] // row["dp_shard"] if row["zero"] else row["dp"],
        dp_shard=row["dp_shard"] if row["zero"] else 1,
        cp=row["cp"],
        tp=row["tp"],
        pp=row["pp"],
        ep=row["ep"],
        micro_batch=row["micro_batch"],
        zero=row["zero"] or "auto",  # type: ignore[arg-type]
        sequence_parallel=bool(row["sequence_parallel"]),
        interleave=row["interleave"],
        zero_bubble=bool(row["zero_bubble"]),
        recompute=Recompute(row["recompute"]).name.lower(),  # type: ignore[arg-type]
        offload_activations=bool(row["offload"]),
        offload_optimizer=bool(row["offload_optimizer"]),
    )


def describe_layout(layout: Layout) -> str:
    """One line without what is off: `dp_shard 32 (zero 1), tp 8, pp 4 x 2 chunks, micro-batch 1, recompute selective`.

    >>> describe_layout(Layout(dp_shard=32, zero=1, tp=8, micro_batch=2))
    'dp_shard 32 (zero 1), tp 8, micro-batch 2'
    """
    parts = [f"dp_replicate {layout.dp_replicate}"] if layout.dp_replicate > 1 else []
    if layout.dp_shard > 1:
        parts.append(f"dp_shard {layout.dp_shard} (zero {layout.zero})")
    parts += [f"{axis} {getattr(layout, axis)}" for axis in ("cp", "tp", "ep") if getattr(layout, axis) > 1]
    parts += ["sequence-parallel"] if layout.sequence_parallel is True else []
    if layout.pp > 1:
        chunks = f" x {layout.interleave} chunks" if layout.interleave not in (1, "auto") else ""
        parts.append(f"pp {layout.pp}{chunks}{' zero-bubble' if layout.zero_bubble is True else ''}")
    parts.append(f"micro-batch {layout.micro_batch}")
    parts += [f"recompute {layout.recompute}"] if layout.recompute not in ("none", "auto") else []
    offloaded = [what for what in ("activations", "optimizer") if getattr(layout, f"offload_{what}") is True]
    parts += [f"offload {' and '.join(offloaded)}"] if offloaded else []
    return ", ".join(parts)


def extrapolation(world_size: int) -> str | None:
    """A warning for a cluster of over ten times the largest compared run; None for a smaller one."""
    if world_size <= _EXTRAPOLATED * _MEASURED_WORLD:
        return None
    times = f"{world_size / _MEASURED_WORLD:,.0f} times the {_MEASURED_WORLD:,}"
    return f"{world_size:,} accelerators are {times} of the largest compared run: every figure is an extrapolation"


class Doubt(NamedTuple):
    """A way in which a job lies outside the validated range."""

    text: str
    deviation: float
    """Standard deviation of the logarithm of the step time that it adds."""


def outside_measured(job: AnyJob, world_size: int) -> list[Doubt]:
    """Ways in which a job lies outside the validated range; each widens the interval."""
    accelerator = job.cluster.accelerator
    doubts = []
    joined = accelerator.scale_up.startswith("NVLink") and "bridge" not in accelerator.scale_up
    if accelerator.architecture not in _MEASURED_ARCHITECTURES or not joined:
        doubts.append(Doubt(f"no run on {accelerator.name} was ever compared", _UNLIKE))
    ranges = {"accelerators": (world_size, _MEASURED_WORLD), "tokens": (job.sequence_length, _MEASURED_LENGTH)}
    for name, (value, largest) in ranges.items():
        if value > largest:
            text = f"{value} {name} are more than the {largest} of any compared run"
            doubts.append(Doubt(text, _PER_DOUBLING * math.log2(value / largest)))
    if isinstance(job, ConvJob):
        doubts.append(Doubt("no convolutional network was ever compared", _UNLIKE))
    elif not job.shape.causal:
        doubts.append(Doubt("no encoder was ever compared", _UNLIKE))
    return doubts
