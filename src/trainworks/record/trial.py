"""What a few steps of a model whose shape nobody knows say: measured, where others are predicted."""

from __future__ import annotations

from trainworks.config.layout import ResolvedLayout
from trainworks.config.quantities import Spec
from trainworks.config.run_file import Workload
from trainworks.record.resolved import Processes, StepTimeTerms

__all__ = ["Trial", "TrialRequest"]


class TrialRequest(Spec):
    """What to try: the real model on real ranks in the real layout."""

    workload: Workload
    layout: ResolvedLayout
    processes: Processes
    data_folder: str | None = None
    """Of prepared data; None for a module, which brings its own."""


class Trial(Spec):
    """Measured on rank 0 while all ranks of this machine are busy."""

    num_parameters: int
    """Of the whole model, trained or not."""
    num_samples: int
    """Of the dataset."""
    flops_per_sample: float
    """Products and convolutions, forward and backward; 0 where they were not counted: compiled or recomputed."""
    step_time: StepTimeTerms
    """Medians of a few steps after the first."""
    baseline_bytes: int
    """Before the rank had a model."""
    weights_bytes: int
    """Of one rank, as the next two."""
    gradients_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    """Of one rank, program included."""
    checkpoint_bytes: int
    """Of all ranks together: weights, buffers and optimizer state."""
    own_optimizer: bool
    """Whether the module brings one."""
    seconds: float
    """How long it took."""
