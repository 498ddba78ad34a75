"""Prediction of one layout: step time with an interval, memory, and its reliability."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from trainworks.config.layout import Layout, ResolvedLayout
from trainworks.config.spec import Frozen
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.degrees import planned_layout, written_layout
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

    layout: ResolvedLayout
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
        return written_layout(self.layout, selection=selection_s / (self.step_time_s - selection_s))


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
            layout=planned_layout(layouts, index),
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
