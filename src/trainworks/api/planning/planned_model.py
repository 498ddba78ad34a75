"""The model of a workload as the planner needs it: the same on every cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trainworks.api.anchor import lacking_weights
from trainworks.api.hf_config import hf_config
from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.run_file import RunFile, Workload
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.conv_net import ConvJob
from trainworks.plan.job import AnyJob
from trainworks.plan.run.pricing import described_job, software_of_workload
from trainworks.plan.run.steps import num_steps
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.shapes.presets import published_shape
from trainworks.plan.shapes.transformer import PLANNED_TYPES, shape_of_hf_config, shape_of_model
from trainworks.plan.shapes.vocabulary import Vocabulary, default_vocabulary
from trainworks.plan.software import Software, planned_software
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and how long it trains."""

    shape: ModelShape | ConvNetShape
    sequence_length: int
    """Tokens, or the patches of an image; 1 for a convolutional network."""
    steps: int
    software: Software
    is_ours: bool = False
    """Whether Trainworks trains it: a fine-tuning, or a language model on a scheduler that the run file names."""
    vocabulary_note: str | None = None
    """The vocabulary that the run file leaves out and the plan takes; None where it is given."""

    def job(self, workload: Workload, cluster: ClusterDescription) -> AnyJob:
        """The model trained on a cluster."""
        if isinstance(self.shape, ConvNetShape):
            return ConvJob(self.shape, workload.precision, cluster, self.software)
        if self.is_ours:
            return described_job(workload, self.shape, cluster)
        return TrainingJob(self.shape, self.sequence_length, workload.precision, cluster, self.software)


def planned_model(run_file: RunFile, source: Source | None) -> PlannedModel:
    """The model of a run file.

    Raises:
        UsageError: the workload is missing, the preset is unknown, the model has too few positions for the sequences,
            or the training is counted in epochs.
        EnvironmentProblem: the model's config cannot be read.
    """
    workload = run_file.workload
    if workload is None:
        raise UsageError("a command cannot be planned; only a `workload` can")
    steps = _steps(workload, source)
    if workload.is_fine_tuned and run_file.software is not None:
        raise UsageError(
            "`adapter` and `preference` are planned as Trainworks trains them",
            place=source.place(("software",)) if source else None,
            hint="remove `software`",
        )
    compiled = workload.compile if "compile" in workload.model_fields_set else None
    software = planned_software(run_file.software, compiled=compiled)
    is_submitted = run_file.cluster.engine not in ("local", "described") and run_file.software is None
    is_ours = workload.is_fine_tuned or (is_submitted and workload.task == "causal-lm")
    if is_ours:
        software = software_of_workload(workload, "cuda")
    if workload.model.preset is None:
        shape, taken = _shape_and_vocabulary(workload)
        note = None if taken is None else taken.note
        return PlannedModel(shape, workload.data.sequence_length, steps, software, is_ours, note)
    published, length = published_shape(workload, workload.model.preset, source)
    return PlannedModel(published, length, steps, software, is_ours)


def weights_note(workload: Workload) -> str | None:
    """What a fine-tuning needs before it can run, where its plan does without; None for any other workload."""
    lacking = lacking_weights(workload)
    return None if lacking is None else f"planned without weights: {lacking[0]}; to run it, {lacking[1]}"


def planned_shape(run_file: RunFile, source: Source | None) -> ModelShape | None:
    """The shape of a model that is planned for this machine and not built: a preset, or a fine-tuning without weights.

    None for any other model, and for another machine.

    Raises:
        UsageError: the preset is unknown, or no measurement of this machine gives the step time of such a model.
    """
    workload = run_file.workload
    if workload is None or run_file.cluster.engine != "local":
        return None
    if workload.model.preset is None and not workload.lacks_weights:
        return None
    name = workload.model.title
    shape = planned_model(run_file, source).shape
    if isinstance(shape, ConvNetShape) or not shape.causal or shape.latent is not None:
        raise UsageError(
            f"cannot plan `{name}` for this machine: no calibration gives the step time of a model that is not a "
            "causal language model with plain attention",
            place=source.place(("workload", "model", "preset")) if source else None,
            hint='plan it for a described cluster: `--on "8x H100"`',
        )
    return shape


def _steps(workload: Workload, source: Source | None) -> int:
    if workload.train_for.unit != "epochs":
        return num_steps(workload, tokens_in_data=None)
    raise UsageError(
        "epochs cannot be planned for a described cluster: their length is only known after preparing the data",
        place=source.place(("workload", "train_for")) if source else None,
        hint="set `train_for: 1B tokens`, or steps",
    )


def model_shape(workload: Workload) -> ModelShape:
    """The shape of a model given by dimensions or by a Hugging Face config.

    Raises:
        UsageError: a sequence is longer than the model has positions for.
        EnvironmentProblem: the config cannot be loaded.
    """
    return _shape_and_vocabulary(workload)[0]


def _shape_and_vocabulary(workload: Workload) -> tuple[ModelShape, Vocabulary | None]:
    """The shape, and the vocabulary that it takes because the run file has none."""
    length = workload.data.sequence_length
    if workload.model.module is not None:
        raise UsageError(
            f"cannot plan `{workload.model.module}` for a described cluster: its shape is only known after building it",
            hint="plan it for this machine, which builds and measures it",
        )
    if workload.model.hf is None:
        taken = default_vocabulary(workload)
        entries = taken.entries if taken else workload.data.vocabulary or _entries_of(Path(workload.data.tokenizer))
        return shape_of_model(workload.model, vocabulary=entries, sequence_length=length), taken
    shape = shape_of_hf_config(hf_config(workload.model.hf))
    if length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of the model"
        )
    return shape, None


def has_formula(workload: Workload) -> bool:
    """True if formulas give the parameters, memory and step time of a causal language model on ranks at hand.

    Any other model of `transformers` is measured in a few steps of its own.

    Raises:
        EnvironmentProblem: the config cannot be loaded.
        UsageError: it lacks a dimension.
    """
    if workload.model.hf is None:
        return True
    config = hf_config(workload.model.hf)
    return config.get("model_type") in PLANNED_TYPES and shape_of_hf_config(config).latent is None


def _entries_of(tokenizer: Path) -> int:
    """Number of entries of a tokenizer.json: its largest id + 1."""
    try:
        content = json.loads(tokenizer.read_bytes())
        vocabulary = content["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        return 1 + int(max(ids + [token["id"] for token in content.get("added_tokens", [])]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(f"cannot read tokenizer `{tokenizer}`: {error}") from None
