"""Mixture of experts: a router, feed-forwards of which each token passes some, and a loss that keeps all in use.

Shape suffixes: B sequences, T positions, D hidden, F feed-forward, E experts, X experts per token, M tokens of all
sequences (B * T), R routed copies of tokens (M * X).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (everybody writes it so)

from trainworks.worker.loss import dtype_of_products, local_part


class MixtureOfExperts(nn.Module):
    """Each token passes its best experts, weighted by the router (Mixtral, Jiang et al. 2024). No token is dropped.

    Sizes: D `hidden`, F `feed_forward` of an expert, E `experts`, X `experts_per_token`. With `renormalize` the weights
    of a token's experts add up to 1. `balance_loss` weighs the loss that keeps all experts in use (`ExpertBalance`).
    """

    def __init__(
        self,
        hidden: int,
        feed_forward: int,
        *,
        experts: int,
        experts_per_token: int,
        renormalize: bool,
        balance_loss: float,
    ) -> None:
        super().__init__()
        self.gate = Router(hidden, experts, bias=False)
        self.experts = Experts(hidden, feed_forward, experts)
        self.balance = ExpertBalance(balance_loss)
        self._per_token = experts_per_token
        self._renormalize = renormalize

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]; T are positions of this rank."""
        x_MD = x_BTD.flatten(0, 1)
        probability_BTE = self.gate(x_BTD).softmax(-1)
        weight_BTX, chosen_BTX = probability_BTE.topk(self._per_token, dim=-1)
        if self.balance.weight and torch.is_grad_enabled():
            weight_BTX = self.balance(weight_BTX, probability_BTE, chosen_BTX)
        if self._renormalize:
            weight_BTX = weight_BTX / weight_BTX.sum(-1, keepdim=True)
        chosen_R, order_R = chosen_BTX.flatten().sort(stable=True)
        token_R = order_R // self._per_token
        experts_E = torch.arange(probability_BTE.shape[-1], device=chosen_R.device)
        ends_E = torch.searchsorted(chosen_R, experts_E, right=True)  # `bincount` would let the host wait for a GPU
        counts_E = ends_E.diff(prepend=ends_E.new_zeros(1))
        out_RD = self.experts(x_MD[token_R], counts_E)
        out_RD = out_RD * weight_BTX.flatten()[order_R].unsqueeze(1).to(out_RD.dtype)
        return torch.zeros_like(x_MD).index_add(0, token_R, out_RD.to(x_MD.dtype)).view_as(x_BTD)


class Router(nn.Linear):
    """Logits in fp32 in every precision: two experts that are close must not change places for a rounding."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] to [B, T, E]."""
        with torch.autocast(x_BTD.device.type, enabled=False):
            return F.linear(x_BTD.float(), self.weight.float())


class ExpertBalance:
    """A loss that is least when every sequence uses all experts alike (Switch, Fedus et al. 2021, equation 4, taken per
    sequence as in DeepSeek-V3, Liu et al. 2024, section 2.1.2, so that it is the same in every layout).

        loss = weight * mean over sequences of E * sum_e f_e P_e

    f_e: copies of the sequence's tokens that expert e got, over its tokens; P_e: the router's mean probability of e.
    Balanced experts have sum_e f_e P_e = experts per token / E. The gradient flows through P alone.

    The loss is never added up: pipelines would have to carry it from stage to stage. Its gradient joins where the
    layer's own gradient passes, with the factor that the loss of the model has (as in Megatron-LM).
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.scale: Tensor | float = 1.0
        """Factor of the losses of the present step, before backward."""
        self.sum_over_sequence: Callable[[Tensor], None] | None = None
        """Sums a tensor in place over the ranks that share the positions of a sequence; None if this one has all."""
        self.shards = 1
        """Ranks that share positions and whose gradients are summed, not averaged: those of sequence parallelism."""

    def __call__(self, weight_BTX: Tensor, probability_BTE: Tensor, chosen_BTX: Tensor) -> Tensor:
        """The first argument, with the loss's gradient tied to its own.

        Args:
            weight_BTX: the router's probability of each chosen expert.
            probability_BTE: of every expert.
            chosen_BTX: which ones each token passes.
        """
        num_sequences, positions, experts = probability_BTE.shape
        copies_BE = torch.zeros((num_sequences, experts + 1), device=probability_BTE.device)
        copies_BE.scatter_add_(1, chosen_BTX.flatten(1), torch.ones_like(chosen_BTX, dtype=torch.float32).flatten(1))
        copies_BE[:, -1] = positions
        if self.sum_over_sequence is not None:
            self.sum_over_sequence(copies_BE)
        share_BE = copies_BE[:, :-1] / copies_BE[:, -1:]
        mean_BE = probability_BTE.mean(1) / self.shards
        loss = self.weight * experts * (share_BE * mean_BE).sum(-1).mean()
        joined: Tensor = _Joined.apply(weight_BTX, loss * self.scale)
        return joined


class _Joined(torch.autograd.Function):
    """Hands its first argument on; backward starts from the second one, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones((), dtype=torch.float32, device=grads[0].device)


class Experts(nn.Module):
    """All experts' SwiGLU as grouped matrix products. `dispatch` sends tokens to the ranks that have their experts."""

    def __init__(self, hidden: int, feed_forward: int, experts: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(experts, feed_forward, hidden))
        self.up_proj = nn.Parameter(torch.empty(experts, feed_forward, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, feed_forward))
        self.dispatch: Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor] | None = None

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs [R, D] of tokens sorted by expert, `counts_E` for each."""
        x_RD = x_RD.to(dtype_of_products(x_RD))  # autocast does not know grouped products, and norms leave fp32
        if self.dispatch is None:
            return self.compute(x_RD, counts_E)
        return self.dispatch(self.compute, x_RD, counts_E)

    def compute(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The same with the experts of this rank only."""
        ends_E = counts_E.cumsum(0).to(torch.int32)
        gate_EDF, up_EDF, down_EFD = (
            local_part(weight).to(x_RD.dtype).transpose(-2, -1)
            for weight in (self.gate_proj, self.up_proj, self.down_proj)
        )
        gate_RF = F.silu(F.grouped_mm(x_RD, gate_EDF, offs=ends_E))
        hidden_RF = gate_RF * F.grouped_mm(x_RD, up_EDF, offs=ends_E)
        return F.grouped_mm(hidden_RF, down_EFD, offs=ends_E)
