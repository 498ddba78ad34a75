"""Prediction of one layout: step time with an interval, memory, and its reliability."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from trainworks.config.layout import Layout
from trainworks.config.spec import Frozen
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.degrees import to_layout
from trainworks.plan.job import AnyJob, StepTimes
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.uncertainty import Belief, interval_s, parts_s, selection_bias


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
    """Components of the step time; they add up to `step_time_s`. `selection` is what the best of many layouts is
    expected to take longer than predicted."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs over the dense peak of the data sheet in the run's precision."""
    memory: MemoryPrediction

    @property
    def chosen_layout(self) -> Layout:
        """The layout with the share that the search which chose it adds to the step time, to be planned again."""
        selection_s = self.terms_s["selection"]
        share = selection_s / (self.step_time_s - selection_s)
        return self.layout.model_copy(update={"selection": share})


def predictions(
    job: AnyJob,
    layouts: Layouts,
    times: StepTimes,
    memories: Memories,
    *,
    global_batch: int,
    belief: Belief,
    families: NDArray[np.intp] | None = None,
    selection: float = 0.0,
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
        families: positions of the layouts that a search chose among; None for layouts that nothing chose.
        selection: share that an earlier search, which left these layouts over, adds to their step time.
        coefficients: of the model of time and memory.
    """
    parts = parts_s(job, layouts, coefficients)
    factor = 1.0 if families is None else float(np.exp(selection_bias(times.total_s[families])))
    factor *= 1 + selection
    selection_s = (factor - 1) * times.total_s
    seconds = times.total_s + selection_s
    low, high = interval_s(parts * factor, belief)
    tokens = global_batch * job.tokens_per_sample
    flops = global_batch * job.flops_per_sequence
    peak = job.cluster.accelerator.peak_flops_per_s[job.precision]  # type: ignore[index]
    terms_s = {term.name.removesuffix("_s"): getattr(times, term.name) for term in fields(times)}
    terms_s["selection"] = selection_s
    memory = _memory_columns(memories, coefficients)
    return [
        Prediction(
            layout=to_layout(layouts, index),
            accum=round(float(layouts.accum[index])),
            step_time_s=float(seconds[index]),
            low_s=float(low[index]),
            high_s=float(high[index]),
            terms_s={term: float(column[index]) for term, column in terms_s.items()},
            tokens_per_s=tokens / float(seconds[index]),
            mfu=flops / (float(seconds[index]) * peak * float(layouts.world_size[index])),
            memory=MemoryPrediction(**{term: round(float(column[index])) for term, column in memory.items()}),
        )
        for index in range(len(layouts))
    ]


def _memory_columns(memories: Memories, coefficients: Coefficients) -> dict[str, Array]:
    """Bytes by field of a `MemoryPrediction`, shape [n] each."""
    columns: dict[str, Array] = {term.name: getattr(memories, term.name) for term in fields(Memories)}
    return columns | {
        "allocated_bytes": memories.allocated_bytes,
        "reserved_bytes": memories.reserved_bytes(coefficients),
        "device_bytes": memories.device_bytes(coefficients),
    }


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
    parts += [f"{layout.gradient_compression} gradients"] if layout.gradient_compression != "none" else []
    return ", ".join(parts)
