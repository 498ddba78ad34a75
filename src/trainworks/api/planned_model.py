"""The model of a workload as the planner needs it: the same on every cluster."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.api.resolve import model_shape
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.models import preset
from trainworks.config.load import Source
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import UsageError
from trainworks.plan.compute import Stack
from trainworks.plan.conv_net import ConvNetShape, conv_net_of_hf_config
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.local.plan import num_steps
from trainworks.plan.model_shape import shape_of_hf_config
from trainworks.plan.pricing import AnyJob
from trainworks.plan.step_time import TrainingJob
from trainworks.record.resolved import ModelShape

__all__ = ["PlannedModel", "planned_model", "preset_shape"]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and how long it trains."""

    shape: ModelShape | ConvNetShape
    sequence_length: int
    """Tokens, or the patches of an image; 1 for a convolutional network."""
    steps: int

    def job(self, workload: Workload, cluster: ClusterDescription) -> AnyJob:
        """The model trained on a cluster."""
        stack = Stack(fused_kernels=workload.compile)
        if isinstance(self.shape, ConvNetShape):
            return ConvJob(self.shape, workload.precision, cluster, stack)
        return TrainingJob(self.shape, self.sequence_length, workload.precision, cluster, stack)


def planned_model(run_file: RunFile, source: Source | None) -> PlannedModel:
    """The model of a run file.

    Raises:
        UsageError: there is no workload, the preset is unknown, the model has too few positions for the sequences, or
            the training is counted in epochs.
        EnvironmentProblem: the model's config cannot be read.
    """
    workload = run_file.workload
    if workload is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    steps = _steps(workload, source)
    if workload.model.preset is None:
        return PlannedModel(model_shape(workload), workload.data.sequence_length, steps)
    shape, length = _preset(workload, workload.model.preset, source)
    return PlannedModel(shape, length, steps)


def preset_shape(run_file: RunFile, source: Source | None) -> ModelShape | None:
    """The shape of a preset that is planned for this machine; None where the run file names no preset.

    Raises:
        UsageError: the preset is unknown, or no measurement of this machine gives the step time of such a model.
    """
    workload = run_file.workload
    if workload is None or workload.model.preset is None or run_file.cluster.engine != "local":
        return None
    name = workload.model.preset
    shape = planned_model(run_file, source).shape
    if isinstance(shape, ConvNetShape) or not shape.causal or shape.latent is not None:
        raise UsageError(
            f"cannot plan `{name}` for this machine: no calibration gives the step time of a model that is not a "
            "causal language model with plain attention",
            place=source.place(("workload", "model", "preset")) if source else None,
            hint='plan it for a described cluster: `--on "8x H100"`',
        )
    return shape


def _preset(workload: Workload, name: str, source: Source | None) -> tuple[ModelShape | ConvNetShape, int]:
    """Shape and sequence length of a published model."""
    try:
        config = preset(name)
    except UsageError as error:
        place = source.place(("workload", "model", "preset")) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None
    image_size = {} if workload.data.image_size is None else {"image_size": workload.data.image_size}
    if config.get("model_type") == "resnet":
        return conv_net_of_hf_config(config | image_size), 1
    shape = shape_of_hf_config(config | image_size)
    length = shape.max_sequence_length if shape.patch_values else workload.data.sequence_length
    if shape.learned_positions and length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of `{name}`",
            place=source.place(("workload", "data", "sequence_length")) if source else None,
        )
    return shape, length


def _steps(workload: Workload, source: Source | None) -> int:
    if workload.train_for.unit != "epochs":
        return num_steps(workload, tokens_in_data=None)
    raise UsageError(
        "epochs cannot be planned for a described cluster: how long one is, is known once the data is prepared",
        place=source.place(("workload", "train_for")) if source else None,
        hint="set `train_for: 1B tokens`, or steps",
    )
