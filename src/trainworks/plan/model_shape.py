"""A decoder's dimensions and parameters, exact to the last weight.

Symbols: L layers, h hidden, H heads, K key/value heads, d head dimension, f feed-forward, V vocabulary, S positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.errors import UsageError
from trainworks.record.resolved import ModelShape
from trainworks.spec.run_file import Architecture, Model

__all__ = ["model_flops_per_token", "num_parameters", "shape_of_hf_config", "shape_of_model"]

_GATED = ("llama", "mistral", "qwen2")


def shape_of_model(model: Model, *, vocabulary: int, sequence_length: int) -> ModelShape:
    """The shape of a model given by bare dimensions.

    Defaults: key/value heads = heads; feed-forward = 8/3 h rounded up to a multiple of 64 (gated), 4 h (gpt2).
    """
    assert model.layers and model.hidden and model.heads
    gated = model.architecture in _GATED
    default_width = -(-8 * model.hidden // 3 // 64) * 64 if gated else 4 * model.hidden
    return _complete(
        model.architecture,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=(model.kv_heads or model.heads) if gated else model.heads,
        head_dim=model.hidden // model.heads,
        feed_forward=model.feed_forward or default_width,
        vocabulary=vocabulary,
        max_sequence_length=sequence_length,
        tie_embeddings=model.tie_embeddings,
    )


def shape_of_hf_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a Hugging Face config.json.

    Raises:
        UsageError: the architecture is not one that can be planned.
    """
    kind = config.get("model_type")
    if kind == "gpt2":
        return _shape_of_gpt2(config)
    if kind not in _GATED:
        raise UsageError(
            f"model type `{kind}` cannot be planned yet", hint=f"known types: {', '.join((*_GATED, 'gpt2'))}"
        )
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    shape = _complete(
        kind,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        feed_forward=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        max_sequence_length=int(config.get("max_position_embeddings", 2048)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
    return shape.model_copy(update={"num_parameters": shape.num_parameters + _optional_biases(config, shape)})


def _optional_biases(config: Mapping[str, Any], shape: ModelShape) -> int:
    """What a llama with `attention_bias` or `mlp_bias` has on top: L ((H + 2K) d + h), L (2 f + h)."""
    if config["model_type"] != "llama":
        return 0
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.hidden
    mlp = 2 * shape.feed_forward + shape.hidden
    chosen = attention * bool(config.get("attention_bias")) + mlp * bool(config.get("mlp_bias"))
    return shape.layers * chosen


def _shape_of_gpt2(config: Mapping[str, Any]) -> ModelShape:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    return _complete(
        "gpt2",
        layers=int(config["n_layer"]),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        feed_forward=int(config.get("n_inner") or 4 * hidden),
        vocabulary=int(config["vocab_size"]),
        max_sequence_length=int(config.get("n_positions", 1024)),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
    )


def _complete(architecture: Architecture, **dimensions: Any) -> ModelShape:
    learned = architecture == "gpt2"
    shape = ModelShape(**dimensions, gated_mlp=architecture in _GATED, learned_positions=learned, num_parameters=0)
    return shape.model_copy(update={"num_parameters": num_parameters(architecture, shape)})


def num_parameters(architecture: Architecture, shape: ModelShape) -> int:
    """All weights: L blocks, final norm, embeddings, and the output matrix unless it is tied.

    gated block   h H d + 2 h K d + H d h  [+ (H + 2K) d for qwen2's biases]  + 3 h f + 2 h
    gpt2 block    4 h^2 + 4 h  +  2 h f + f + h  +  4 h
    """
    h, f, width = shape.hidden, shape.feed_forward, shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    if architecture == "gpt2":
        block = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h
        final_norm = 2 * h
    else:
        biases = width + 2 * kv_width if architecture == "qwen2" else 0
        block = 2 * h * width + 2 * h * kv_width + biases + 3 * h * f + 2 * h
        final_norm = h
    embeddings = shape.vocabulary * h * (1 if shape.tie_embeddings else 2)
    positions = shape.max_sequence_length * h if shape.learned_positions else 0
    return shape.layers * block + final_norm + embeddings + positions


def block_matmul_parameters(shape: ModelShape) -> int:
    """Weights of one block that enter matrix products: 2 h H d + 2 h K d + (3 or 2) h f."""
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    return attention + (3 if shape.gated_mlp else 2) * shape.hidden * shape.feed_forward


def model_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """Model FLOPs per token, forward and backward: 6 (L P + h V) + 12 L H d T.

    P are a block's matrix weights. Attention is counted in full, not halved for causality; norms, activations and
    the embedding look-up are left out (about 1 %). Source: PaLM (Chowdhery et al. 2022), appendix B.
    """
    matrices = shape.layers * block_matmul_parameters(shape) + shape.hidden * shape.vocabulary
    return 6.0 * matrices + 12.0 * shape.layers * shape.heads * shape.head_dim * sequence_length
