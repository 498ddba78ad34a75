"""Training on preferences: pairs of answers (DPO), single answers with labels (KTO), and reward models.

Symbols: prompt x, answer y, preferred answer y_w of a pair and other answer y_l, model p, reference r, the checkpoint
that the run starts from. The log-probability of an answer is the sum over its tokens.

Shape suffixes: M micro-batches, B samples, C conversations of a sample, T positions, N tokens, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from trainworks.config.run_file import Workload
from trainworks.worker.data.tokenization import Tokenization
from trainworks.worker.loss import IGNORED, ChunkedCrossEntropy
from trainworks.worker.models.adapters import detach_adapters
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.parallel.build import Objective, Parallel, Setup
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling, Task


def preference_task(workload: Workload, language: CausalLanguageModeling, data_folder: Path) -> Task:
    """The task of the method.

    Raises:
        UsageError: a reward model has no token for padding.
    """
    assert workload.preference is not None
    if workload.preference.method == "reward":
        return RewardModeling(workload, language, Tokenization.read(data_folder).padding)
    return (PreferenceTuning if workload.preference.method == "dpo" else LabelTuning)(workload, language)


class Answers(NamedTuple):
    """Conversations of samples."""

    tokens: Tensor
    """[B, C, T]."""
    labels: Tensor
    """[B, C, T]: token that follows, where it belongs to an answer; -100 elsewhere."""
    reference: Tensor
    """[B, C]: log-probabilities of the answers under the reference."""
    kl: Tensor
    """[]: estimate of the divergence from the reference, in nats; 0 for pairs."""


class SampleTask:
    """What the methods have in common: samples of `conversations`, as many in every micro-batch."""

    conversations = 2

    def __init__(self, workload: Workload, language: CausalLanguageModeling) -> None:
        assert workload.preference is not None
        self.preference = workload.preference
        self._workload = workload
        self._language = language

    def num_items(self, batch: Mapping[str, Tensor]) -> None:
        """None: every micro-batch has the same number of samples."""

    def blank_batch(self, num_micro_batches: int) -> dict[str, Tensor]:
        """Zeros, one token of each conversation."""
        batch = self._language.blank_batch(num_micro_batches)
        samples = {name: values.unsqueeze(2).repeat(1, 1, self.conversations, 1) for name, values in batch.items()}
        lengths = torch.ones(samples["x"].shape[:3], dtype=torch.int64)
        return samples | {"lengths": lengths, "values": torch.zeros(lengths.shape[:2])}


class PreferenceTuning(SampleTask):
    """Direct preference optimization (DPO): pairs of answers, compared with a frozen reference.

        m = beta (log p(y_w|x) / r(y_w|x) - log p(y_l|x) / r(y_l|x))        loss = -log sigmoid(m)

    Tokens that both conversations share cancel out. The loss of a batch is the mean over its pairs. Source: Rafailov et
    al. 2023, equation 7. The reference is the model with its adapters switched off, or a frozen copy of the checkpoint.
    """

    def __init__(self, workload: Workload, language: CausalLanguageModeling) -> None:
        super().__init__(workload, language)
        self._model: Parallel | None = None
        self._copy: Parallel | None = None
        """Frozen copy; None with adapters."""

    @property
    def loss(self) -> Objective:
        """Objective of a micro-batch."""
        return functools.partial(dpo_loss, beta=self.preference.beta)

    def build(self, setup: Setup) -> Parallel:
        """The model, and without adapters its frozen copy, which is in 16 bits with `precision: bf16`."""
        self._model = self._language.build(setup)
        self._model.objective = self.loss
        _return_log_probabilities(self._model.parts[0])
        if self._workload.adapter is None:
            dtype = torch.bfloat16 if self._workload.precision == "bf16" else torch.float32
            self._copy = self._language.build(setup, frozen=dtype)
            self._copy.parts[0].eval()
            _return_log_probabilities(self._copy.parts[0])
        return self._model

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Answers, Tensor]:
        """Pairs with the reference's log-probabilities, and labels [M, B]: 0, the place of the preferred answer."""
        tokens, labels = batch["x"], batch["labels"]
        preferred = torch.zeros(labels.shape[:2], dtype=torch.int64, device=labels.device)
        reference = self.of_reference(tokens, labels)
        return Answers(tokens, labels, reference, torch.zeros(len(labels), device=labels.device)), preferred

    def of_reference(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Log-probabilities [M, B, C] under the reference, without dropout."""
        assert self._model is not None
        if self._copy is not None:
            values = _log_probabilities_of(self._copy, tokens, labels)
            self._copy.leave_evaluation()  # it is sharded while the model trains
            return values
        with detach_adapters([self._model.parts[0]]):
            return self.of_model(tokens, labels)

    def of_model(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Log-probabilities [M, B, C] under the model as it is, without dropout and without gradients."""
        assert self._model is not None
        model = self._model.parts[0]
        was_training = model.training
        model.eval()
        values = _log_probabilities_of(self._model, tokens, labels)
        model.train(was_training)
        return values


class LabelTuning(PreferenceTuning):
    """KTO: answers alone, each desirable or not, compared with a frozen reference.

        s = beta log p(y|x) / r(y|x)        k = beta max(0, mean log p(y'|x) / r(y'|x))
        loss = w_d (1 - sigmoid(s - k)) of a desirable answer, w_u (1 - sigmoid(k - s)) of another one

    y' is the answer of the sample before in the micro-batch, the last one for the first; k is a mean over the
    micro-batch of every rank, and has no gradient. The loss of a batch is the mean over its answers. Source:
    Ethayarajh et al. 2024, section 4.1, with the estimate of trl 1.16.
    """

    conversations = 1

    @property
    def loss(self) -> Objective:
        """Objective of a micro-batch."""
        wanted = self.preference
        weights = wanted.undesirable_weight, wanted.desirable_weight
        return functools.partial(kto_loss, beta=wanted.beta, weights=weights)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Answers, Tensor]:
        """Answers with the reference's log-probabilities, and labels [M, B]: 1 if desirable, else 0."""
        tokens, labels = batch["x"], batch["labels"]
        others = exchange_answers(tokens.squeeze(2), labels.squeeze(2), batch["lengths"].squeeze(2))
        both = [torch.cat((own, other.unsqueeze(2)), 2) for own, other in zip((tokens, labels), others, strict=True)]
        reference = self.of_reference(*both)
        of_others = self.of_model(*(other.unsqueeze(2) for other in others))
        kl_M = (of_others[..., 0] - reference[..., 1]).mean(1)
        dist.all_reduce(kl_M)
        kl_M = (kl_M / dist.get_world_size()).clamp(min=0)
        return Answers(tokens, labels, reference[..., :1], kl_M), batch["values"].long()


class Scored(NamedTuple):
    """Pairs of conversations, of which the first is preferred."""

    tokens: Tensor
    """[B, 2, T]."""
    last: Tensor
    """[B, 2]: position of the last token that is not padding."""
    margins: Tensor
    """[B]."""


class RewardModeling(SampleTask):
    """Reward model: a scalar head on the last token scores the preferred answer of a pair higher.

        m = s(x, y_w) - s(x, y_l)        loss = -log sigmoid(m - margin) + c (s(x, y_w) + s(x, y_l))^2

    with c the `center_rewards_coefficient` and the margin of the pair, 0 by default. The loss of a batch is the mean
    over its pairs. Sources: Ouyang et al. 2022, equation 1; Touvron et al. 2023, equation 2; Eisenstein et al. 2023.

    The last token is the last one that is not `padding`, as `transformers` finds it in a row that is filled up with it.
    """

    def __init__(self, workload: Workload, language: CausalLanguageModeling, padding: int) -> None:
        super().__init__(workload, language)
        self._padding = padding

    def build(self, setup: Setup) -> Parallel:
        """The model with its head."""
        model = self._language.build(setup)
        center = self.preference.center_rewards_coefficient or 0.0
        model.objective = functools.partial(reward_loss, center=center)
        return model

    def split(self, batch: Mapping[str, Tensor]) -> tuple[Scored, Tensor]:
        """Pairs with their last tokens, and labels [M, B]: 0, the place of the preferred answer."""
        tokens, lengths = batch["x"], batch["lengths"]
        at = torch.arange(tokens.shape[-1], device=tokens.device)
        last = (at * ((at < lengths.unsqueeze(-1)) & (tokens != self._padding))).argmax(-1)
        preferred = torch.zeros(lengths.shape[:2], dtype=torch.int64, device=tokens.device)
        margins = batch.get("values", preferred.float())
        return Scored(tokens, last, margins), preferred


def dpo_loss(model: nn.Module, pairs: Answers, labels_B: Tensor, *, beta: float) -> Tensor:
    """Mean loss of the pairs that count, those whose label is not -100; 0 if none does.

    Returns:
        [2]: the loss, and the number of pairs with m > 0.
    """
    ratios_B2 = log_probabilities(model, pairs) - pairs.reference
    margins_B = beta * (ratios_B2[:, 0] - ratios_B2[:, 1])
    return _mean(-logsigmoid(margins_B), margins_B > 0, labels_B)


def kto_loss(
    model: nn.Module, answers: Answers, labels_B: Tensor, *, beta: float, weights: tuple[float, float]
) -> Tensor:
    """Mean loss of the answers that count, those whose label is not -100; 0 if none does.

    `weights` are those of undesirable and of desirable answers.

    Returns:
        [2]: the loss, and the number of answers on the right side of the divergence: s > k of desirable ones.
    """
    ratios_B = (log_probabilities(model, answers) - answers.reference).squeeze(1)
    is_desirable = labels_B == 1
    margins_B = beta * (ratios_B - answers.kl)
    gains_B = torch.where(is_desirable, margins_B, -margins_B)
    weights_B = torch.where(is_desirable, weights[1], weights[0])
    return _mean(weights_B * (1 - gains_B.sigmoid()), gains_B > 0, labels_B)


def reward_loss(model: nn.Module, pairs: Scored, labels_B: Tensor, *, center: float) -> Tensor:
    """Mean loss of the pairs that count, those whose label is not -100; 0 if none does.

    Returns:
        [2]: the loss, and the number of pairs whose preferred answer has the higher reward.
    """
    rewards_B2 = model(pairs.tokens.flatten(0, 1), pairs.last.flatten()).float().view(-1, 2)
    margins_B = rewards_B2[:, 0] - rewards_B2[:, 1]
    losses_B = -logsigmoid(margins_B - pairs.margins)
    if center:
        losses_B = losses_B + center * rewards_B2.sum(1).square()
    return _mean(losses_B, margins_B > 0, labels_B)


def _mean(losses_B: Tensor, is_right_B: Tensor, labels_B: Tensor) -> Tensor:
    counts_B = labels_B != IGNORED
    loss = (losses_B * counts_B).sum() / counts_B.sum().clamp(min=1)
    return torch.stack([loss, (is_right_B & counts_B).sum().to(loss.dtype)])


def exchange_answers(tokens: Tensor, labels: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Each prompt with the answer of the sample before it in its micro-batch, cut to T + 1 tokens.

    Args:
        tokens: [M, B, T], each the prompt and its answer.
        labels: [M, B, T]: token that follows, where it belongs to the answer; -100 elsewhere.
        lengths: [M, B] of prompt and answer, at most T + 1.

    Returns:
        Tokens and labels [M, B, T] of the prompts with the other answers.
    """
    counted = torch.nn.functional.pad(labels != IGNORED, (1, 0))
    rows = torch.cat((tokens, labels[..., -1:].clamp(min=0)), -1)  # T + 1: an answer may have the last token
    begins = counted.int().argmax(-1, keepdim=True)
    at = torch.arange(rows.shape[-1], device=rows.device).expand_as(rows)
    source = at - begins + begins.roll(1, 1)
    is_answer = (at >= begins) & (source < lengths.roll(1, 1).unsqueeze(-1))
    source = source.clamp(0, rows.shape[-1] - 1)
    joined = torch.where(at < begins, rows, rows.roll(1, 1).gather(-1, source))
    counts = is_answer & counted.roll(1, 1).gather(-1, source)
    return joined[..., :-1], torch.where(counts, joined, IGNORED)[..., 1:]


def log_probabilities(model: nn.Module, answers: Answers) -> Tensor:
    """Log-probabilities of the answers [B, C] in fp32, of a model that returns those of tokens."""
    values: Tensor = model(answers.tokens.flatten(0, 1), answers.labels.flatten(0, 1))
    return values.view(answers.tokens.shape).sum(-1)


def _log_probabilities_of(parallel: Parallel, tokens: Tensor, labels: Tensor) -> Tensor:
    """Those of all micro-batches, [M, B, C], without gradients."""
    blank = torch.zeros(labels.shape[:3], device=labels.device)
    answers = Answers(tokens, labels, blank, blank[:, 0, 0])
    values = parallel.evaluate(answers, blank, lambda model, row, _: log_probabilities(model, row))
    return values.view(labels.shape[:3])


def _return_log_probabilities(model: nn.Module) -> None:
    """Let a model return log p of each label [N], 0 where it is ignored, instead of their mean loss."""
    if isinstance(model, Decoder):
        assert model.output is not None and isinstance(model.output.loss, ChunkedCrossEntropy)
        model.output.loss = model.output.loss.log_probabilities
        return

    def of_logits(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        return -cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="none")

    from trainworks.worker.models.transformer import CausalTransformer  # noqa: PLC0415  # imports `transformers`

    assert isinstance(model, CausalTransformer)
    model.loss = of_logits
