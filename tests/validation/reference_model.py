"""A transformer in the fused operations that the planner's memory model assumes, and no other.

On a GPU `nn.RMSNorm` is one kernel that keeps its input; on a CPU PyTorch takes it apart and keeps copies in fp32. The
fused kernels are written out here as what they keep and return, since fake tensors have no values to compute.
Letters of the shapes: B sequences, T tokens, H heads, D head dimension, F feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Sizes:
    """Dimensions of the model, in the words of the run file."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 16
    feed_forward: int = 2816
    vocabulary: int = 32000
    gated: bool = True
    experts: int = 0
    experts_per_token: int = 0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class FusedNorm(nn.Module):
    """RMSNorm or, without a gate, LayerNorm as one kernel: keeps its input and a number per token."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = _Norm.apply(x, self.weight)
        return normed


class _Norm(torch.autograd.Function):
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


class _FusedCrossEntropy(torch.autograd.Function):
    """Logits to loss as Megatron-LM does it: fp32 probabilities, which become the gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits.float())
        ctx.dtype = logits.dtype
        return torch.empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        return probabilities.to(ctx.dtype), None


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.head_dim = sizes.head_dim
        self.query = nn.Linear(sizes.hidden, width, bias=False)
        self.key = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.value = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.output = nn.Linear(width, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended_BHTD = scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.output(attended_BHTD.transpose(1, 2).flatten(-2))
        return projected


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.feed_forward, bias=False) if sizes.gated else None
        self.up = nn.Linear(sizes.hidden, sizes.feed_forward, bias=False)
        self.down = nn.Linear(sizes.feed_forward, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            product_BTF = gelu(self.up(x))
        else:
            product_BTF = _GatedProduct.apply(self.gate(x), self.up(x))
        projected: Tensor = self.down(product_BTF)
        return projected


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = FusedNorm(sizes.hidden)
        self.attention = Attention(sizes)
        self.mlp_norm = FusedNorm(sizes.hidden)
        self.mlp = Mlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Tokens [B, T] to the loss."""

    def __init__(self, sizes: Sizes, *, recompute: bool = False, fused_loss: bool = True) -> None:
        super().__init__()
        self.recompute, self.fused_loss = recompute, fused_loss
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = FusedNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))
        if self.fused_loss:
            loss: Tensor = _FusedCrossEntropy.apply(logits, tokens)
            return loss
        return cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
