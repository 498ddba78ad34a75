"""Transformers with layer norms and a plain MLP: GPT and its like, and encoders of text and images.

Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from typing import Any

from trainworks.errors import UsageError
from trainworks.plan.shapes.hf_config import Config, attention_biases, completed, decoder, optional, whole
from trainworks.record.model_shape import ModelShape, SmallParameters


def gpt2(config: Config) -> ModelShape:
    """Also GPT-3's and Megatron's: learned positions, biases everywhere, layer norms, a plain MLP."""
    hidden, heads = whole(config, "n_embd", "hidden_size"), whole(config, "n_head", "num_attention_heads")
    return _plain(
        layers=whole(config, "n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        feed_forward=optional(config, "n_inner", 4 * hidden),
        vocabulary=whole(config, "vocab_size"),
        max_sequence_length=whole(config, "n_positions", "max_position_embeddings", default=1024),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        learned_positions=True,
    )


def opt(config: Config) -> ModelShape:
    """Two positions more than the longest sequence.

    Raises:
        UsageError: a projection of the embeddings, or norms after the residual, as in OPT-350M.
    """
    hidden = whole(config, "hidden_size")
    if optional(config, "word_embed_proj_dim", hidden) != hidden or not config.get("do_layer_norm_before", True):
        raise UsageError("an OPT with projected embeddings or norms after the residual cannot be planned yet")
    dimensions = decoder(config, tied=True, width_key="ffn_dim") | {"gated_mlp": False, "learned_positions": True}
    return _plain(**dimensions, outside=2 * hidden)


def bloom(config: Config) -> ModelShape:
    """No positions (ALiBi), and a norm behind the embeddings."""
    hidden, heads = whole(config, "hidden_size", "n_embed"), whole(config, "n_head", "num_attention_heads")
    return _plain(
        layers=whole(config, "n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        feed_forward=4 * hidden,
        vocabulary=whole(config, "vocab_size"),
        max_sequence_length=whole(config, "seq_length", default=2048),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        learned_positions=False,
        outside=2 * hidden,
    )


def gpt_neox(config: Config) -> ModelShape:
    """Rotary positions and biases everywhere; Pythia is one too."""
    dimensions = decoder(config) | {"gated_mlp": False}
    biases = bool(config.get("attention_bias", True))
    return _plain(**dimensions, qkv_bias=biases, output_bias=biases)


def nemotron(config: Config) -> ModelShape:
    """Squared ReLU, layer norms, rotary positions, by default without biases."""
    dimensions = decoder(config) | {"gated_mlp": False}
    biases = bool(config.get("attention_bias"))
    return _plain(**dimensions, qkv_bias=biases, output_bias=biases, mlp_bias=bool(config.get("mlp_bias")))


def bert(config: Config) -> ModelShape:
    """An encoder with token types, the masked-LM head, and, unless that is all it has, the pooler's h^2 + h and the
    next-sentence head's 2 h + 2 (`architectures: [BertForMaskedLM]`).
    """
    hidden = whole(config, "hidden_size")
    masked_only = config.get("architectures") == ["BertForMaskedLM"]
    pooler = 0 if masked_only else hidden * hidden + hidden + 2 * hidden + 2
    dimensions = decoder(config, tied=True) | {"gated_mlp": False, "learned_positions": True, "causal": False}
    token_types = whole(config, "type_vocab_size", default=2) * hidden
    return _plain(**dimensions, head_transform=True, outside=token_types + pooler)


def vit(config: Config) -> ModelShape:
    """An image classifier: patches and a class token with learned positions; `vocabulary` is the number of classes."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    patch = whole(config, "patch_size", default=16)
    patches = (whole(config, "image_size", default=224) // patch) ** 2
    classes = len(config["id2label"]) if "id2label" in config else whole(config, "num_labels", default=1000)
    return _plain(
        layers=whole(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        feed_forward=whole(config, "intermediate_size"),
        vocabulary=classes,
        max_sequence_length=patches + 1,
        tie_embeddings=False,
        learned_positions=True,
        causal=False,
        patch_values=whole(config, "num_channels", default=3) * patch * patch,
        qkv_bias=bool(config.get("qkv_bias", True)),
        outside=2 * hidden + classes,
    )


def _plain(
    *, qkv_bias: bool = True, output_bias: bool = True, mlp_bias: bool = True, outside: int = 0, **dimensions: Any
) -> ModelShape:
    """Layer norms of 2 h (two per layer, one outside), biases of attention (H + 2 K) d + h and of the MLP f + h."""
    dimensions = {"gated_mlp": False} | dimensions
    hidden = dimensions["hidden"]
    qkv = attention_biases(dimensions, output=False) if qkv_bias else 0
    output = hidden if output_bias else 0
    small = SmallParameters(
        layer=4 * hidden + qkv + output,
        dense_mlp=dimensions["feed_forward"] + hidden if mlp_bias else 0,
        model=2 * hidden + outside,
    )
    return completed(**dimensions, small=small)
