"""A transformer's shape, from bare dimensions or a Hugging Face config; `parameters` and `flops` say what it costs.

Here are GPT and its like, and encoders of text and images, with layer norms and mostly a plain MLP; the other decoders
are in `hf_config`.

Symbols: those of `parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainworks.config.model import Model
from trainworks.errors import UsageError
from trainworks.plan.shapes import hf_config
from trainworks.plan.shapes.diffusion import diffusers_dit, dit, flux, stable_diffusion_3, wan
from trainworks.plan.shapes.hf_config import Config, attention_biases, completed, decoder, optional, whole, window
from trainworks.plan.shapes.hybrids import bamba, falcon_h1, granite_hybrid, nemotron_h
from trainworks.record.model_shape import ModelShape, SmallParameters


def gpt2(config: Config, *, learned_positions: bool = True) -> ModelShape:
    """Also GPT-3's and Megatron's: learned positions, biases everywhere, layer norms, a plain MLP."""
    hidden = whole(config, "n_embd", "hidden_size", "n_embed")
    return _plain(
        {
            "layers": whole(config, "n_layer", "num_hidden_layers"),
            "hidden": hidden,
            "heads": whole(config, "n_head", "num_attention_heads"),
            "feed_forward": optional(config, "n_inner", 4 * hidden),
            "vocabulary": whole(config, "vocab_size"),
            "max_sequence_length": whole(config, "n_positions", "max_position_embeddings", "seq_length", default=1024),
            "tie_embeddings": bool(config.get("tie_word_embeddings", True)),
            "learned_positions": learned_positions,
        },
        outside=0 if learned_positions else 2 * hidden,
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
    return _plain(dimensions, outside=2 * hidden)


def bloom(config: Config) -> ModelShape:
    """A gpt2 without positions (ALiBi), and with a norm behind the embeddings."""
    return gpt2({"seq_length": 2048} | dict(config) | {"n_inner": None}, learned_positions=False)


def gpt_neox(config: Config) -> ModelShape:
    """Rotary positions and biases everywhere; Pythia is one too."""
    dimensions = decoder(config) | {"gated_mlp": False}
    biases = bool(config.get("attention_bias", True))
    return _plain(dimensions, qkv_bias=biases, output_bias=biases)


def phi(config: Config) -> ModelShape:
    """Attention and MLP side by side, biases everywhere, and of the output V; Phi-1 to 2."""
    dimensions = decoder(config) | {"gated_mlp": False, "parallel": True}
    normed = 4 * dimensions["head_dim"] if config.get("qk_layernorm") else 0
    return _plain(dimensions, norms=1, layer=normed, outside=dimensions["vocabulary"])


def falcon(config: Config) -> ModelShape:
    """Attention and a plain MLP side by side, behind one norm, in larger ones two; one key head, or as many as named.

    `parallel_attn: false` puts them one after the other.
    """
    is_new, hidden = bool(config.get("new_decoder_architecture")), whole(config, "hidden_size")
    keys = whole(config, "num_attention_heads") if is_new or not config.get("multi_query", True) else 1
    keys = optional(config, "num_kv_heads", keys) if is_new or keys > 1 else keys
    named = {"num_key_value_heads": keys, "intermediate_size": optional(config, "ffn_hidden_size", 4 * hidden)}
    parallel = bool(config.get("parallel_attn", True))
    dimensions = decoder({**config, **named}, tied=True) | {"gated_mlp": False, "parallel": parallel}
    norms = optional(config, "num_ln_in_parallel_attn", 1 + is_new) if parallel else 2
    biases = bool(config.get("bias"))
    return _plain(dimensions, norms=norms, qkv_bias=biases, output_bias=biases, mlp_bias=biases)


def stablelm(config: Config) -> ModelShape:
    """Layer norms and a gated MLP; with `qk_layernorm` a norm of d per head."""
    dimensions = decoder(config) | {"parallel": bool(config.get("use_parallel_residual"))}
    normed = dimensions["heads"] + dimensions["kv_heads"] if config.get("qk_layernorm") else 0
    return _plain(
        dimensions,
        norms=1 if dimensions["parallel"] else 2,
        qkv_bias=bool(config.get("use_qkv_bias")),
        output_bias=False,
        mlp_bias=False,
        layer=normed * dimensions["head_dim"],
    )


def starcoder2(config: Config) -> ModelShape:
    """A plain MLP, biases everywhere unless `use_bias` is off, and perhaps a window in all layers."""
    dimensions = decoder(config, tied=True) | {"gated_mlp": False} | window(config)
    biases = bool(config.get("use_bias", True))
    return _plain(dimensions, qkv_bias=biases, output_bias=biases, mlp_bias=biases)


def nemotron(config: Config) -> ModelShape:
    """Squared ReLU, layer norms, rotary positions, by default without biases."""
    dimensions = decoder(config) | {"gated_mlp": False}
    biases = bool(config.get("attention_bias"))
    return _plain(dimensions, qkv_bias=biases, output_bias=biases, mlp_bias=bool(config.get("mlp_bias")))


def bert(config: Config) -> ModelShape:
    """An encoder with token types, the masked-LM head, and, unless that is all it has, the pooler's h^2 + h and the
    next-sentence head's 2 h + 2 (`architectures: [BertForMaskedLM]`).
    """
    hidden = whole(config, "hidden_size")
    masked_only = config.get("architectures") == ["BertForMaskedLM"]
    pooler = 0 if masked_only else hidden * hidden + hidden + 2 * hidden + 2
    fixed = {"gated_mlp": False, "learned_positions": True, "causal": False, "head_transform": True}
    token_types = whole(config, "type_vocab_size", default=2) * hidden
    return _plain(decoder(config, tied=True) | fixed, outside=token_types + pooler)


def dinov2(config: Config) -> ModelShape:
    """A vit with a mask token, scales of h behind attention and MLP, and a classifier of class token and mean patch.

    Giant ones have a gate, and 2/3 of the width, rounded up to a multiple of 8.
    """
    hidden, gated = whole(config, "hidden_size"), bool(config.get("use_swiglu_ffn"))
    width = int(hidden * config.get("mlp_ratio", 4))
    width = -(-int(width * 2 / 3) // 8) * 8 if gated else width
    config, mask = {"patch_size": 14, **config, "intermediate_size": width}, bool(config.get("use_mask_token", True))
    return _image_classifier(config, gated_mlp=gated, pooled=2, layer=2 * hidden, outside=mask * hidden)


def vit(config: Config) -> ModelShape:
    """An image classifier: patches and a class token with learned positions; `vocabulary` is the number of classes."""
    return _image_classifier(config)


def _image_classifier(
    config: Config, *, gated_mlp: bool = False, pooled: int = 1, layer: int = 0, outside: int = 0
) -> ModelShape:
    """A vit whose classifier takes so many pooled tokens, with more weights in a layer and outside of the layers."""
    patch = whole(config, "patch_size", default=16)
    patches = (whole(config, "image_size", default=224) // patch) ** 2
    classes = len(config["id2label"]) if "id2label" in config else whole(config, "num_labels", default=1000)
    fixed = {"max_sequence_length": patches + 1, "tie_embeddings": False, "gated_mlp": gated_mlp}
    fixed |= {"learned_positions": True}
    of_images = {"causal": False, "patch_values": whole(config, "num_channels", default=3) * patch * patch}
    dimensions = decoder({**config, "vocab_size": classes}) | fixed | of_images
    outside += 2 * dimensions["hidden"] + classes + (pooled - 1) * dimensions["hidden"] * classes
    return _plain(dimensions, qkv_bias=bool(config.get("qkv_bias", True)), layer=layer, outside=outside)


def _plain(
    dimensions: dict[str, int],
    *,
    norms: int = 2,
    qkv_bias: bool = True,
    output_bias: bool = True,
    mlp_bias: bool = True,
    layer: int = 0,
    outside: int = 0,
) -> ModelShape:
    """Layer norms of 2 h (`norms` per layer, one outside), biases of attention (H + 2 K) d + h and of the MLP f + h,
    with a gate 2 f + h.
    """
    hidden, heads = dimensions["hidden"], dimensions["heads"]
    dimensions = {"gated_mlp": False, "kv_heads": heads, "head_dim": hidden // heads} | dimensions
    qkv = attention_biases(dimensions, output=False) if qkv_bias else 0
    output = hidden if output_bias else 0
    small = SmallParameters(
        layer=2 * norms * hidden + qkv + output + layer,
        dense_mlp=(1 + dimensions["gated_mlp"]) * dimensions["feed_forward"] + hidden if mlp_bias else 0,
        model=2 * hidden + outside,
    )
    return completed(**dimensions, small=small)


_GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
_READERS: dict[str, Callable[[Config], ModelShape]] = {
    "llama": hf_config.llama,
    "mistral": hf_config.mistral,
    "qwen2": hf_config.qwen2,
    "qwen3": hf_config.qwen3,
    "qwen2_moe": hf_config.qwen2_moe,
    "qwen3_moe": hf_config.qwen3_moe,
    "olmoe": hf_config.olmoe,
    "minimax_m2": hf_config.minimax_m2,
    "ernie4_5_moe": hf_config.ernie4_5_moe,
    "mixtral": hf_config.mixtral,
    "arctic": hf_config.arctic,
    "llama4_text": hf_config.llama4,
    "glm": hf_config.glm,
    "glm4_moe": hf_config.glm4_moe,
    "deepseek_v2": hf_config.deepseek_v2,
    "deepseek_v3": hf_config.deepseek_v3,
    "kimi_k2": hf_config.deepseek_v3,
    "gpt_oss": hf_config.gpt_oss,
    "gemma": hf_config.gemma,
    "gemma2": hf_config.gemma2,
    "gemma3_text": hf_config.gemma3,
    "olmo2": hf_config.olmo2,
    "olmo3": hf_config.olmo3,
    "phi3": hf_config.mistral,
    "smollm3": hf_config.smollm3,
    "granite": hf_config.llama,
    "glm4": hf_config.glm4,
    "seed_oss": hf_config.seed_oss,
    "ernie4_5": hf_config.ernie4_5,
    "ministral3": hf_config.mistral,
    "cohere": hf_config.cohere,
    "cohere2": hf_config.cohere2,
    "phi": phi,
    "falcon": falcon,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "bloom": bloom,
    "nemotron": nemotron,
    "nemotron_h": nemotron_h,
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "falcon_h1": falcon_h1,
    "bert": bert,
    "vit": vit,
    "dinov2": dinov2,
    "DiT": dit,
    "DiTTransformer2DModel": diffusers_dit,
    "SD3Transformer2DModel": stable_diffusion_3,
    "FluxTransformer2DModel": flux,
    "WanTransformer3DModel": wan,
}
"""Readers of Hugging Face configs by `model_type`, and of diffusers' by `_class_name`."""
DIFFUSION_TYPES = frozenset(name for name in _READERS if "Transformer" in name or name == "DiT")
_HYBRIDS = {"nemotron_h", "bamba", "granitemoehybrid", "falcon_h1"}
_MIXTURES = {"arctic", "glm4_moe", "llama4_text", "qwen2_moe", "olmoe", "minimax_m2", "ernie4_5_moe"}
_DENSE = {"glm4", "seed_oss", "ernie4_5", "ministral3", "cohere", "cohere2", "phi", "falcon", "stablelm", "starcoder2"}
PLANNED_TYPES = frozenset(_READERS) - _MIXTURES - _DENSE - _HYBRIDS - DIFFUSION_TYPES
"""Types with formulas for ranks at hand; the others are measured there as `transformers` computes them."""
_TEXT_TOWERS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""What the text tower of a model of text and images is, where it has a type of its own."""
_REFUSED = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "kimi_linear"),
        "its linear attention (gated delta rule) has no formula of time and memory here",
    ),
    "minimax": "its lightning attention, in every second layer, has no formula of time and memory here",
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa"),
        "no formula says what its indexer, which chooses the tokens that are attended to, costs in training",
    ),
    "mllama_text_model": "its cross-attention to images has no formula here",
    **dict.fromkeys(
        ("gemma3n_text", "gemma4_text"), "its embeddings per layer and shared keys and values have no formula here"
    ),
}
"""Why a common type is refused."""


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
    """The shape in a Hugging Face config.json, parameters exact to the last weight; of several towers that of the text.

    Raises:
        UsageError: the architecture is not one that can be planned, or a dimension is missing.
    """
    config = _text_tower(config)
    kind = config.get("model_type", config.get("_class_name"))
    kind = _TEXT_TOWERS.get(str(kind), kind)
    if not isinstance(kind, str) or kind not in _READERS:
        why = f": {_REFUSED[str(kind)]}" if str(kind) in _REFUSED else ""
        raise UsageError(f"model type `{kind}` cannot be planned yet{why}", hint=f"known types: {', '.join(_READERS)}")
    return _READERS[kind]({**config, "model_type": kind})


def _text_tower(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a config is about text; whether its embeddings are tied, the whole says first."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    tied = config.get("tie_word_embeddings")
    said = {key: value for key, value in text.items() if value is not None}
    return said if tied is None else said | {"tie_word_embeddings": tied}


def towers_note(config: Mapping[str, Any]) -> str | None:
    """What of a config with several towers is not planned; None for a model of text alone."""
    others = [name for name in ("vision_config", "audio_config") if config.get(name)]
    if not others:
        return None
    names = " and ".join(name.removesuffix("_config") for name in others)
    return f"only the text tower is planned: the {names} tower and its projector take memory and time beside it"
