"""A training job with an adapter, for rows of measured runs of any program."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainworks.config.finetune import Adapter
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import Memories
from trainworks.plan.run.adapters import adapted_flops_per_token, adapted_states, adapted_times
from trainworks.plan.step_time import TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedJob(TrainingJob):
    """A training job of any program that trains adapters beside frozen weights."""

    adapter: Adapter

    def step_times(self, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
        """One optimizer step of every layout."""
        times, length = TrainingJob.step_times(self, layouts, coefficients), self.sequence_length
        return adapted_times(times, self.shape, layouts, self.adapter, length=length, precision=self.precision)

    def memories(self, layouts: Layouts) -> Memories:
        """Peak memory of the fullest rank of every layout."""
        memories = TrainingJob.memories(self, layouts)
        return replace(memories, **adapted_states(self.shape, layouts, self.adapter, precision=self.precision))

    @property
    def flops_per_sequence(self) -> float:
        """Model FLOPs, forward and backward; frozen weights have no gradient."""
        return self.sequence_length * adapted_flops_per_token(self.shape, self.adapter, self.sequence_length)
