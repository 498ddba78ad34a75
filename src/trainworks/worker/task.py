"""What a run trains: how its model is built, and what of a batch goes in and what the loss compares with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig

from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError
from trainworks.record.resolved import Plan
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder, DecoderConfig
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.transformer import CausalTransformer, checkpoint_folder, model_config
from trainworks.worker.models.weights import SafetensorsFolder, draw_weights, load_weights
from trainworks.worker.parallel.build import Parallel, Setup, distribute_decoder, distribute_module

__all__ = ["CausalLanguageModeling", "Task"]


class Task(Protocol):
    """One kind of training."""

    def build(self, setup: Setup) -> Parallel:
        """The model with its first weights, as this rank trains it."""
        ...

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """Inputs and labels, each [accumulation, micro_batch, ...], that this rank takes of its batch."""
        ...

    def num_items(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Items that each micro-batch's loss is a mean over [accumulation]; None if their number never varies."""
        ...

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """A batch of the right shapes, for a first step whose gradients are thrown away."""
        ...


class CausalLanguageModeling:
    """Next-token prediction.

    Args:
        workload: of the run file.
        plan: with the shape of the model and the layout.
        mesh: of this rank.
    """

    def __init__(self, workload: Workload, plan: Plan, mesh: Mesh) -> None:
        self._workload = workload
        self._plan = plan
        self._mesh = mesh

    def build(self, setup: Setup) -> Parallel:
        """A decoder if the model is one, else the module of `transformers`."""
        workload, layout = self._workload, self._mesh.layout
        config = model_config(workload.model, self._plan.model)
        decoder = decoder_config(config)
        if decoder is not None:
            _check_dropout(decoder, layout)
            return distribute_decoder(
                decoder,
                setup,
                positions=workload.data.sequence_length,
                first_weights=lambda parts: self._first_weights(parts, config),
            )
        for axis in ("pp", "cp", "ep"):
            if getattr(layout, axis) > 1:
                raise LayoutError(
                    f"a {config.model_type} cannot be cut over {axis}",
                    field=axis,
                    hint="use `dp_shard` to spread the model, or `tp`",
                )
        pretrained = workload.model.hf if workload.model.weights == "pretrained" else None
        model = CausalTransformer(config, pretrained=pretrained, seed=workload.seed)
        if layout.tp > 1:
            model.apply_tensor_parallel(self._mesh.tp)
        return distribute_module(model, model.blocks, setup)

    def _first_weights(self, parts: Sequence[Decoder], config: PretrainedConfig) -> None:
        model = self._workload.model
        if model.weights == "pretrained":
            load_weights(parts, SafetensorsFolder(checkpoint_folder(str(model.hf))), config)
        else:
            draw_weights(parts, seed=self._workload.seed)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens 0 ... T-1 and 1 ... T of [m, b, T + 1], of which a context-parallel rank takes its stretch."""
        tokens = batch["tokens"]
        stretch = (tokens.shape[-1] - 1) // self._mesh.layout.cp
        first = self._mesh.cp_rank * stretch
        return tokens[..., first : first + stretch], tokens[..., first + 1 : first + stretch + 1]

    def num_items(self, batch: Mapping[str, Tensor]) -> None:
        """None: every position has a label."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros."""
        length = self._workload.data.sequence_length + 1
        shape = (num_micro_batches, self._mesh.layout.micro_batch, length)
        return {"tokens": torch.zeros(shape, dtype=torch.int64)}


def _check_dropout(decoder: DecoderConfig, layout: ResolvedLayout) -> None:
    """Refuse dropout of a Hugging Face config where ranks hold copies of the same activations.

    The planner refuses the same for the run file's own `dropout` (`plan.local.trainable`).
    """
    if decoder.dropout and layout.tp > 1 and not layout.sequence_parallel:
        raise LayoutError(
            f"the model has dropout ({decoder.dropout:g}): without sequence_parallel, each rank of tp would drop other "
            "values of activations that all ranks share",
            field="sequence_parallel",
            hint="leave it out, or set `sequence_parallel: true`",
        )
