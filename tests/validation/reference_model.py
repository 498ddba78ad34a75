"""A transformer in the fused operations that the planner's memory model assumes, and no others.

On a GPU, `nn.RMSNorm` and SwiGLU are one kernel each, which keeps its inputs; on a CPU, PyTorch takes them apart and
keeps copies in fp32. They stand here as what they keep and return, since fake tensors have no values to compute.
Attention, LayerNorm, GELU, dropout and the matrix products are PyTorch's own.

Letters of the shapes: B sequences, T tokens, H heads, D head dimension, F feed-forward, E experts, C rows of an expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from trainworks.plan.layouts import Recompute

_DROPOUT = 0.1


@dataclass(frozen=True)
class Sizes:
    """The model, in the words of the run file, and how it computes."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 16
    feed_forward: int = 2816
    vocabulary: int = 32000
    gated: bool = True
    """False is GPT-2: LayerNorm, GELU, learned positions, one matrix for input and output."""
    max_sequence_length: int = 2048
    experts: int = 0
    experts_per_token: int = 0
    fused_attention: bool = True
    """False also means dropout, after the attention, the MLP and inside the attention."""
    fused_loss: bool = True
    recompute: Recompute = Recompute.NONE

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Transformer(nn.Module):
    """Tokens [B, T] to the loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = None if sizes.gated else nn.Parameter(torch.empty(sizes.max_sequence_length, sizes.hidden))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = _norm(sizes)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        if not sizes.gated:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.sizes.recompute == Recompute.FULL else block(x)
        logits = self.head(self.norm(x))
        if self.sizes.fused_loss:
            loss: Tensor = FusedCrossEntropy.apply(logits)
            return loss
        return cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = _norm(sizes)
        self.attention = Attention(sizes)
        self.mlp_norm = _norm(sizes)
        self.mlp = Experts(sizes) if sizes.experts else Mlp(sizes)
        self.drops = not sizes.fused_attention

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.attention(self.attention_norm(x)))
        return x + self._dropped(self.mlp(self.mlp_norm(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, _DROPOUT, train=True)[0] if self.drops else x


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.sizes = sizes
        bias = not sizes.gated
        self.query = nn.Linear(sizes.hidden, width, bias=bias)
        self.key = nn.Linear(sizes.hidden, kv_width, bias=bias)
        self.value = nn.Linear(sizes.hidden, kv_width, bias=bias)
        self.output = nn.Linear(width, sizes.hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended_BHTD = self._attended(query, key, value)
        projected: Tensor = self.output(attended_BHTD.transpose(1, 2).flatten(-2))
        return projected

    def _attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.sizes.fused_attention:
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        if self.sizes.recompute == Recompute.SELECTIVE:
            attended: Tensor = checkpoint(_unfused_attention, query, key, value, use_reentrant=False)
            return attended
        return _unfused_attention(query, key, value)


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keeps the softmax [B, H, T, T], the dropout's mask, and what the dropout leaves."""
    scores_BHTT = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights_BHTT = torch.native_dropout(scores_BHTT.softmax(-1), _DROPOUT, train=True)[0]
    return weights_BHTT @ value


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.feed_forward, bias=False) if sizes.gated else None
        self.up = nn.Linear(sizes.hidden, sizes.feed_forward, bias=not sizes.gated)
        self.down = nn.Linear(sizes.feed_forward, sizes.hidden, bias=not sizes.gated)

    def forward(self, x: Tensor) -> Tensor:
        product_BTF = gelu(self.up(x)) if self.gate is None else _GatedProduct.apply(self.gate(x), self.up(x))
        projected: Tensor = self.down(product_BTF)
        return projected


class Experts(nn.Module):
    """Every token visits k experts, which all get as many rows; grouped products over rows sorted by expert."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.router = nn.Linear(sizes.hidden, sizes.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(sizes.experts, sizes.hidden, sizes.feed_forward))
        self.up = nn.Parameter(torch.empty(sizes.experts, sizes.hidden, sizes.feed_forward))
        self.down = nn.Parameter(torch.empty(sizes.experts, sizes.feed_forward, sizes.hidden))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        num_chosen = self.sizes.experts_per_token
        shares, chosen = self.router(rows).softmax(-1).topk(num_chosen)
        order = chosen.flatten().argsort()
        sorted_ECH = rows[order // num_chosen].unflatten(0, (self.sizes.experts, -1))
        product_ECF = _GatedProduct.apply(sorted_ECH @ self.gate, sorted_ECH @ self.up)
        weighted = (product_ECF @ self.down).flatten(0, 1) * shares.flatten()[order].unsqueeze(-1)
        return weighted[order.argsort()].unflatten(0, (-1, num_chosen)).sum(1).view_as(x)


def _norm(sizes: Sizes) -> nn.Module:
    return FusedRmsNorm(sizes.hidden) if sizes.gated else nn.LayerNorm(sizes.hidden)


class FusedRmsNorm(nn.Module):
    """RMSNorm as one kernel: keeps its input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = _RmsNorm.apply(x, self.weight)
        return normed


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _GatedProduct(torch.autograd.Function):
    """silu(gate) * up as one kernel: keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


class FusedCrossEntropy(torch.autograd.Function):
    """Logits to loss as Megatron-LM does it: fp32 probabilities, which become the gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits.float())
        ctx.dtype = logits.dtype
        return logits.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (probabilities,) = ctx.saved_tensors
        returned: Tensor = probabilities.to(ctx.dtype)
        return returned
