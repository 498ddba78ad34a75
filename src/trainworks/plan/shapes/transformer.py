"""A transformer's shape, from bare dimensions or a Hugging Face config; `parameters` and `flops` say what it costs.

Symbols: those of `parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainworks.config.model import Model
from trainworks.errors import UsageError
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.parameters import block_matmul_parameters, num_parameters
from trainworks.plan.shapes import gated, plain
from trainworks.plan.shapes.hf_config import Config
from trainworks.record.model_shape import ModelShape

__all__ = [
    "PLANNED_TYPES",
    "block_matmul_parameters",
    "model_flops_per_token",
    "num_parameters",
    "shape_of_hf_config",
    "shape_of_model",
]

_GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
_READERS: dict[str, Callable[[Config], ModelShape]] = {
    "llama": gated.llama,
    "mistral": gated.mistral,
    "qwen2": gated.qwen2,
    "qwen3": gated.qwen3,
    "qwen3_moe": gated.qwen3_moe,
    "mixtral": gated.mixtral,
    "deepseek_v2": gated.deepseek_v2,
    "deepseek_v3": gated.deepseek_v3,
    "kimi_k2": gated.deepseek_v3,
    "gpt_oss": gated.gpt_oss,
    "gemma": gated.gemma,
    "gemma2": gated.gemma2,
    "gemma3_text": gated.gemma3,
    "olmo2": gated.olmo2,
    "olmo3": gated.olmo3,
    "phi3": gated.mistral,
    "smollm3": gated.smollm3,
    "granite": gated.llama,
    "gpt2": plain.gpt2,
    "gpt_neox": plain.gpt_neox,
    "opt": plain.opt,
    "bloom": plain.bloom,
    "nemotron": plain.nemotron,
    "bert": plain.bert,
    "vit": plain.vit,
}
"""Readers of Hugging Face configs by `model_type`."""
PLANNED_TYPES = tuple(_READERS)
"""Every `model_type` that `shape_of_hf_config` reads."""


def shape_of_model(model: Model, *, vocabulary: int, sequence_length: int) -> ModelShape:
    """Shape of a model given by dimensions.

    Defaults: key/value heads = heads; heads h / H wide; 8 experts, 2 of them per token (mixtral);
    feed-forward = 8/3 h rounded up to a multiple of 64 (gated), 4 h (gpt2).
    """
    assert model.layers and model.hidden and model.heads
    is_gated = model.architecture in _GATED
    default_width = -(-8 * model.hidden // 3 // 64) * 64 if is_gated else 4 * model.hidden
    width = model.feed_forward or default_width
    return _READERS[model.architecture](
        {
            "model_type": model.architecture,
            "num_hidden_layers": model.layers,
            "hidden_size": model.hidden,
            "head_dim": model.hidden // model.heads,
            "num_local_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads if is_gated else None,
            "intermediate_size": width,
            "n_inner": width,
            "vocab_size": vocabulary,
            "max_position_embeddings": sequence_length,
            "tie_word_embeddings": model.tie_embeddings,
        }
    )


def shape_of_hf_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a Hugging Face config.json, parameters exact to the last weight.

    Raises:
        UsageError: the architecture is not one that can be planned, or a dimension is missing.
    """
    kind = config.get("model_type")
    if kind not in _READERS:
        raise UsageError(f"model type `{kind}` cannot be planned yet", hint=f"known types: {', '.join(PLANNED_TYPES)}")
    return _READERS[kind](config)
