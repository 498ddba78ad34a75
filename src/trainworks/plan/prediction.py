"""Prediction of one layout: step time with an interval, memory, and its reliability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import model_serializer

from trainworks.config.layout import Layout, ResolvedLayout
from trainworks.config.spec import Frozen
from trainworks.plan.degrees import planned_layout, written_layout
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.uncertainty import Belief, interval_s, selection_bias, times_by_rate
from trainworks.record.memory import MemoryTerms
from trainworks.record.step_time import StepTimeTerms
from trainworks.units import format_bytes, format_step_time


class Prediction(Frozen):
    """One layout of one job."""

    layout: ResolvedLayout
    step_time_s: float
    low_s: float
    high_s: float
    """Ends of the 80 % interval."""
    step_time: StepTimeTerms
    """Components of the step time without `selection_s`."""
    selection_s: float
    """Time that the best of many layouts is expected to take longer than predicted."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs over the dense peak of the data sheet in the run's precision."""
    memory: MemoryTerms
    """Memory of the fullest rank."""
    stage: int
    """The pipeline stage that needs most memory."""

    def __repr__(self) -> str:
        memory = format_bytes(self.memory.total_bytes)
        return f"<Prediction: {self.layout.describe()}, {format_step_time(self.step_time_s)} a step, {memory}>"

    @property
    def terms_s(self) -> dict[str, float]:
        """Components of the step time by name, with `selection`; they add up to `step_time_s`."""
        terms = {name.removesuffix("_s"): seconds for name, seconds in self.step_time.model_dump().items()}
        return terms | {"selection": self.selection_s}

    @model_serializer
    def _as_json(self) -> dict[str, object]:
        terms = ("weights", "gradients", "optimizer", "activations", "logits", "working", "allocated", "reserved")
        memory = {f"{term}_bytes": getattr(self.memory, f"{term}_bytes") for term in terms}
        return {
            "layout": self.layout,
            "step_time_s": self.step_time_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "terms_s": self.terms_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "memory": memory | {"device_bytes": self.memory.total_bytes, "stage": self.stage},
        }

    @property
    def chosen_layout(self) -> Layout:
        """The layout with the share that the search which chose it adds to the step time, to be planned again."""
        return written_layout(self.layout, selection=self.selection_s / (self.step_time_s - self.selection_s))


def predictions(
    job: AnyJob,
    layouts: Layouts,
    memories: Memories,
    *,
    global_batch: int,
    belief: Belief,
    families: NDArray[np.intp] | None = None,
    selection: float = 0.0,
) -> list[Prediction]:
    """Predictions of these layouts, in their order.

    Args:
        job: with the belief's slowdowns.
        layouts: of the job.
        memories: their memory.
        global_batch: sequences per step.
        belief: of the cluster.
        families: positions of the layouts that a search chose among; None for layouts that nothing chose.
        selection: share that an earlier search, which left these layouts over, adds to their step time.
    """
    times, parts = times_by_rate(job, layouts)
    factor = 1.0 if families is None else float(np.exp(selection_bias(times.total_s[families])))
    factor *= 1 + selection
    selection_s = (factor - 1) * times.total_s
    seconds = times.total_s + selection_s
    low, high = interval_s(parts * factor, belief)
    tokens, flops = global_batch * job.tokens_per_sample, global_batch * job.flops_per_sequence
    peak = job.cluster.accelerator.peak_flops_per_s[job.precision]  # type: ignore[index]
    return [
        Prediction(
            layout=planned_layout(layouts, index),
            step_time_s=float(seconds[index]),
            low_s=float(low[index]),
            high_s=float(high[index]),
            step_time=times.terms(index),
            selection_s=float(selection_s[index]),
            tokens_per_s=tokens / float(seconds[index]),
            mfu=flops / (float(seconds[index]) * peak * float(layouts.world_size[index])),
            memory=memories.terms(index),
            stage=round(float(memories.stage[index])),
        )
        for index in range(len(layouts))
    ]
