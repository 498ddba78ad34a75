"""A small diffusion transformer, written out in PyTorch after the papers: DiT, MMDiT, Flux and Wan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainworks.record.model_shape import ModelShape


class _Attention(nn.Module):
    """Queries, keys and values with biases; `norms` of queries and keys have `norms` weights each."""

    def __init__(self, hidden: int, *, output: bool = True, norms: int = 0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.o = nn.Linear(hidden, hidden) if output else None
        self.norms = nn.ParameterList([torch.empty(norms) for _ in range(2 if norms else 0)])

    def project(self, x: Tensor, context: Tensor | None = None) -> list[Tensor]:
        context = x if context is None else context
        return [self.q(x), self.k(context), self.v(context)]


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
    return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)


class _Layer(nn.Module):
    """One layer of a kind: `dit`, `wan`, `double` and `last` with a stream of text, or `single`."""

    def __init__(self, kind: str, hidden: int, width: int, heads: int, norms: int) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        self.attention = _Attention(hidden, output=kind != "single", norms=norms)
        self.up = nn.Linear(hidden, width)
        self.down = nn.Linear(width + hidden * (kind == "single"), hidden)
        factor = {"single": 3, "wan": 0}.get(kind, 6)
        self.modulation = nn.Linear(hidden, factor * hidden) if factor else None
        if kind == "wan":
            self.table = nn.Parameter(torch.empty(6, hidden))
            self.crossing, self.norm = _Attention(hidden, norms=norms), nn.LayerNorm(hidden)
        if kind in ("double", "last"):
            self.of_text = _Attention(hidden, output=kind == "double", norms=norms)
            self.modulation_of_text = nn.Linear(hidden, (6 if kind == "double" else 2) * hidden)
        if kind == "double":
            self.mlp_of_text = nn.Sequential(nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, hidden))

    def forward(self, x: Tensor, text: Tensor | None, condition: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.modulation is not None:
            self.modulation(condition)
        projected = self.attention.project(x)
        if self.kind in ("double", "last") and text is not None:
            self.modulation_of_text(condition)
            both = zip(self.of_text.project(text), projected, strict=True)
            mixed = _attend(*(torch.cat(pair, dim=1) for pair in both), self.heads)
            of_text, mixed = mixed[:, : text.shape[1]], mixed[:, text.shape[1] :]
            if self.of_text.o is not None:
                text = text + self.of_text.o(of_text)
                text = text + self.mlp_of_text(text)
        else:
            mixed = _attend(*projected, self.heads)
        if self.attention.o is None:
            return x + self.down(torch.cat([mixed, self.up(x)], dim=-1)), text
        x = x + self.attention.o(mixed)
        if self.kind == "wan" and text is not None and self.crossing.o is not None:
            x = x + self.crossing.o(_attend(*self.crossing.project(x, text), self.heads))
        return x + self.down(self.up(x)), text


def _embedder(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden))


class Denoiser(nn.Module):
    """The model of a diffusers config, but for its positions, which have no weights."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        name, heads = config["_class_name"].removesuffix("DModel"), config["num_attention_heads"]
        hidden, layers = heads * config["attention_head_dim"], config["num_layers"]
        channels = config.get("in_channels", 16)
        area = {"FluxTransformer2": 1}.get(name, 4)
        kinds, text, pooled, norms = {
            "DiT": (["dit"] * layers, 0, 0, 0),
            "SD3Transformer2": (["double"] * (layers - 1) + ["last"], 24, 12, 0),
            "FluxTransformer2": (["double"] * layers + ["single"] * config.get("num_single_layers", 0), 20, 9, 16),
            "WanTransformer3": (["wan"] * layers, 24, 0, hidden),
        }[name]
        width = config.get("ffn_dim", 4 * hidden)
        self.patch = nn.Linear(area * channels, hidden)
        self.times = config.get("freq_dim", 256)
        self.time = _embedder(self.times, hidden)
        self.classes = nn.Embedding(config["num_embeds_ada_norm"] + 1, hidden) if name == "DiT" else None
        self.pooled = _embedder(pooled, hidden) if pooled else None
        self.pooled_width, self.text_width = pooled, text
        single = nn.Linear(text, hidden) if text else None
        self.text = _embedder(text, hidden) if name == "WanTransformer3" else single
        self.layers = nn.ModuleList(_Layer(kind, hidden, width, heads, norms) for kind in kinds)
        self.shared = nn.Linear(hidden, 6 * hidden) if name == "WanTransformer3" else None
        self.final_table = nn.Parameter(torch.empty(2, hidden)) if name == "WanTransformer3" else None
        self.final = None if name == "WanTransformer3" else nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, area * config.get("out_channels", channels))

    def inputs(self, batch: int, shape: ModelShape) -> tuple[Tensor, ...]:
        """Patches, time, text and pooled text of a batch."""
        assert shape.diffusion is not None
        patches = shape.max_sequence_length - shape.diffusion.text_in_sequence
        sizes = (patches, self.patch.in_features), (shape.diffusion.text_tokens, self.text_width)
        x, text = (torch.empty(batch, *size) for size in sizes)
        return x, torch.empty(batch, self.times), text, torch.empty(batch, self.pooled_width)

    def forward(self, x: Tensor, time: Tensor, text: Tensor, pooled: Tensor) -> Tensor:
        """The predicted noise of each patch."""
        patches = x.shape[1]
        x, condition = self.patch(x), self.time(time)
        condition = condition if self.pooled is None else condition + self.pooled(pooled)
        for each in (self.shared, self.final):
            if each is not None:
                each(condition)
        words = None if self.text is None else self.text(text)
        for layer in self.layers:
            if layer.kind == "single" and words is not None:
                x, words = torch.cat([words, x], dim=1), None
            x, words = layer(x, words, condition)
        noise: Tensor = self.out(x[:, -patches:])
        return noise
