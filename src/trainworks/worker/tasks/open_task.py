"""Open the task of a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from trainworks.config.run_file import Workload
from trainworks.record.model_shape import ModelShape
from trainworks.worker.data.card import first_card
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.reader import Dataset
from trainworks.worker.mesh import Mesh
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling, Task
from trainworks.worker.tasks.module_task import ModuleTask


@dataclass(frozen=True, slots=True)
class OpenedTask:
    """A task with its dataset."""

    task: Task
    dataset: Dataset
    build_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None
    """A module's own; that of the run file otherwise."""
    held_out: Dataset | None = None
    """What the run is evaluated on; None for a run that does not evaluate."""


def open_task(
    workload: Workload,
    mesh: Mesh,
    *,
    data_folder: Path | None,
    evaluation_folder: Path | None = None,
    shape: ModelShape | None = None,
) -> OpenedTask:
    """The task of a workload.

    Args:
        workload: of the run file.
        mesh: of this rank.
        data_folder: of prepared data; None for a module.
        evaluation_folder: of prepared held-out data; None for a module, and where nothing is evaluated.
        shape: of the model of a causal-lm that formulas describe.

    Raises:
        UsageError: a module's file is at fault.
    """
    if workload.task == "module":
        own = ModuleTask(workload, mesh.layout.micro_batch)
        return OpenedTask(own, own.dataset, own.user.build_optimizer, own.held_out() if workload.eval else None)
    assert data_folder is not None
    if workload.task == "causal-lm":
        card = first_card(data_folder)[0]
        packed = card.marked and not card.one_per_row
        language = CausalLanguageModeling(workload, shape, mesh, marked=card.marked, packed=packed)
        task = _with_preferences(workload, language) if workload.preference else language
        if shape is None or not shape.is_described:
            language.check_room(card.vocabulary)
        held_out = open_dataset(evaluation_folder, workload.data) if evaluation_folder else None
        return OpenedTask(task, open_dataset(data_folder, workload.data), held_out=held_out)
    from trainworks.worker.tasks.transformer_tasks import (  # noqa: PLC0415  # imports `transformers`
        ImageClassification,
        MaskedLanguageModeling,
    )

    micro_batch = mesh.layout.micro_batch
    if workload.task == "masked-lm":
        masked = MaskedLanguageModeling(workload, data_folder, micro_batch)
        held_out = masked.held_out(evaluation_folder) if evaluation_folder else None
        return OpenedTask(masked, masked.dataset, held_out=held_out)
    images = ImageClassification(workload, data_folder, micro_batch)
    held_out = images.held_out(evaluation_folder) if evaluation_folder else None
    return OpenedTask(images, images.dataset, held_out=held_out)


def _with_preferences(workload: Workload, language: CausalLanguageModeling) -> Task:
    from trainworks.worker.tasks.preference import PreferenceTuning  # noqa: PLC0415  # imports `transformers`

    return PreferenceTuning(workload, language)
