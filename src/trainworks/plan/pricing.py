"""Time and memory of any job: dispatches to the transformer or the convolutional model."""

from __future__ import annotations

from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.conv_step import ConvJob, predict_conv_memories, predict_conv_step_times
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import Memories, predict_memories
from trainworks.plan.step_time import StepTimes, TrainingJob, predict_step_times

__all__ = ["AnyJob", "memories_of", "step_times_of"]

AnyJob = TrainingJob | ConvJob


def step_times_of(job: AnyJob, layouts: Layouts, coefficients: Coefficients = COEFFICIENTS) -> StepTimes:
    """One optimizer step of every layout.

    Raises:
        UsageError: the accelerator cannot compute in the job's precision.
    """
    if isinstance(job, ConvJob):
        return predict_conv_step_times(job, layouts, coefficients)
    return predict_step_times(job, layouts, coefficients)


def memories_of(job: AnyJob, layouts: Layouts) -> Memories:
    """Peak memory of the fullest rank of every layout."""
    if isinstance(job, ConvJob):
        return predict_conv_memories(job, layouts)
    return predict_memories(
        job.shape, layouts, sequence_length=job.sequence_length, precision=job.precision, software=job.software
    )
