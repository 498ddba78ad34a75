"""Interface of a training task, and next-token prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.record.model_shape import ModelShape
from trainworks.worker.data.tokenization import Tokenization, end_of_text
from trainworks.worker.loss import IGNORED
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.adapters import adapt, draw_adapters, freeze
from trainworks.worker.models.decoder import Decoder, DecoderConfig, PackedTokens
from trainworks.worker.models.families import adaptable_decoder, decoder_config, described_decoder
from trainworks.worker.models.support import support_of
from trainworks.worker.models.weights import SCORE, SafetensorsFolder, draw_weights, load_adapters, load_weights
from trainworks.worker.parallel.build import (
    FirstWeights,
    Parallel,
    Setup,
    distribute_decoder,
    distribute_module,
    distribute_stages,
    stages_of_rank,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MOST_TOKENS = 160
_TOP_K = 20
_TEMPERATURE = 0.7


class Task(Protocol):
    """One kind of training."""

    def build(self, setup: Setup) -> Parallel:
        """The model with its first weights, as this rank trains it."""

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """Inputs and labels, each [accumulation, micro_batch, ...], that this rank takes of its batch."""

    def num_items(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Items that each micro-batch's loss is a mean over [accumulation]; None if their number never varies."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """A batch of the right shapes, for a first step whose gradients are thrown away."""


@dataclass(eq=False)
class CausalLanguageModeling:
    """Next-token prediction."""

    workload: Workload
    shape: ModelShape | None
    """None for a model of `transformers` that has no formula."""
    mesh: Mesh
    marked: bool = False
    """Batches have `x` and `labels`, and not `tokens`: some positions do not count."""
    packed: bool = False
    """They have `positions` too: rows hold several documents."""

    def build(self, setup: Setup, *, frozen: torch.dtype | None = None) -> Parallel:
        """A decoder if the model is one, else the module of `transformers`; with a head for rewards if those train.

        `frozen` is the type of weights that do not train; None to train them, or the adapter of the run file beside
        them.
        """
        model = self.workload.model
        if model.hf is None:
            assert self.shape is not None
            return self._build_decoder(described_decoder(model, self.shape), setup, self._drawn(setup))
        from trainworks.worker.models.transformer import checkpoint_folder, model_config  # noqa: PLC0415  # a second

        config = model_config(model, self.shape)
        layout = self.mesh.layout
        if layout.tp * layout.pp * layout.cp * layout.ep > 1:
            support_of(config, adapted=self.workload.adapter is not None).check(layout)
        decoder = decoder_config(config) if self.workload.adapter is None else adaptable_decoder(config)
        if decoder is None:
            return self._build_transformer(config, setup, frozen)
        decoder = replace(decoder, scores=self.workload.trains_reward)
        if model.weights == "random":
            return self._build_decoder(decoder, setup, self._drawn(setup))
        folder = SafetensorsFolder(checkpoint_folder(model.hf))

        def read(parts: Sequence[Decoder]) -> None:
            draw_weights(parts, seed=self.workload.seed, only=SCORE)
            load_weights(parts, folder, config, progress=setup.progress)
            self._fill_adapters(parts, config)

        return self._build_decoder(decoder, setup, read, frozen)

    def check_room(self, vocabulary: int) -> None:
        """Check that a model has room for the tokens of the data, and for the positions of a sequence.

        Raises:
            UsageError: it has not.
        """
        from trainworks.worker.models.transformer import model_config  # noqa: PLC0415  # see `build`

        config = model_config(self.workload.model, self.shape)
        length = self.workload.data.sequence_length
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
            positions=self.workload.data.sequence_length,
            first_weights=first_weights,
            adapter=self.workload.adapter,
            frozen=frozen,
        )

    def _drawn(self, setup: Setup) -> FirstWeights:
        return functools.partial(draw_weights, seed=self.workload.seed, progress=setup.progress)

    def _build_transformer(self, config: PretrainedConfig, setup: Setup, frozen: torch.dtype | None) -> Parallel:
        from trainworks.worker.models.transformer import CausalTransformer  # noqa: PLC0415  # see `build`

        workload, layout = self.workload, self.mesh.layout
        pretrained = workload.model.hf if workload.model.weights == "pretrained" else None
        stages = {}
        for index, (layers, first, last) in stages_of_rank(layout, self.mesh.pp_rank, config.num_hidden_layers).items():
            model = stages[index] = CausalTransformer(
                config, pretrained=pretrained, seed=workload.seed, scores=workload.trains_reward
            )
            if self.packed:
                model.check_packing()
            if layout.pp > 1:
                model.keep_stage(layers, first=first, last=last)
            cut = functools.partial(model.apply_tensor_parallel, self.mesh.tp) if layout.tp > 1 else None
            if workload.adapter is not None:
                adapt(model, model.blocks, workload.adapter, precision=setup.precision, cut=cut)
                self._fill_adapters([model], config)
            elif frozen is not None:
                freeze(model, frozen, cut)
            elif cut is not None:
                cut()
        if layout.pp == 1:
            return distribute_module(model, model.blocks, setup)
        return distribute_stages(
            stages,
            setup,
            positions=workload.data.sequence_length,
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
        )

    def _fill_adapters(self, parts: Sequence[nn.Module], config: PretrainedConfig) -> None:
        adapter = self.workload.adapter
        if adapter is None or adapter.folder is None:
            draw_adapters(parts, seed=self.workload.seed)
        else:
            load_adapters(parts, Path(adapter.folder), config)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Tensor | PackedTokens, Tensor]:
        """Tokens 0 ... T-1 and what follows each, of which a context-parallel rank takes its stretch."""
        if not self.marked:
            tokens = batch["tokens"]
            return self._stretch(tokens[..., :-1]), self._stretch(tokens[..., 1:])
        x, labels = self._stretch(batch["x"]), self._stretch(batch["labels"])
        return (PackedTokens(x, batch["positions"]) if self.packed else x), labels

    def _stretch(self, values: Tensor) -> Tensor:
        """This rank's positions of [m, b, T]."""
        length = values.shape[-1] // self.mesh.layout.cp
        first = self.mesh.cp_rank * length
        return values[..., first : first + length]

    def num_items(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Labels of this rank's positions that count; None if all do."""
        if not self.marked:
            return None
        return (self._stretch(batch["labels"]) != IGNORED).flatten(1).sum(1)

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros."""
        length = self.workload.data.sequence_length
        shape = (num_micro_batches, self.mesh.layout.micro_batch, length)
        if not self.marked:
            return {"tokens": torch.zeros((*shape[:2], length + 1), dtype=torch.int64)}
        zeros = torch.zeros(shape, dtype=torch.int64)
        batch = {"x": zeros, "labels": zeros}
        return batch | {"positions": torch.arange(length).expand(shape)} if self.packed else batch


@torch.no_grad()
def generate(
    parallel: Parallel,
    data_folder: Path,
    prompt: str,
    *,
    window: int,
    device: torch.device,
    most_tokens: int = _MOST_TOKENS,
    temperature: float = _TEMPERATURE,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> str:
    """The continuation of a prompt, sampled from the 20 likeliest tokens until the document ends.

    Every rank calls it and takes part in every forward, as sharded parameters need. The token is that of rank 0, so
    that all end at the same one.

    Args:
        parallel: the model.
        data_folder: prepared data, whose tokenizer the model has.
        prompt: text that the model continues.
        window: T, the tokens of context that the model sees.
        device: of the model.
        most_tokens: of the continuation.
        temperature: 0 takes the likeliest token.
        seed: of the draws.
        progress: called for every token.
    """
    tokenizer = Tokenization.read(data_folder).tokenizer
    end = end_of_text(tokenizer)
    tokens: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids or [end or 0]
    prompt_tokens = len(tokens)
    for part in parallel.parts:
        part.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(most_tokens):
            progress()
            logits_BV = parallel.next_token_logits(torch.tensor([tokens[-window:]], device=device))
            logits, indices = logits_BV.float().cpu()[0].topk(_TOP_K)
            drawn = torch.multinomial(torch.softmax(logits / temperature, 0), 1) if temperature else logits.argmax(0)
            agreed = indices[drawn].view(1).to(device)
            dist.broadcast(agreed, src=0)
            chosen = int(agreed)
            if chosen == end:
                break
            tokens.append(chosen)
    for part in parallel.parts:
        part.train()
    return str(tokenizer.decode(tokens[prompt_tokens:]))
