"""A transformer's shape, from bare dimensions or a Hugging Face config; `parameters` and `flops` say what it costs.

First the decoders with RMS norms and a gated MLP, dense or with experts; then GPT and its like, and encoders of text
and images, with layer norms and a plain MLP.

Symbols: those of `parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainworks.config.model import Model
from trainworks.errors import UsageError
from trainworks.plan.shapes.diffusion import diffusers_dit, dit, flux, stable_diffusion_3, wan
from trainworks.plan.shapes.hf_config import Config, attention_biases, completed, decoder, optional, whole, window
from trainworks.plan.shapes.hybrids import bamba, falcon_h1, granite_hybrid, nemotron_h
from trainworks.record.model_shape import LatentAttention, ModelShape, SmallParameters


def _with_rms_norms(
    dimensions: Mapping[str, Any], *, norms: int = 2, query_key_norms: int = 0, biases: int = 0, **small: int
) -> ModelShape:
    """RMS norms of h in every layer and one outside, those of queries and keys of d each, and the biases of a layer."""
    hidden = dimensions["hidden"]
    layer = norms * hidden + query_key_norms * dimensions["head_dim"] + biases
    return completed(**dimensions, small=SmallParameters(layer=layer, model=hidden, **small))


def _biases(config: Config, dimensions: Mapping[str, int], *, default: bool = False, output: bool = True) -> int:
    """Biases of the projections of the attention, if the config has them."""
    return attention_biases(dimensions, output=output) if config.get("attention_bias", default) else 0


def _experts(config: Config, width: int, *, dense: int = 0, default: tuple[int, int] | None = None) -> dict[str, int]:
    """Experts of a width under their most common keys; the shared ones are as wide as the routed ones."""
    count, per_token = default or (None, None)
    return {
        "experts": whole(config, "num_experts", "n_routed_experts", "num_local_experts", default=count),
        "experts_per_token": whole(config, "num_experts_per_tok", "experts_per_token", default=per_token),
        "expert_feed_forward": width,
        "expert_groups": optional(config, "n_group", 1),
        "groups_per_token": optional(config, "topk_group", 1),
        "further_tokens": optional(config, "num_nextn_predict_layers", 0),
        "shared_feed_forward": width * optional(config, "n_shared_experts", 0),
        "dense_layers": dense,
    }


def llama(config: Config) -> ModelShape:
    """RMS norms 2 h; biases of all projections if `attention_bias`, of the MLP 2 f + h if `mlp_bias`."""
    dimensions = decoder(config)
    mlp = 2 * dimensions["feed_forward"] + dimensions["hidden"] if config.get("mlp_bias") else 0
    return _with_rms_norms(dimensions, biases=_biases(config, dimensions), dense_mlp=mlp)


def smollm3(config: Config) -> ModelShape:
    """A llama whose embeddings are tied by default."""
    return llama({"tie_word_embeddings": True} | dict(config))


def mistral(config: Config) -> ModelShape:
    """A llama whose layers may all have a sliding window."""
    return _with_rms_norms(decoder(config) | window(config))


def qwen2(config: Config) -> ModelShape:
    """Queries, keys and values have biases: (H + 2 K) d."""
    dimensions = decoder(config)
    return _with_rms_norms(dimensions, biases=attention_biases(dimensions, output=False))


def glm(config: Config) -> ModelShape:
    """A qwen2 whose biases `attention_bias` may switch off; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    return _with_rms_norms(dimensions, biases=_biases(config, dimensions, default=True, output=False))


def qwen3(config: Config) -> ModelShape:
    """Queries and keys have a norm of d each; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    return _with_rms_norms(dimensions, query_key_norms=2, biases=_biases(config, dimensions))


def qwen3_moe(config: Config) -> ModelShape:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    dimensions = decoder(config)
    step, skipped = optional(config, "decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    sparse = sum(layer not in skipped and (layer + 1) % step == 0 for layer in range(dimensions["layers"]))
    dimensions |= _experts(config, whole(config, "moe_intermediate_size"), dense=dimensions["layers"] - sparse)
    dimensions["interleaved"] = step > 1
    return _with_rms_norms(dimensions, query_key_norms=2, biases=_biases(config, dimensions))


def glm4_moe(config: Config) -> ModelShape:
    """Experts with a routing bias in all but the first layers; queries and keys have a norm if `use_qk_norm`."""
    dense = whole(config, "first_k_dense_replace", default=1)
    dimensions = decoder(config) | _experts(config, whole(config, "moe_intermediate_size"), dense=dense)
    biases, norms = _biases(config, dimensions, output=False), 2 if config.get("use_qk_norm") else 0
    return _with_rms_norms(dimensions, query_key_norms=norms, biases=biases, router=dimensions["experts"])


def llama4(config: Config) -> ModelShape:
    """Experts and a shared one in every n-th layer; all but every fourth layer attend within chunks."""
    dimensions, width = decoder(config, width_key="intermediate_size_mlp"), whole(config, "intermediate_size")
    every = dimensions["layers"] // optional(config, "interleave_moe_layer_step", 1)
    dense = dimensions["layers"] - (every if config.get("moe_layers") is None else len(config["moe_layers"]))
    dimensions |= window(config, full_every=optional(config, "no_rope_layer_interval", 4))
    dimensions |= _experts(config, width, dense=dense) | {"shared_feed_forward": width}
    dimensions |= {"interleaved": dense > 0, "chunked": True}
    return _with_rms_norms(dimensions, biases=_biases(config, dimensions))


def arctic(config: Config) -> ModelShape:
    """A dense MLP of width h and a norm stand beside the experts of every layer, as a shared expert would."""
    if not config.get("use_residual") or config.get("moe_layer_frequency") != 1:
        raise UsageError("an Arctic without a dense MLP beside the experts of every layer cannot be planned yet")
    dimensions = decoder(config)
    dimensions |= _experts(config, dimensions["feed_forward"]) | {"shared_feed_forward": dimensions["hidden"]}
    return _with_rms_norms(dimensions, norms=3)


def olmo2(config: Config) -> ModelShape:
    """Norms follow attention and MLP; queries and keys have a norm over all heads: (H + K) d."""
    return _olmo_with(config, decoder(config))


def olmo3(config: Config) -> ModelShape:
    """An olmo2 in which all but every fourth layer have a window."""
    return _olmo_with(config, decoder(config) | window(config, full_every=4))


def _olmo_with(config: Config, dimensions: Mapping[str, int]) -> ModelShape:
    normed = dimensions["heads"] + dimensions["kv_heads"]
    return _with_rms_norms(dimensions, query_key_norms=normed, biases=_biases(config, dimensions))


def mixtral(config: Config) -> ModelShape:
    """A mistral with experts in every layer, as wide as `intermediate_size`."""
    dimensions = decoder(config) | window(config)
    return _with_rms_norms(dimensions | _experts(config, dimensions["feed_forward"], default=(8, 2)))


def gpt_oss(config: Config) -> ModelShape:
    """Biases everywhere, a sink per head, and a window in every second layer."""
    dimensions = decoder(config, head_dim=64) | window(config, full_every=2)
    hidden, width = dimensions["hidden"], dimensions["feed_forward"]
    dimensions |= _experts(config, width, default=(128, 4))
    biases = dimensions["heads"] + _biases(config, dimensions, default=True)
    return _with_rms_norms(dimensions, biases=biases, expert=2 * width + hidden, router=dimensions["experts"])


def gemma(config: Config) -> ModelShape:
    """A llama with wide heads and tied embeddings."""
    dimensions = decoder(config, head_dim=256, tied=True)
    return _with_rms_norms(dimensions, biases=_biases(config, dimensions))


def gemma2(config: Config) -> ModelShape:
    """Every second layer sees all; the others have a window."""
    dimensions = decoder(config, head_dim=256, tied=True) | window(config, full_every=2)
    return _with_rms_norms(dimensions, norms=4, biases=_biases(config, dimensions))


def gemma3(config: Config) -> ModelShape:
    """Every sixth layer sees all; queries and keys have a norm of d each. Published configs leave out defaults."""
    config = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4} | dict(config)
    config = {"max_position_embeddings": 131072} | config
    dimensions = decoder(config, head_dim=256, tied=True) | window(config, full_every=6)
    return _with_rms_norms(dimensions, norms=4, query_key_norms=2, biases=_biases(config, dimensions))


def deepseek_v2(config: Config) -> ModelShape:
    """Latent attention and experts in all but the first `first_k_dense_replace` layers."""
    return _deepseek(config, dense_layers=0, routing_bias=False)


def deepseek_v3(config: Config) -> ModelShape:
    """The same with a routing bias; Kimi K2 is one too."""
    return _deepseek(config, dense_layers=3, routing_bias=True)


def _deepseek(config: Config, *, dense_layers: int, routing_bias: bool) -> ModelShape:
    """Latent attention, shared experts, dense first layers, and in V3 a routing bias of E that balances the load.

    Layers that predict further tokens (`num_nextn_predict_layers`) take time, and are not counted as parameters.
    """
    latent = LatentAttention(
        query_rank=optional(config, "q_lora_rank", 0) if "q_lora_rank" in config else 1536,
        kv_rank=whole(config, "kv_lora_rank", default=512),
        rope_head_dim=whole(config, "qk_rope_head_dim", default=64),
        nope_head_dim=whole(config, "qk_nope_head_dim", default=128),
        value_head_dim=whole(config, "v_head_dim", default=128),
    )
    dense = whole(config, "first_k_dense_replace", default=dense_layers)
    dimensions = decoder(config) | _experts(config, whole(config, "moe_intermediate_size"), dense=dense)
    dimensions["head_dim"] = latent.nope_head_dim + latent.rope_head_dim
    hidden, dimensions["kv_heads"] = dimensions["hidden"], dimensions["heads"]
    norms = latent.query_rank + latent.kv_rank
    biases = norms + latent.rope_head_dim + hidden if config.get("attention_bias") else 0  # down-projections and output
    router = dimensions["experts"] if routing_bias else 0
    return _with_rms_norms(dimensions | {"latent": latent}, biases=norms + biases, router=router)


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
    qkv_bias: bool = True,
    output_bias: bool = True,
    mlp_bias: bool = True,
    layer: int = 0,
    outside: int = 0,
) -> ModelShape:
    """Layer norms of 2 h (two per layer, one outside), biases of attention (H + 2 K) d + h and of the MLP f + h,
    with a gate 2 f + h.
    """
    hidden, heads = dimensions["hidden"], dimensions["heads"]
    dimensions = {"gated_mlp": False, "kv_heads": heads, "head_dim": hidden // heads} | dimensions
    qkv = attention_biases(dimensions, output=False) if qkv_bias else 0
    output = hidden if output_bias else 0
    small = SmallParameters(
        layer=4 * hidden + qkv + output + layer,
        dense_mlp=(1 + dimensions["gated_mlp"]) * dimensions["feed_forward"] + hidden if mlp_bias else 0,
        model=2 * hidden + outside,
    )
    return completed(**dimensions, small=small)


_GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
_READERS: dict[str, Callable[[Config], ModelShape]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "arctic": arctic,
    "llama4_text": llama4,
    "glm": glm,
    "glm4_moe": glm4_moe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "gpt_oss": gpt_oss,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "phi3": mistral,
    "smollm3": smollm3,
    "granite": llama,
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
PLANNED_TYPES = frozenset(_READERS) - {"arctic", "glm4_moe", "llama4_text"} - _HYBRIDS - DIFFUSION_TYPES
"""Types with formulas for ranks at hand; `transformers` computes the experts of the others in a way of its own."""


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
    kind = config.get("model_type", config.get("_class_name"))
    if not isinstance(kind, str) or kind not in _READERS:
        hint = "its `text_config`, saved as the config.json of a folder, is planned without the other encoders"
        hint = hint if "text_config" in config else f"known types: {', '.join(_READERS)}"
        raise UsageError(f"model type `{kind}` cannot be planned yet", hint=hint)
    return _READERS[kind]({**config, "model_type": kind})
