"""Tiny models of `transformers` with random weights, one per family and per choice in which families differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

__all__ = ["TINY", "saved", "tiny_config"]

_DIMENSIONS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_GATED = {"num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": False}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GATED),
    "llama-tied": ("llama", _GATED | {"tie_word_embeddings": True}),
    "llama-biases": ("llama", _GATED | {"attention_bias": True, "mlp_bias": True}),
    "llama-3-rope": ("llama", _GATED | {"rope_parameters": _LLAMA3_ROPE}),
    "llama-yarn": ("llama", _GATED | {"rope_parameters": _YARN}),
    "llama-wide-heads": ("llama", _GATED | {"head_dim": 16}),
    "mistral-window": ("mistral", _GATED | {"sliding_window": 7}),
    "qwen2": ("qwen2", _GATED),
    "qwen3": ("qwen3", _GATED | {"head_dim": 16}),
    "mixtral": ("mixtral", _GATED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        _GATED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "qwen3_moe-plain-weights": (
        "qwen3_moe",
        _GATED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": False},
    ),
    "gpt2": ("gpt2", {"n_inner": 48}),
    "gpt2-untied": ("gpt2", {"n_inner": 48, "tie_word_embeddings": False}),
}


def tiny_config(name: str) -> PretrainedConfig:
    """One of `TINY`."""
    family, changes = TINY[name]
    return AutoConfig.for_model(family, **_DIMENSIONS | changes)


def saved(name: str, folder: Path, tokens_BT: torch.Tensor, **options: Any) -> torch.Tensor:
    """Save a random model as `transformers` does; returns its logits [B, T, V]."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32).eval()
    with torch.no_grad():  # biases and norms begin as zeros and ones, which a wrong place would not show
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(folder, **options)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=tokens_BT, use_cache=False).logits
    return logits
