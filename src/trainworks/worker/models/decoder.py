"""A decoder-only transformer that every layout can cut: Llama, Mistral, Qwen, GPT-2 and Mixtral from one file.

It is independent of meshes. Tensor parallelism replaces its parameters (`parallel/tensor_parallel.py`), pipelines build
it with some of its layers, context parallelism sets `Attention.exchange`.

Shape suffixes: B sequences, T positions, D hidden, N query heads, K key/value heads, H head dimension, F feed-forward,
V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (everybody writes it so)

from trainworks.worker.loss import ChunkedCrossEntropy, local_part
from trainworks.worker.models import attention
from trainworks.worker.models.experts import MixtureOfExperts

Rotation = tuple[Tensor, Tensor] | None
"""Cosine and sine [T, H], or [B, T, H] of documents, of the rotary embedding; None with learned positions."""


class PackedTokens(NamedTuple):
    """Rows of several documents, which do not see each other."""

    tokens: Tensor
    """[B, T] of this rank's positions."""
    positions: Tensor
    """[B, T]: position of each token in its document, 0 where one begins; of the whole rows, on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """Dimensions and the choices in which the families differ."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    max_positions: int
    norm_eps: float = 1e-6
    layer_norm: bool = False
    """LayerNorm with biases instead of RMSNorm."""
    gated_mlp: bool = True
    """SwiGLU instead of GELU (tanh)."""
    learned_positions: bool = False
    rope_frequencies: tuple[float, ...] = ()
    """Radians per position of each pair of head dimensions, H / 2 of them."""
    rope_scale: float = 1.0
    """Factor of cosine and sine (YaRN's attention scale)."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of every query and key head (Qwen3)."""
    tie_embeddings: bool = False
    sliding_window: int = 0
    """Positions that a token sees, itself included; 0 is all of them."""
    dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    renormalize_experts: bool = True
    """Weights of the chosen experts add up to 1."""
    balance_loss: float = 0.0
    """Weight of the loss that keeps all experts in use, see `ExpertBalance`."""
    initializer_range: float = 0.02
    scores: bool = False
    """The output is one number per sequence, a reward, instead of logits."""


class Decoder(nn.Module):
    """Embedding, blocks, norm and output; or the `layers` of them that one pipeline stage has.

    The `first` part looks tokens up, and the `last` one computes logits or the loss. `config` is that of the whole
    model.
    """

    def __init__(
        self, config: DecoderConfig, layers: Iterable[int] | None = None, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.first, self.last = first, last
        # A tied matrix has one name, on the first part and on the last.
        self.embed_tokens = (
            nn.Embedding(config.vocabulary, config.hidden) if first or (last and config.tie_embeddings) else None
        )
        self.embed_positions = (
            nn.Embedding(config.max_positions, config.hidden) if first and config.learned_positions else None
        )
        chosen = range(config.layers) if layers is None else layers
        self.layers = nn.ModuleDict({str(index): DecoderBlock(config) for index in chosen})
        self.norm = _norm(config, config.hidden) if last else None
        has_logits = last and not config.scores
        self.lm_head = (
            nn.Linear(config.hidden, config.vocabulary, bias=False)
            if has_logits and not config.tie_embeddings
            else None
        )
        self.score = nn.Linear(config.hidden, 1, bias=False) if last and config.scores else None
        self.output = None if not last else RewardHead() if config.scores else OutputHead()
        self.first_position = 0
        """First position of this rank, under context parallelism."""
        self.sequence_shards = 1
        """Ranks that share the positions of what passes between parts, under sequence parallelism."""
        self.context_shards = 1
        """Ranks that share the positions of a row, under context parallelism."""
        self.compiled = self.selective = False
        """Whether blocks are compiled, and recomputed selectively."""
        self._rotations: dict[tuple[int, int, torch.device], Rotation] = {}

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers of this part, in order."""
        return list(self.layers.values())

    @property
    def shared_weight(self) -> Tensor | None:
        """The tied matrix, on a first or last part whose other end has it, too."""
        is_shared = self.config.tie_embeddings and self.first != self.last and self.embed_tokens is not None
        return self.embed_tokens.weight if is_shared and self.embed_tokens is not None else None

    @property
    def output_weight(self) -> Tensor:
        """The output matrix."""
        holder = self.score or self.lm_head or self.embed_tokens
        assert holder is not None
        return holder.weight

    def forward(
        self,
        x: Tensor | PackedTokens,
        labels_BT: Tensor | None = None,
        *,
        positions_BT: Tensor | None = None,
        at: int | None = None,
    ) -> Tensor:
        """Hidden states, logits or loss, as far as this part goes.

        Args:
            x: tokens [B, T] for the first part, hidden states [B, T, D] for any other.
            labels_BT: what the last part compares with; entries of -100 do not count. Other parts leave them alone.
                For a reward, the position [B] of the last token of each sequence.
            positions_BT: of packed documents, see `PackedTokens`, which a first part may have instead.
            at: without labels: the position whose logits [B, V] are wanted; all of them [B, T, V] when None.

        Returns:
            [B, T, D], [B, V] or [B, T, V]; with labels the mean cross-entropy in fp32, natural logarithm, shape [1], or
            the rewards [B].
        """
        if isinstance(x, PackedTokens):
            x, positions_BT = x
        length = x.shape[1] * (1 if self.first else self.sequence_shards)
        own_BT = None if positions_BT is None else positions_BT[:, self.first_position : self.first_position + length]
        x_BTD = self._embed(x, own_BT) if self.first else x
        rotation = self._rotation(length, x.device) if own_BT is None else self._rotation_at(own_BT)
        kernel = self._kernel(x_BTD, positions_BT, length * self.context_shards)
        for block in self.layers.values():
            x_BTD = block(x_BTD, rotation, kernel)
        if self.norm is None or self.output is None:
            return x_BTD
        return self.output(self.norm(x_BTD), self.output_weight, labels_BT, at)

    def _kernel(self, x: Tensor, positions_BT: Tensor | None, positions: int) -> attention.Kernel:
        """The attention of all blocks, which sees whole rows."""
        config = self.config
        task = attention.attention_task(
            x,
            head_dim=config.head_dim,
            positions=positions,
            documents=positions_BT is not None,
            window=config.sliding_window,
            dropout=self.training and config.dropout > 0,
            flex=self.compiled or not self.selective,  # the modes of recomputation keep it from being compiled alone
        )
        return attention.kernel_of(task, x, positions_BT, compiled=self.compiled)

    def _embed(self, tokens_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        assert self.embed_tokens is not None
        x_BTD: Tensor = self.embed_tokens(tokens_BT)
        if self.embed_positions is not None:
            if positions_BT is None:
                start = self.first_position
                positions_BT = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device).unsqueeze(0)
            x_BTD = x_BTD + self.embed_positions(positions_BT)
        return F.dropout(x_BTD, self.config.dropout, self.training)

    def _rotation(self, positions: int, device: torch.device) -> Rotation:
        """Computed once per length. It is not a buffer, so checkpoints and meta devices do not contain it."""
        if self.config.learned_positions:
            return None
        start = self.first_position
        key = positions, start, device
        if key not in self._rotations:
            frequencies = _frequencies(self.config.rope_frequencies, device)
            angle = torch.arange(start, start + positions, device=device, dtype=torch.float32).outer(frequencies)
            angle_TH = torch.cat((angle, angle), dim=-1)
            scale = self.config.rope_scale
            self._rotations = {key: (angle_TH.cos() * scale, angle_TH.sin() * scale)}
        return self._rotations[key]

    def _rotation_at(self, positions_BT: Tensor) -> Rotation:
        """The same at the positions of documents."""
        if self.config.learned_positions:
            return None
        frequencies = _frequencies(self.config.rope_frequencies, positions_BT.device)
        angle_BTH = (positions_BT.float().unsqueeze(-1) * frequencies).repeat(1, 1, 2)
        return angle_BTH.cos() * self.config.rope_scale, angle_BTH.sin() * self.config.rope_scale

    def initial_std(self, name: str) -> float | None:
        """Standard deviation of a parameter's first values; None for ones (norms), 0 for zeros (biases).

        GPT-2 divides that of the projections into the residual stream by sqrt(2 * layers) (Radford et al. 2019).
        """
        if name.endswith("bias"):
            return 0.0
        if "norm" in name:
            return None
        residual = self.config.learned_positions and name.endswith(("o_proj.weight", "down_proj.weight"))
        return self.config.initializer_range / (math.sqrt(2 * self.config.layers) if residual else 1.0)


class OutputHead(nn.Module):
    """Logits or loss of the last hidden states. Tensor parallelism replaces `loss` and the gathers."""

    def __init__(self) -> None:
        super().__init__()
        self.loss: Callable[[Tensor, Tensor, Tensor], Tensor] = ChunkedCrossEntropy()
        self.watch: Callable[..., None] | None = None
        """Called in evaluation with what the model predicts."""
        self.gather_positions: Callable[[Tensor], Tensor] = _identity
        self.gather_logits: Callable[[Tensor], Tensor] = _identity

    def compile_loss(self) -> None:
        """See `ChunkedCrossEntropy.compile`."""
        if isinstance(self.loss, ChunkedCrossEntropy):
            self.loss.compile()

    def forward(self, x_BTD: Tensor, weight_VD: Tensor, labels_BT: Tensor | None, at: int | None) -> Tensor:
        """See `Decoder.forward`."""
        x_BTD = self.gather_positions(x_BTD)
        if labels_BT is not None:
            if self.watch is not None and isinstance(self.loss, ChunkedCrossEntropy):
                self.watch(*self.loss.predictions(x_BTD.flatten(0, 1), weight_VD, labels_BT.flatten()))
            return self.loss(x_BTD.flatten(0, 1), weight_VD, labels_BT.flatten())
        return self.gather_logits(F.linear(x_BTD if at is None else x_BTD[:, at], local_part(weight_VD)))


class RewardHead(OutputHead):
    """One number of the hidden state of each sequence's last token."""

    def forward(self, x_BTD: Tensor, weight_VD: Tensor, labels_BT: Tensor | None, at: int | None) -> Tensor:
        """Rewards [B]; `weight_VD` is [1, D], and `labels_BT` [B] the positions of the last tokens."""
        assert labels_BT is not None
        x_BTD = self.gather_positions(x_BTD)
        rows = torch.arange(len(x_BTD), device=x_BTD.device)
        return F.linear(x_BTD[rows, labels_BT], local_part(weight_VD)).squeeze(-1)


def _identity(x: Tensor) -> Tensor:
    return x


class DecoderBlock(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = _norm(config, config.hidden)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = _norm(config, config.hidden)
        self.mlp = _experts(config) if config.experts else FeedForward(config)
        self._dropout = config.dropout

    def forward(self, x_BTD: Tensor, rotation: Rotation, kernel: attention.Kernel) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        x_BTD = x_BTD + self._drop(self.self_attn(self.input_layernorm(x_BTD), rotation, kernel))
        return x_BTD + self._drop(self.mlp(self.post_attention_layernorm(x_BTD)))

    def _drop(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(x_BTD, self._dropout, self.training) if self._dropout else x_BTD


class Attention(nn.Module):
    """Causal grouped-query attention. `exchange` trades sequence parts for head parts under context parallelism."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, query, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden, key, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden, key, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query, config.hidden, bias=config.out_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.exchange: Callable[[Attend, Tensor, Tensor, Tensor], Tensor] | None = None
        self._head_dim = config.head_dim
        self._dropout = config.dropout

    def forward(self, x_BTD: Tensor, rotation: Rotation, kernel: attention.Kernel) -> Tensor:
        """[B, T, D] to [B, T, D]; T are positions of this rank, and whole rows in the kernel."""
        q_BTNH, k_BTKH, v_BTKH = (
            projection(x_BTD).unflatten(-1, (-1, self._head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        if rotation is not None:
            q_BTNH, k_BTKH = _rotate(q_BTNH, rotation), _rotate(k_BTKH, rotation)
        attend = functools.partial(kernel, dropout=self._dropout if self.training else 0.0)
        if self.exchange is None:
            out_BTNH = attend(q_BTNH, k_BTKH, v_BTKH)
        else:
            out_BTNH = self.exchange(attend, q_BTNH, k_BTKH, v_BTKH)
        out_BTD: Tensor = self.o_proj(out_BTNH.flatten(2))
        return out_BTD


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A kernel of attention with its dropout."""


@functools.cache
def _frequencies(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Copied to the device once: the host waits for such a copy."""
    return torch.tensor(values, device=device, dtype=torch.float32)


def _rotate(x_BTNH: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding over the halves of each head (Su et al. 2021, in the order of Hugging Face weights)."""
    cos, sin = (part.to(x_BTNH.dtype).unsqueeze(-2) for part in rotation)
    left, right = x_BTNH.chunk(2, dim=-1)
    return x_BTNH * cos + torch.cat((-right, left), dim=-1) * sin


def _experts(config: DecoderConfig) -> MixtureOfExperts:
    return MixtureOfExperts(
        config.hidden,
        config.feed_forward,
        experts=config.experts,
        experts_per_token=config.experts_per_token,
        renormalize=config.renormalize_experts,
        balance_loss=config.balance_loss,
    )


class FeedForward(nn.Module):
    """SwiGLU, or two projections with GELU (tanh) in between."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        gated = config.gated_mlp
        self.gate_proj = nn.Linear(config.hidden, config.feed_forward, bias=config.mlp_bias) if gated else None
        self.up_proj = nn.Linear(config.hidden, config.feed_forward, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden, bias=config.mlp_bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        up_BTF = self.up_proj(x_BTD)
        if self.gate_proj is None:
            act_BTF = F.gelu(up_BTF, approximate="tanh")
        else:
            act_BTF = F.silu(self.gate_proj(x_BTD)) * up_BTF
        out_BTD: Tensor = self.down_proj(act_BTF)
        return out_BTD


def _norm(config: DecoderConfig, width: int) -> nn.Module:
    if config.layer_norm:
        return nn.LayerNorm(width, eps=config.norm_eps)
    return nn.RMSNorm(width, eps=config.norm_eps)
