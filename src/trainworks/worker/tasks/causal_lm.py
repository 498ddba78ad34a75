"""Interface of a training task, next-token prediction, and preference optimization on top of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from trainworks.config.run_file import Workload
from trainworks.errors import UsageError
from trainworks.record.model_shape import ModelShape
from trainworks.worker.data.tokenization import Tokenization, end_of_text
from trainworks.worker.loss import IGNORED, ChunkedCrossEntropy
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.adapters import adapt, detach_adapters, draw_adapters, freeze
from trainworks.worker.models.decoder import Decoder, DecoderConfig, PackedTokens
from trainworks.worker.models.families import adaptable_decoder, decoder_config, described_decoder
from trainworks.worker.models.support import support_of
from trainworks.worker.models.weights import SafetensorsFolder, draw_weights, load_adapters, load_weights
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
        """A decoder if the model is one, else the module of `transformers`.

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
        if model.weights == "random":
            return self._build_decoder(decoder, setup, self._drawn(setup))
        folder = SafetensorsFolder(checkpoint_folder(model.hf))

        def read(parts: Sequence[Decoder]) -> None:
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
            model = stages[index] = CausalTransformer(config, pretrained=pretrained, seed=workload.seed)
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


class Pairs(NamedTuple):
    """Pairs of conversations; the first of each is preferred."""

    tokens: Tensor
    """[B, 2, T]."""
    labels: Tensor
    """[B, 2, T]: token that follows, where it belongs to an answer; -100 elsewhere."""
    reference: Tensor
    """[B, 2]: log-probabilities of the answers under the reference."""


class PreferenceTuning:
    """Direct preference optimization (DPO): pairs of answers, compared with a frozen reference.

    With prompt x, preferred answer y_w, other answer y_l, model p and reference r, which is the checkpoint that the run
    starts from:

        m = beta (log p(y_w|x) / r(y_w|x) - log p(y_l|x) / r(y_l|x))        loss = -log sigmoid(m)

    The log-probability of an answer is the sum over its tokens; those that both conversations share cancel out. The
    loss of a batch is the mean over its pairs. Source: Rafailov et al. 2023, equation 7. The reference is the model
    with its adapters switched off, or a frozen copy of the checkpoint.

    Shape suffixes: M micro-batches, B pairs, T positions, N tokens, V vocabulary.
    """

    def __init__(self, workload: Workload, language: CausalLanguageModeling) -> None:
        assert workload.preference is not None
        self._workload = workload
        self._language = language
        self._loss = functools.partial(dpo_loss, beta=workload.preference.beta)
        self._model: Parallel | None = None
        self._copy: Parallel | None = None
        """Frozen copy; None with adapters."""

    def build(self, setup: Setup) -> Parallel:
        """The model, and without adapters its frozen copy, which is in 16 bits with `precision: bf16`."""
        self._model = self._language.build(setup)
        self._model.objective = self._loss
        _return_log_probabilities(self._model.parts[0])
        if self._workload.adapter is None:
            dtype = torch.bfloat16 if self._workload.precision == "bf16" else torch.float32
            self._copy = self._language.build(setup, frozen=dtype)
            self._copy.parts[0].eval()
            _return_log_probabilities(self._copy.parts[0])
        return self._model

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Pairs, Tensor]:
        """Pairs with the reference's log-probabilities, and labels [M, B]: 0, the place of the preferred answer."""
        tokens, labels = batch["x"], batch["labels"]
        preferred = torch.zeros(labels.shape[:2], dtype=torch.int64, device=labels.device)
        pairs = Pairs(tokens, labels, torch.zeros(labels.shape[:3], device=labels.device))
        return pairs._replace(reference=self._reference(pairs, preferred)), preferred

    def _reference(self, pairs: Pairs, preferred: Tensor) -> Tensor:
        """Log-probabilities [M, B, 2] under the reference, without dropout."""
        assert self._model is not None
        if self._copy is not None:
            values = self._copy.evaluate(pairs, preferred, _objective_of_reference)
            self._copy.leave_evaluation()  # it is sharded while the model trains
            return values.view(pairs.reference.shape)
        model = self._model.parts[0]
        was_training = model.training
        model.eval()
        with detach_adapters([model]):
            values = self._model.evaluate(pairs, preferred, _objective_of_reference)
        model.train(was_training)
        return values.view(pairs.reference.shape)

    def num_items(self, batch: Mapping[str, Tensor]) -> None:
        """None: every micro-batch has the same number of pairs."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros."""
        batch = self._language.blank_batch(num_micro_batches)
        return {name: values.unsqueeze(2).repeat(1, 1, 2, 1) for name, values in batch.items()}


def dpo_loss(model: nn.Module, pairs: Pairs, labels_B: Tensor, *, beta: float) -> Tensor:
    """Mean loss of the pairs that count, those whose label is not -100; 0 if none does.

    Returns:
        A scalar; without gradients [2]: the loss, and the number of pairs with m > 0.
    """
    ratios_B2 = log_probabilities(model, pairs) - pairs.reference
    margins_B = beta * (ratios_B2[:, 0] - ratios_B2[:, 1])
    counts_B = labels_B != IGNORED
    loss = -(logsigmoid(margins_B) * counts_B).sum() / counts_B.sum().clamp(min=1)
    if torch.is_grad_enabled():
        return loss
    return torch.stack([loss, ((margins_B > 0) & counts_B).sum().to(loss.dtype)])


def log_probabilities(model: nn.Module, pairs: Pairs) -> Tensor:
    """Log-probabilities of the answers [B, 2] in fp32, of a model that returns those of tokens."""
    values: Tensor = model(pairs.tokens.flatten(0, 1), pairs.labels.flatten(0, 1))
    return values.view(pairs.tokens.shape).sum(-1)


def _objective_of_reference(model: nn.Module, pairs: Pairs, labels_B: Tensor) -> Tensor:
    return log_probabilities(model, pairs)


def _return_log_probabilities(model: nn.Module) -> None:
    """Let a model return log p of each label [N], 0 where it is ignored, instead of their mean loss."""
    if isinstance(model, Decoder):
        assert model.output is not None and isinstance(model.output.loss, ChunkedCrossEntropy)
        model.output.loss = model.output.loss.log_probabilities
        return

    def of_logits(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        return -cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="none")

    from trainworks.worker.models.transformer import CausalTransformer  # noqa: PLC0415  # see `build`

    assert isinstance(model, CausalTransformer)
    model.loss = of_logits


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
