"""Direct preference optimization (DPO): pairs of answers, compared with a frozen reference.

With prompt x, preferred answer y_w, other answer y_l, model p and reference r, the checkpoint that the run starts from:

    m = beta (log p(y_w|x) / r(y_w|x) - log p(y_l|x) / r(y_l|x))        loss = -log sigmoid(m)

The log-probability of an answer is the sum over its tokens; those that both conversations share cancel out. The loss
of a batch is the mean over its pairs. Source: Rafailov et al. 2023, equation 7.

Shape suffixes: M micro-batches, B pairs, T positions, N tokens, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from trainworks.config.run_file import Workload
from trainworks.worker.loss import IGNORED, ChunkedCrossEntropy
from trainworks.worker.models.adapters import without_adapters
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.transformer import CausalTransformer
from trainworks.worker.parallel.build import Parallel, Setup
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling


class Pairs(NamedTuple):
    """Pairs of conversations; the first of each is preferred."""

    tokens: Tensor
    """[B, 2, T]."""
    labels: Tensor
    """[B, 2, T]: token that follows, where it belongs to an answer; -100 elsewhere."""
    reference: Tensor
    """[B, 2]: log-probabilities of the answers under the reference."""


class PreferenceTuning:
    """DPO. The reference is the model with its adapters switched off, or a frozen copy of the checkpoint.

    Args:
        workload: of the run file, with `preference`.
        language: builds the model.
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
        with without_adapters([model]):
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
    """Let a model return log p of each label [N] instead of their mean loss."""
    if isinstance(model, Decoder):
        assert model.output is not None and isinstance(model.output.loss, ChunkedCrossEntropy)
        model.output.loss = model.output.loss.log_probabilities
    else:
        assert isinstance(model, CausalTransformer)
        model.loss = _of_logits


def _of_logits(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """Log p [N] of each label, 0 where it is ignored."""
    return -cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="none")
