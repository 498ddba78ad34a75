"""Interface of a training task, and the causal language-modeling task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.record.model_shape import ModelShape
from trainworks.worker.loss import IGNORED
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.adapters import adapt, draw_adapters, freeze
from trainworks.worker.models.decoder import Decoder, DecoderConfig, PackedTokens
from trainworks.worker.models.families import adaptable_decoder, decoder_config, described_decoder
from trainworks.worker.models.support import support_of
from trainworks.worker.models.weights import SafetensorsFolder, draw_weights, load_weights
from trainworks.worker.parallel.build import FirstWeights, Parallel, Setup, distribute_decoder, distribute_module

if TYPE_CHECKING:
    from transformers import PretrainedConfig


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
        shape: of the model; None for one of `transformers` that has no formula.
        mesh: of this rank.
        marked: batches have `x` and `labels`, and not `tokens`: some positions do not count.
        packed: they have `positions` too: rows hold several documents.
    """

    def __init__(
        self, workload: Workload, shape: ModelShape | None, mesh: Mesh, *, marked: bool = False, packed: bool = False
    ) -> None:
        self._workload = workload
        self._shape = shape
        self._mesh = mesh
        self._marked = marked
        self._packed = packed

    def build(self, setup: Setup, *, frozen: torch.dtype | None = None) -> Parallel:
        """A decoder if the model is one, else the module of `transformers`.

        Args:
            setup: what it is prepared for.
            frozen: type of weights that do not train; None to train them, or the adapter of the run file beside them.
        """
        model = self._workload.model
        if model.hf is None:
            assert self._shape is not None
            return self._build_decoder(described_decoder(model, self._shape), setup, self._draw_weights)
        from trainworks.worker.models.transformer import checkpoint_folder, model_config  # noqa: PLC0415  # a second

        config = model_config(model, self._shape)
        support_of(config, adapted=self._workload.adapter is not None).check(self._mesh.layout)
        decoder = decoder_config(config) if self._workload.adapter is None else adaptable_decoder(config)
        if decoder is None:
            return self._build_transformer(config, setup, frozen)
        if model.weights == "random":
            return self._build_decoder(decoder, setup, self._draw_weights)
        folder = SafetensorsFolder(checkpoint_folder(model.hf))

        def read(parts: Sequence[Decoder]) -> None:
            load_weights(parts, folder, config)
            draw_adapters(parts, seed=self._workload.seed)

        return self._build_decoder(decoder, setup, read, frozen)

    def check_room(self, vocabulary: int) -> None:
        """Check that a model has room for the tokens of the data, and for the positions of a sequence.

        Raises:
            UsageError: it has not.
        """
        from trainworks.worker.models.transformer import model_config  # noqa: PLC0415  # see `build`

        config = model_config(self._workload.model, self._shape)
        length = self._workload.data.sequence_length
        if vocabulary > config.vocab_size:
            raise UsageError(
                f"the tokenizer has {vocabulary} entries, the model {config.vocab_size}",
                hint="take the tokenizer that belongs to the model",
            )
        if length > (limit := getattr(config, "max_position_embeddings", length)):
            raise UsageError(f"data.sequence_length ({length}) is longer than the {limit} positions of the model")

    def _build_decoder(
        self, decoder: DecoderConfig, setup: Setup, first_weights: FirstWeights, frozen: torch.dtype | None = None
    ) -> Parallel:
        return distribute_decoder(
            decoder,
            setup,
            positions=self._workload.data.sequence_length,
            first_weights=first_weights,
            adapter=self._workload.adapter,
            frozen=frozen,
        )

    def _draw_weights(self, parts: Sequence[Decoder]) -> None:
        draw_weights(parts, seed=self._workload.seed)

    def _build_transformer(self, config: PretrainedConfig, setup: Setup, frozen: torch.dtype | None) -> Parallel:
        from trainworks.worker.models.transformer import CausalTransformer  # noqa: PLC0415  # see `build`

        workload, layout = self._workload, self._mesh.layout
        pretrained = workload.model.hf if workload.model.weights == "pretrained" else None
        model = CausalTransformer(config, pretrained=pretrained, seed=workload.seed)
        if self._packed:
            model.check_packing()
        if workload.adapter is not None:
            adapt(model, model.blocks, workload.adapter, precision=setup.precision)
            draw_adapters([model], seed=workload.seed)
        if frozen is not None:
            freeze(model, frozen)
        if layout.tp > 1:
            model.apply_tensor_parallel(self._mesh.tp)
        return distribute_module(model, model.blocks, setup)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Tensor | PackedTokens, Tensor]:
        """Tokens 0 ... T-1 and what follows each, of which a context-parallel rank takes its stretch."""
        if not self._marked:
            tokens = batch["tokens"]
            return self._stretch(tokens[..., :-1]), self._stretch(tokens[..., 1:])
        x, labels = self._stretch(batch["x"]), self._stretch(batch["labels"])
        return (PackedTokens(x, batch["positions"]) if self._packed else x), labels

    def _stretch(self, values: Tensor) -> Tensor:
        """This rank's positions of [m, b, T]."""
        length = values.shape[-1] // self._mesh.layout.cp
        first = self._mesh.cp_rank * length
        return values[..., first : first + length]

    def num_items(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Labels of this rank's positions that count; None if all do."""
        if not self._marked:
            return None
        return (self._stretch(batch["labels"]) != IGNORED).flatten(1).sum(1)

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros."""
        length = self._workload.data.sequence_length
        shape = (num_micro_batches, self._mesh.layout.micro_batch, length)
        if not self._marked:
            return {"tokens": torch.zeros((*shape[:2], length + 1), dtype=torch.int64)}
        zeros = torch.zeros(shape, dtype=torch.int64)
        batch = {"x": zeros, "labels": zeros}
        return batch | {"positions": torch.arange(length).expand(shape)} if self._packed else batch
