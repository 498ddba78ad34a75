"""Random models, data and layouts of up to eight ranks, which the rules of the product accept."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.config.run_file import Workload
from trainworks.errors import TrainworksError
from trainworks.plan.run.trainable import check_trainable
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.record.model_shape import ModelShape
from trainworks.worker.loss import IGNORED
from trainworks.worker.models.support import loaded_config, support_of

STEPS = 2
"""The second one starts from weights and moments that the first one has changed; it is made again after a restart."""
_MOST_RANKS = 8
_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
_DECODERS = ("llama", "llama", "mistral", "qwen2", "qwen3", "gpt2", "mixtral", "qwen3_moe")
_MODULES = ("olmo2", "gemma", "granite")
"""Models that the worker trains as `transformers` computes them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the ranks train, and what the plain loop trains."""

    seed: int
    workload: Workload
    layout: ResolvedLayout
    shape: ModelShape
    batches: dict[str, np.ndarray]
    """By name [steps, global batch, ...]: `tokens`, or `x` and `labels`, perhaps with `positions`."""
    dropout: float = 0.0

    @property
    def is_packed(self) -> bool:
        """Rows hold several documents."""
        return "positions" in self.batches

    def describe(self) -> str:
        """The case in one line, for the message of a test that fails."""
        config = json.loads((Path(str(self.workload.model.hf)) / "config.json").read_text())
        kind = "packed" if self.is_packed else "chats" if "labels" in self.batches else "tokens"
        tied = "tied" if self.shape.tie_embeddings else "untied"
        shape = (
            f"{self.shape.layers} layers, {self.shape.heads}/{self.shape.kv_heads} heads, {self.shape.vocabulary} rows"
        )
        adapter = self.workload.adapter
        more = {"experts": self.shape.experts, "dropout": self.dropout, "adapter": adapter.title if adapter else ""}
        extra = "".join(f", {name} {value}" for name, value in more.items() if value)
        return f"seed {self.seed}: {config['model_type']} ({shape}, {tied}{extra}), {kind}, {self.layout.describe()}"


def draw(seed: int, folder: Path) -> tuple[Case, list[TrainworksError]]:
    """The case of a seed, with its model in a folder, and the refusals of those that were drawn before it."""
    chance = random.Random(seed)
    refused: list[TrainworksError] = []
    while True:
        config = _config(chance)
        written = _layout(chance, config)
        adapter = {"rank": 4, "use_dora": seed % 2 == 1} if chance.random() < 0.25 else None
        batch = _batch(chance, written)
        folder.mkdir(exist_ok=True)
        AutoConfig.for_model(**config).save_pretrained(folder)
        try:
            return _case(seed, folder, config, written, batch, adapter, chance), refused
        except TrainworksError as error:
            refused.append(error)


def _case(
    seed: int,
    folder: Path,
    config: dict[str, Any],
    written: dict[str, Any],
    batch: tuple[int, int],
    adapter: dict[str, Any] | None,
    chance: random.Random,
) -> Case:
    """A case that the rules accept.

    Raises:
        TrainworksError: they refuse it.
    """
    global_batch, micro_batch = batch
    model: dict[str, Any] = {"hf": str(folder), "weights": "pretrained"}
    if "experts" in "".join(config) and chance.random() < 0.6:
        model["balance_loss"] = chance.choice([0.0, 0.1])
    workload = Workload.model_validate(
        {
            "task": "causal-lm",
            "model": model,
            "data": {"source": "unused", "sequence_length": config["max_position_embeddings"]},
            "precision": "fp32",
            "global_batch": global_batch,
            "train_for": f"{STEPS} steps",
            "optimizer": {"lr": 1e-2, "eps": 1e-3, "schedule": "constant"}
            | chance.choice([{}, {"weight_decay": 0.0}, {"clip_grad_norm": None}, {"clip_grad_norm": 0.05}]),
            "adapter": adapter,
        }
    )
    shape = shape_of_hf_config(json.loads((folder / "config.json").read_text()))
    layout = Layout.model_validate(written)
    world_size = math.prod(written[axis] for axis in _AXES)
    resolved = resolve_layout(layout, world_size=world_size, global_batch=global_batch, micro_batch=micro_batch)
    support = support_of(loaded_config(workload.model), adapted=adapter is not None)
    check_trainable(resolved, workload, shape, support)
    is_staged = adapter is not None and resolved.pp > 1  # each stage of a module draws as if it looked tokens up
    dropout = 0.0 if is_staged else _dropout(config, resolved, chance)
    kind = chance.choice(
        ["tokens", "chats"] if dropout or config["model_type"] in _MODULES else ["tokens", "chats", "packed"]
    )
    batches = {name: rows.numpy() for name, rows in _batches(kind, config, global_batch, seed).items()}
    _save_model(config | _dropouts(config, dropout), folder, seed)
    return Case(seed=seed, workload=workload, layout=resolved, shape=shape, batches=batches, dropout=dropout)


def _config(chance: random.Random) -> dict[str, Any]:
    """A Hugging Face config of a tiny model."""
    family = chance.choice(_DECODERS if chance.random() < 0.85 else _MODULES)
    heads, head_dim = chance.choice([(2, 8), (3, 8), (4, 4), (4, 8), (6, 4), (8, 4), (8, 4)])
    hidden, length = heads * head_dim, chance.choice([8, 12, 16])
    config = {
        "model_type": family,
        "vocab_size": chance.choice([48, 64, 67]),
        "hidden_size": hidden,
        "num_hidden_layers": chance.choice([2, 3, 4, 4, 5, 6, 6, 6]),
        "num_attention_heads": heads,
        "max_position_embeddings": length,
        "tie_word_embeddings": chance.random() < 0.5,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    width = chance.choice([32, 48])
    if family == "gpt2":
        return config | {"n_inner": width} | _dropouts(config, 0.0)
    config |= {"intermediate_size": width, "num_key_value_heads": chance.choice(_divisors(heads)), "head_dim": head_dim}
    if family == "mistral":
        config["sliding_window"] = chance.choice([None, 5])
    if family in ("mixtral", "qwen3_moe"):
        name = "num_local_experts" if family == "mixtral" else "num_experts"
        config |= {name: chance.choice([2, 4]), "num_experts_per_tok": chance.choice([1, 2])}
        config |= {"router_aux_loss_coef": 0.05, "output_router_logits": chance.random() < 0.5}
    if family == "qwen3_moe":
        config |= {"moe_intermediate_size": width, "norm_topk_prob": chance.random() < 0.5}
    return config


def _dropouts(config: dict[str, Any], rate: float) -> dict[str, float]:
    return dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), rate) if config["model_type"] == "gpt2" else {}


def _dropout(config: dict[str, Any], layout: ResolvedLayout, chance: random.Random) -> float:
    """A rate where the plain loop can draw as the ranks do: with whole positions and heads, stage after stage."""
    can_follow = layout.tp * layout.cp * layout.interleave == 1
    return 0.2 if config["model_type"] == "gpt2" and can_follow and chance.random() < 0.7 else 0.0


def _layout(chance: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    """Degrees and options as a run file has them; many contradict each other, or the model."""
    degrees = dict.fromkeys(_AXES, 1)
    for factor in _factors(chance.choice([2, 3, 4, 5, 6, 6, 7, 8, 8, _MOST_RANKS])):
        degrees[chance.choice((*_AXES, "tp", "pp", "pp"))] *= factor
    layers = config["num_hidden_layers"]
    options: dict[str, Any] = {
        "zero": chance.choice([1, 2, 3, "auto"]),
        "recompute": chance.choice(["none", "none", "selective", "full"]),
        "offload_activations": chance.random() < 0.1,
        "offload_optimizer": chance.random() < 0.1,
    }
    if options["recompute"] != "none" and not options["offload_activations"] and chance.random() < 0.3:
        options["recompute_layers"] = chance.randint(1, layers)
    if "num_experts_per_tok" in config or chance.random() < 0.05:
        options["ep"] = chance.choice(_divisors(degrees["dp_shard"] * degrees["cp"] * degrees["tp"]))
    if degrees["tp"] > 1:
        options["sequence_parallel"] = chance.choice(["auto", True, False])
    if degrees["pp"] > 1:
        chunks = [1, 1, 2] if 2 * degrees["pp"] <= layers else [1] * 9 + [2]
        options |= {"interleave": chance.choice(chunks), "zero_bubble": chance.random() < 0.3}
        stages = degrees["pp"] * options["interleave"]
        if chance.random() < 0.2 and stages <= layers:
            ends = [0, *sorted(chance.sample(range(1, layers), stages - 1)), layers]
            options["stage_layers"] = [end - start for start, end in itertools.pairwise(ends)]
    return degrees | options


def _batch(chance: random.Random, written: dict[str, Any]) -> tuple[int, int]:
    """Global batch and micro-batch; pipelines get as many micro-batches as they need, more often than not."""
    micro_batch, pp = chance.choice([1, 1, 2]), written["pp"]
    accumulation = chance.choice([1, 2, 3]) if pp == 1 else chance.choice([pp, pp, 2 * pp, pp + 1, pp - 1])
    return written["dp_replicate"] * written["dp_shard"] * micro_batch * accumulation, micro_batch


def _batches(kind: str, config: dict[str, Any], rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    length, vocabulary = config["max_position_embeddings"], config["vocab_size"]
    tokens = torch.randint(1, vocabulary, (STEPS, rows, length + 1), generator=generator)
    if kind == "tokens":
        return {"tokens": tokens}
    x, labels = tokens[..., :-1].contiguous(), tokens[..., 1:].clone()
    counted = torch.rand(labels.shape, generator=generator) < torch.rand(STEPS, rows, 1, generator=generator)
    counted[:, 0, -1] = True
    if kind == "chats":
        return {"x": x, "labels": labels.where(counted, IGNORED)}
    chance = random.Random(seed)
    positions = torch.tensor([[list(_documents(length, chance)) for _ in range(rows)] for _ in range(STEPS)])
    counted[..., :-1] &= positions[..., 1:] > 0  # the last token of a document predicts nothing
    return {"x": x, "labels": labels.where(counted, IGNORED), "positions": positions}


def _documents(length: int, chance: random.Random) -> Iterator[int]:
    """Positions of the tokens of a row, each in its document."""
    left = length
    while left:
        document = min(left, chance.choice([2, 3, 5, 8]))
        yield from range(document)
        left -= document


def _save_model(config: dict[str, Any], folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    with torch.no_grad():  # biases and norms begin as zeros and ones, which a wrong place would not show
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)


def _factors(number: int) -> list[int]:
    return next(([prime, *_factors(number // prime)] for prime in range(2, number + 1) if number % prime == 0), [])


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
