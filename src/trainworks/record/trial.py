"""Measurement of a few steps of a model whose shape is unknown, in place of a prediction."""

from __future__ import annotations

from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.config.spec import Spec
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.step_time import StepTimeGroups


class TrialRequest(Spec):
    """Parameters of a trial: the real model on real ranks in the real layout."""

    workload: Workload
    layout: ResolvedLayout
    processes: Processes
    shape: ModelShape | None = None
    """Shape of a causal-lm; other models bring their own."""
    data_folder: str | None = None
    """Folder of the prepared data; None for a module, which has its own."""


class Trial(Spec):
    """Measured on rank 0 while all ranks of this machine are busy."""

    num_parameters: int
    """Parameters of the whole model, trainable or not."""
    num_samples: int
    """Samples of the dataset."""
    held_out_samples: tuple[int, ...] | None = None
    """Samples of each held-out set of a module's `build_eval_dataset`; None where nothing is evaluated."""
    flops_per_sample: float
    """FLOPs of products and convolutions, forward and backward; 0 if not counted: compiled, recomputed, or known by the
    shape."""
    step_time: StepTimeGroups
    """Medians of a few steps after the first."""
    baseline_bytes: int
    """Memory of a rank without a model."""
    weights_bytes: int
    """Weights of one rank; gradients and optimizer are per rank too."""
    gradients_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    """Peak of one rank, program included."""
    checkpoint_bytes: int
    """Weights, buffers and optimizer state of all ranks."""
    own_optimizer: bool
    """The module has its own optimizer."""
    seconds: float
    """Duration of the trial."""
