"""The plain loop: a model of `transformers` in one process, computed eagerly, and the AdamW of torch."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from transformers import AutoModelForCausalLM

from tests.worker.parallel.random_layouts import STEPS, Case
from trainworks.config.finetune import Adapter
from trainworks.config.layout import stage_layers

Curve = tuple[list[float], list[float]]
"""Losses and gradient norms before clipping, by step."""


def plain_loop(case: Case, adapters: Mapping[str, np.ndarray]) -> Curve:
    """What the ranks have to reproduce.

    Args:
        case: what is trained.
        adapters: first values of A by the name of the layer; empty without an adapter.
    """
    model = AutoModelForCausalLM.from_pretrained(
        str(case.workload.model.hf), attn_implementation="eager", dtype=torch.float32
    ).train()
    if case.workload.adapter is not None:
        _adapt(model, case.workload.adapter, adapters)
    settings = case.workload.optimizer
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    losses, norms = [], []
    for step in range(STEPS):
        loss, balance = _loss(model, case, step)
        (loss + balance).backward()
        limit = float("inf") if settings.clip_grad_norm is None else settings.clip_grad_norm
        norms.append(nn.utils.clip_grad_norm_(trained, limit).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def _loss(model: nn.Module, case: Case, step: int) -> tuple[Tensor, Tensor | float]:
    """Mean cross-entropy over all labels of the batch that count, and the loss that balances experts."""
    batch = {name: torch.from_numpy(values[step]) for name, values in case.batches.items()}
    x = batch["x"] if "x" in batch else batch["tokens"][:, :-1]
    labels = batch["labels"] if "labels" in batch else batch["tokens"][:, 1:]
    if case.dropout:
        return cross_entropy(_dropped_logits(model, case, x, step).flatten(0, 1), labels.flatten()), 0.0
    total, routed = torch.zeros(()), _Routed()
    for rows, columns in _documents(batch.get("positions"), x):
        piece = x[rows.unsqueeze(1), columns]
        options = {"output_router_logits": True} if case.shape.experts else {}
        output = model(input_ids=piece, use_cache=False, **options)
        own = labels[rows.unsqueeze(1), columns].flatten()
        total = total + cross_entropy(output.logits.flatten(0, 1).float(), own, reduction="sum")
        if case.shape.experts:
            routed.add(rows, output.router_logits)
    weight = _balance_weight(model.config, case)
    balance = weight * routed.balance(case.shape.experts_per_token) if weight else 0.0
    return total / (labels != -100).sum(), balance


def _documents(positions: Tensor | None, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and columns [n, t] of the documents of each length; they are computed alone, so that none sees another."""
    if positions is None:
        yield torch.arange(len(x)), torch.arange(x.shape[1]).expand(len(x), -1)
        return
    by_length = defaultdict(list)
    for row, of_row in enumerate(positions.tolist()):
        starts = [column for column, position in enumerate(of_row) if position == 0]
        for start, end in zip(starts, [*starts[1:], len(of_row)], strict=True):
            by_length[end - start].append((row, start))
    for length, found in by_length.items():
        rows, starts = torch.tensor(found).T
        yield rows, starts.unsqueeze(1) + torch.arange(length)


class _Routed:
    """Router probabilities of every layer by row of the batch."""

    def __init__(self) -> None:
        self._by_row: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)

    def add(self, rows: Tensor, router_logits: tuple[Tensor, ...]) -> None:
        """Logits of each layer [n * t, E] of documents in these rows."""
        for layer, logits in enumerate(router_logits):
            for row, of_document in zip(rows.tolist(), logits.view(len(rows), -1, logits.shape[-1]), strict=True):
                self._by_row[layer, row].append(of_document.softmax(-1))

    def balance(self, per_token: int) -> Tensor:
        """Sum over layers of the mean over rows of E * sum_e f_e P_e."""
        values = defaultdict(list)
        for (layer, _), pieces in self._by_row.items():
            probability = torch.cat(pieces)
            experts = probability.shape[-1]
            share = one_hot(probability.topk(per_token, dim=-1).indices, experts).sum(1).float().mean(0)
            values[layer].append(experts * (share * probability.mean(0)).sum())
        return torch.stack([torch.stack(of_rows).mean() for of_rows in values.values()]).sum()


def _balance_weight(config: Any, case: Case) -> float:
    """That of the run file; else that of `transformers`, which adds the loss with `output_router_logits` alone."""
    if not case.shape.experts or case.workload.model.balance_loss is not None:
        return case.workload.model.balance_loss or 0.0
    return config.router_aux_loss_coef if config.output_router_logits else 0.0


def _dropped_logits(model: nn.Module, case: Case, x: Tensor, step: int) -> Tensor:
    """Logits of GPT-2 with the draws of the ranks.

    Each seeds itself by (seed, step, rank), and computes its stage of one micro-batch after the other.
    """
    layout, body = case.layout, model.transformer
    length = x.shape[1]
    mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
    stages = stage_layers(layout, case.shape.layers)
    pieces = x.view(layout.grad_accum_steps, layout.dp, layout.micro_batch, length)
    logits = torch.empty(*pieces.shape, case.shape.vocabulary)
    for rank in range(layout.dp):
        states = [_seeded(case.workload.seed, step + 1, stage * layout.dp + rank) for stage in range(layout.pp)]
        for index in range(layout.grad_accum_steps):
            hidden = body.wte(pieces[index, rank]) + body.wpe(torch.arange(length))
            for stage, layers in enumerate(stages):
                torch.set_rng_state(states[stage])
                hidden = body.drop(hidden) if stage == 0 else hidden
                for layer in layers:
                    output = body.h[layer](hidden, attention_mask=mask)
                    hidden = output[0] if isinstance(output, tuple) else output
                states[stage] = torch.get_rng_state()
            logits[index, rank] = model.lm_head(body.ln_f(hidden))
    return logits.flatten(0, 2)


def _seeded(seed: int, step: int, rank: int) -> Tensor:
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]))
    return torch.get_rng_state()


def _adapt(model: nn.Module, adapter: Adapter, first: Mapping[str, np.ndarray]) -> None:
    """W x + alpha / rank * B A x of the layers that have an A; all other weights are frozen.

    With DoRA the rows of the sum of W and alpha / rank * B A have the norms that train, those of W at first.
    """
    model.requires_grad_(False)
    layers = {name: module for name, module in model.named_modules() if name.removeprefix("model.") in first}
    assert len(layers) == len(first)
    for name, layer in layers.items():
        down = nn.Parameter(torch.from_numpy(first[name.removeprefix("model.")]).clone())
        up = nn.Parameter(torch.zeros(layer(torch.zeros(1, down.shape[1])).shape[1], adapter.rank))
        layer.register_parameter("lora_down", down)
        layer.register_parameter("lora_up", up)
        scale = adapter.alpha / adapter.rank
        layer.forward = functools.partial(_adapted, layer.forward, down, up, scale)
        if adapter.use_dora:
            weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T
            magnitudes = nn.Parameter(weight.detach().norm(dim=1))
            layer.register_parameter("lora_magnitudes", magnitudes)
            layer.forward = functools.partial(_with_magnitudes, weight, layer.bias, magnitudes, down, up, scale)


def _adapted(forward: Any, down: Tensor, up: Tensor, scale: float, x: Tensor) -> Tensor:
    return forward(x) + x @ down.T @ up.T * scale


def _with_magnitudes(
    weight: Tensor, bias: Tensor | None, magnitudes: Tensor, down: Tensor, up: Tensor, scale: float, x: Tensor
) -> Tensor:
    """A product with the whole weight that an adapter of DoRA stands for."""
    whole = weight + scale * up @ down
    norms = whole.detach().norm(dim=1, keepdim=True)
    return nn.functional.linear(x, magnitudes.unsqueeze(1) * whole / norms, bias)
