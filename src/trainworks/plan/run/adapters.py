"""What an adapter (LoRA) changes in memory and time: the base is frozen, and a few new weights train beside it.

Symbols: N parameters of the model, P of the adapters, s ranks that share them, V vocabulary, h hidden.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainworks.config.finetune import Adapter
from trainworks.plan.activations import element_bytes
from trainworks.plan.flops import attention_flops_per_token, layers_matmul_parameters, model_flops_per_token
from trainworks.plan.job import StepTimes
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.parameters import attention_sizes, embedding_parameters, mlp_sizes, output_parameters
from trainworks.record.model_shape import ModelShape

if TYPE_CHECKING:
    from trainworks.plan.run.memory import RunMemories

_NF4_BYTES = 0.5 + 4 / 64
"""Per weight: a code of 4 bits, and a scale in fp32 for each block of 64."""


def adapter_parameters(shape: ModelShape, adapter: Adapter) -> int:
    """P: r (inputs + outputs) of every adapted layer; experts and routers have none.

    Layers that a model has joined (`qkv_proj`) count as their parts, which have more inputs together.
    """
    sizes = attention_sizes(shape) | ({} if shape.experts else mlp_sizes(shape))
    chosen = [name for name in sizes if not adapter.targets or _is_named(name, adapter.targets)]
    return shape.layers * adapter.rank * sum(sum(sizes[name]) for name in chosen)


def _is_named(name: str, targets: tuple[str, ...]) -> bool:
    return any(f".{name}".endswith(f".{target}") or f".{target}".endswith(f".{name}") for target in targets)


def adapted_memories(
    memories: RunMemories,
    shape: ModelShape,
    layouts: Layouts,
    adapter: Adapter,
    *,
    precision: str,
    device: str,
    moment_bytes: float,
) -> RunMemories:
    """Memory with a frozen base.

    weights     b N / s + 4 P / s, where b is 4, 2 in bf16, and 0.56 in 4 bits, which are not shared
    gradients   4 P, / s with zero 2 and 3
    optimizer   m P / s, where m is 8 with AdamW
    logits      without the gradient of the output matrix, and the product that is added to it: - 8 V h
    checkpoint  the copy of (4 + m) P / s, on a CPU
    """
    trained = float(adapter_parameters(shape, adapter))
    shards = np.maximum(1.0, layouts.dp_shard * layouts.cp)

    def shared(stage: int) -> Array:
        return np.where(layouts.zero >= stage, shards, 1.0)

    matrix = 8.0 * shape.vocabulary * shape.hidden
    return replace(
        memories,
        weights_bytes=_base_bytes(shape, adapter, precision, shared(3)) + 4 * trained / shared(3),
        gradients_bytes=4 * trained / shared(2),
        optimizer_bytes=moment_bytes * trained / shared(1),
        logits_bytes=np.maximum(0.0, memories.logits_bytes - matrix),
        checkpoint_bytes=(4 + moment_bytes) * trained / shared(1) if device == "cpu" else memories.checkpoint_bytes,
    )


def _base_bytes(shape: ModelShape, adapter: Adapter, precision: str, shards: Array) -> Array:
    in_16_bits = adapter.base == "bf16" or (adapter.base in ("auto", "nf4") and precision == "bf16")
    per_weight = 2.0 if in_16_bits else 4.0
    if adapter.base != "nf4":
        return per_weight * shape.num_parameters / shards
    in_4_bits = shape.num_parameters - embedding_parameters(shape) - output_parameters(shape) - _experts(shape)
    return _NF4_BYTES * in_4_bits + per_weight * (shape.num_parameters - in_4_bits) / shards


def _experts(shape: ModelShape) -> float:
    mlp = (3 if shape.gated_mlp else 2) * shape.hidden * shape.expert_feed_forward
    return float(shape.layers * shape.experts * mlp) if shape.experts else 0.0


def adapted_times(
    times: StepTimes, shape: ModelShape, layouts: Layouts, adapter: Adapter, *, length: int, precision: str
) -> StepTimes:
    """Time with a frozen base.

    forward     + the adapters' own products, P / N_l of those of the layers
    backward    of each product the gradient of its input alone: half; attention in full; + 3 P / 2 N_l for adapters
    head        two of three products
    dp          gradients of P instead of N; with zero 3 the weights are gathered as before
    optimizer   P of N
    """
    trained = adapter_parameters(shape, adapter)
    products, attention = 6.0 * layers_matmul_parameters(shape), attention_flops_per_token(shape, length)
    share = products / (products + attention)
    extra = share * trained / max(1, layers_matmul_parameters(shape))
    moved = trained / shape.num_parameters
    weights, gradients = 2.0 * element_bytes(precision), 4.0
    sharded = (weights + gradients * moved) / (weights + gradients)
    return replace(
        times,
        forward_s=times.forward_s * (1 + extra),
        backward_s=times.backward_s * (1 - share / 2 + extra),
        recompute_s=times.recompute_s * (1 + extra),
        head_s=times.head_s * 2 / 3,
        dp_s=times.dp_s * np.where(layouts.zero >= 3, sharded, moved),
        optimizer_s=times.optimizer_s * moved,
    )


def adapted_flops_per_token(shape: ModelShape, adapter: Adapter, length: int) -> float:
    """Model FLOPs per token: 4 of 6 for a frozen weight, all of attention, and 6 P."""
    attention = attention_flops_per_token(shape, length)
    frozen = model_flops_per_token(shape, length) - attention
    return frozen * 2 / 3 + attention + 6.0 * adapter_parameters(shape, adapter)
