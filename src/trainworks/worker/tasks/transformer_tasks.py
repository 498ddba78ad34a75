"""Masked tokens and classes of images, with the models of `transformers`, under replicas and shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForMaskedLM, PretrainedConfig
from transformers import logging as transformers_logging

from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.data.card import first_card
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.reader import Dataset
from trainworks.worker.data.tokenization import Tokenization, end_of_text
from trainworks.worker.data.tokens import MaskedTokens
from trainworks.worker.loss import predictions_of_logits
from trainworks.worker.models.support import loaded_config
from trainworks.worker.models.transformer import blocks_of
from trainworks.worker.parallel.build import Parallel, Setup, distribute_module

_SEED_OF_EVALUATION = 0
_MASKS = ("[MASK]", "<mask>")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's pixels by channel, as published image models use them."""


class MaskedLanguageModeling:
    """BERT and its like: the tokens that were hidden are predicted from all others.

    Raises:
        UsageError: the model has no room for the tokens, or none for one that hides the others.
    """

    def __init__(self, workload: Workload, folder: Path, micro_batch: int) -> None:
        self._workload = workload
        self._shape = (micro_batch, workload.data.sequence_length)
        card, _ = first_card(folder)
        if card.marked:
            raise UsageError("the data are packed or conversations, and `task: masked-lm` trains on full rows of text")
        tokenizer = Tokenization.read(folder).tokenizer
        known = (tokenizer.token_to_id(name) for name in _MASKS)
        mask = next((number for number in known if number is not None), card.vocabulary)
        needed = max(mask + 1, card.vocabulary)
        self.config = _bert_config(workload, needed)
        _check_room(self.config, needed, workload.data.sequence_length)
        end = end_of_text(tokenizer)
        self._mask, self._vocabulary = mask, card.vocabulary
        self._spared = [] if end is None else [end]
        self.dataset = self._masked(open_dataset(folder, workload.data), workload.seed)

    def held_out(self, folder: Path) -> MaskedTokens:
        """Held-out sequences; what is hidden in them is the same at every evaluation."""
        return self._masked(open_dataset(folder, self._workload.data), _SEED_OF_EVALUATION)

    def _masked(self, tokens: Dataset, seed: int) -> MaskedTokens:
        return MaskedTokens(tokens, mask=self._mask, vocabulary=self._vocabulary, spared=self._spared, seed=seed)

    def build(self, setup: Setup) -> Parallel:
        """The model of `transformers` with its head over the vocabulary."""
        model = _built(AutoModelForMaskedLM, self.config, self._workload)
        return distribute_module(_Objective(model, "input_ids"), blocks_of(model), setup)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sequences with hidden tokens, and what was there."""
        return batch["x"], batch["labels"]

    def num_items(self, batch: Mapping[str, Tensor]) -> None:
        """None: every sequence has the same number of labels (`MaskedTokens`)."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros."""
        zeros = torch.zeros((num_micro_batches, *self._shape), dtype=torch.int64)
        return {"x": zeros, "labels": zeros}


class ImageClassification:
    """ResNet, ViT and their like.

    Raises:
        UsageError: the model takes images of another size.
    """

    def __init__(self, workload: Workload, folder: Path, micro_batch: int) -> None:
        self._workload = workload
        size = int(workload.data.image_size or 0)
        self._shape = (micro_batch, size, size, 3)
        card, _ = first_card(folder)
        self.config = loaded_config(workload.model, num_labels=len(card.classes))
        own = getattr(self.config, "image_size", size)
        if own != size:
            raise UsageError(
                f"data.image_size ({size}) is not the {own} pixels of the model", hint=f"set `data.image_size: {own}`"
            )
        self.dataset = open_dataset(folder, workload.data, seed=workload.seed)

    def held_out(self, folder: Path) -> Dataset:
        """Held-out images, neither cropped at random nor mirrored."""
        return open_dataset(folder, self._workload.data, augment=False)

    def build(self, setup: Setup) -> Parallel:
        """The model of `transformers` with a head over the classes of the data."""
        model = _built(AutoModelForImageClassification, self.config, self._workload)
        return distribute_module(_Objective(model, "pixel_values"), blocks_of(model), setup)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Pixels and classes."""
        return batch["images"], batch["labels"]

    def num_items(self, batch: Mapping[str, Tensor]) -> None:
        """None: every image has a label."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Black."""
        images = torch.zeros((num_micro_batches, *self._shape), dtype=torch.uint8)
        return {"images": images, "labels": torch.zeros(images.shape[:2], dtype=torch.int64)}


class _Objective(nn.Module):
    """Inputs and labels to the loss: the mean cross-entropy over the labels that count; in evaluation mode also to the
    number of labels that are predicted right.
    """

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model = model
        self._argument = argument
        self.watch: Callable[..., None] | None = None
        """Called in evaluation with what the model predicts."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            # [B, S, S, 3] of 0 ... 255 becomes [B, 3, S, S] of about mean 0 and deviation 1.
            mean, std = (torch.tensor(values, device=x.device) for values in (_MEAN, _STD))
            normal = ((x / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()
            x = normal.to(next(self.model.parameters()).dtype)
        logits: Tensor = self.model(**{self._argument: x}).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())
        if self.training:
            return loss
        if self.watch is not None:
            self.watch(*predictions_of_logits(logits.flatten(0, -2), labels.flatten()))
        return torch.stack([loss, (logits.argmax(-1) == labels).sum().float()])


def _bert_config(workload: Workload, vocabulary: int) -> PretrainedConfig:
    model = workload.model
    if model.hf is not None:
        return loaded_config(model)
    return AutoConfig.for_model(
        "bert",
        vocab_size=vocabulary,
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.feed_forward or 4 * (model.hidden or 0),
        max_position_embeddings=workload.data.sequence_length,
        tie_word_embeddings=model.tie_embeddings,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), model.dropout),
    )


def _check_room(config: PretrainedConfig, vocabulary: int, positions: int) -> None:
    if config.vocab_size < vocabulary:
        raise UsageError(
            f"the tokens need {vocabulary} entries, one of them to hide others; the model has {config.vocab_size}",
            hint="take the tokenizer that belongs to the model",
        )
    if config.max_position_embeddings < positions:
        limit = config.max_position_embeddings
        raise UsageError(f"data.sequence_length ({positions}) is longer than the {limit} positions of the model")


def _built(kind: type, config: PretrainedConfig, workload: Workload) -> nn.Module:
    """With random weights from the seed, or with those of the checkpoint and a new head where it has another."""
    torch.manual_seed(workload.seed)
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        if workload.model.weights == "pretrained":
            options = {"config": config, "use_safetensors": True, "ignore_mismatched_sizes": True}
            model: nn.Module = kind.from_pretrained(str(workload.model.hf), **options)  # type: ignore[attr-defined]
        else:
            model = kind.from_config(config)  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load `{workload.model.hf}`: {error}") from None
    return model.float().train()
