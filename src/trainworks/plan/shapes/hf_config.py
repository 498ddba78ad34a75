"""Reading a Hugging Face config.json: what its families share; then the decoders with RMS norms and a gated MLP, dense
ones and those with experts.

A key that a config leaves out has the default of the family's class in `transformers`; tests build every family there
and compare. Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.config.limits import check_limit
from trainworks.errors import UsageError
from trainworks.plan.parameters import num_parameters
from trainworks.record.model_shape import LatentAttention, ModelShape, SmallParameters

Config = Mapping[str, Any]


def completed(**fields: Any) -> ModelShape:
    """A shape with the parameters that its other fields amount to."""
    shape = ModelShape(**fields, num_parameters=0)
    return shape.model_copy(update={"num_parameters": num_parameters(shape)})


def decoder(
    config: Config, *, head_dim: int | None = None, tied: bool = False, width_key: str = "intermediate_size"
) -> dict[str, int]:
    """Dimensions under their most common keys, with a gated MLP and rotary positions."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    return {
        "layers": whole(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": optional(config, "num_key_value_heads", heads),
        "head_dim": optional(config, "head_dim", head_dim or hidden // heads),
        "feed_forward": whole(config, width_key),
        "vocabulary": whole(config, "vocab_size"),
        "max_sequence_length": whole(config, "max_position_embeddings", default=2048),
        "tie_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "gated_mlp": True,
        "learned_positions": False,
    }


def with_rms_norms(
    dimensions: Mapping[str, Any], *, norms: int = 2, query_key_norms: int = 0, biases: int = 0, **small: int
) -> ModelShape:
    """RMS norms of h in every layer and one outside, those of queries and keys of d each, and the biases of a layer."""
    hidden = dimensions["hidden"]
    layer = norms * hidden + query_key_norms * dimensions["head_dim"] + biases
    return completed(**dimensions, small=SmallParameters(layer=layer, model=hidden, **small))


def projection_biases(
    config: Config, dimensions: Mapping[str, int], *, default: bool = False, output: bool = True
) -> int:
    """Biases of the projections of the attention, if the config has them."""
    return attention_biases(dimensions, output=output) if config.get("attention_bias", default) else 0


def window(config: Config, *, full_every: int | None = None) -> dict[str, int]:
    """The sliding window, or the chunk, and the layers that have it: those that `layer_types` names, else all, or all
    but every n-th.
    """
    tokens = optional(config, "sliding_window", 0) or optional(config, "attention_chunk_size", 0)
    layers = whole(config, "num_hidden_layers")
    types = config.get("layer_types")
    without = layers // full_every if full_every else 0
    sliding = layers - without if types is None else len(types) - list(types).count("full_attention")
    return {"window": tokens, "window_layers": sliding} if tokens and sliding else {}


def attention_biases(dimensions: Mapping[str, int], *, output: bool) -> int:
    """(H + 2 K) d, and h for the output projection."""
    heads = dimensions["heads"] + 2 * dimensions["kv_heads"]
    return heads * dimensions["head_dim"] + (dimensions["hidden"] if output else 0)


def whole(config: Config, *names: str, default: int | None = None) -> int:
    """Value of the first of these keys that is in the config.

    Raises:
        UsageError: the config has none of them and `default` is None, or the value is not a whole number within the
            limits.
    """
    for name in names:
        if config.get(name) is not None:
            return _checked(config, name)
    if default is None:
        raise UsageError(f"the config of this `{config.get('model_type')}` has no `{names[0]}`")
    return default


def optional(config: Config, name: str, default: int) -> int:
    """The value of a key that may be missing, null or 0; the default in these cases."""
    return _checked(config, name) if config.get(name) else default


def _checked(config: Config, name: str) -> int:
    value, least = config[name], 0 if name in _MAY_BE_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < least:
        raise UsageError(f"the config of this `{config.get('model_type')}` has `{name}: {str(value)[:40]}`")
    return check_limit(_NAMES.get(name, "hidden"), int(value), called=name)


_MAY_BE_ZERO = ("first_k_dense_replace", "moe_layer_start_index")
_NAMES = {
    **dict.fromkeys(("num_layers", "num_single_layers", "decoder_sparse_step"), "layers"),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "first_k_dense_replace", "moe_layer_end_index"), "layers"),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads"), "heads"),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"), "feed_forward"),
    **dict.fromkeys(("ffn_dim", "n_inner", "ffn_hidden_size", "shared_expert_intermediate_size"), "feed_forward"),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts"), "experts"),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token"), "experts"),
    **dict.fromkeys(("vocab_size", "num_labels"), "vocabulary"),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "seq_length", "sliding_window"), "sequence_length"),
    **dict.fromkeys(("image_size", "image_height", "sample_size", "frames"), "image_size"),
}
"""The limit of each key; that of `hidden` for any other."""


def llama(config: Config) -> ModelShape:
    """RMS norms 2 h; biases of all projections if `attention_bias`, of the MLP 2 f + h if `mlp_bias`."""
    dimensions = decoder(config)
    mlp = 2 * dimensions["feed_forward"] + dimensions["hidden"] if config.get("mlp_bias") else 0
    return with_rms_norms(dimensions, biases=projection_biases(config, dimensions), dense_mlp=mlp)


def smollm3(config: Config) -> ModelShape:
    """A llama whose embeddings are tied by default."""
    return llama({"tie_word_embeddings": True} | dict(config))


def mistral(config: Config) -> ModelShape:
    """A llama whose layers may all have a sliding window."""
    return with_rms_norms(decoder(config) | window(config))


def qwen2(config: Config) -> ModelShape:
    """Queries, keys and values have biases: (H + 2 K) d."""
    dimensions = decoder(config)
    return with_rms_norms(dimensions, biases=attention_biases(dimensions, output=False))


def glm(config: Config) -> ModelShape:
    """A qwen2 whose biases `attention_bias` may switch off; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    return with_rms_norms(dimensions, biases=projection_biases(config, dimensions, default=True, output=False))


def glm4(config: Config) -> ModelShape:
    """A glm with norms before and after attention and MLP."""
    dimensions = decoder(config, head_dim=128)
    biases = projection_biases(config, dimensions, default=True, output=False)
    return with_rms_norms(dimensions, norms=4, biases=biases)


def seed_oss(config: Config) -> ModelShape:
    """A glm whose output has biases if `attention_out_bias`, and whose MLP has them if `mlp_bias`."""
    dimensions = decoder(config, head_dim=128)
    biases = projection_biases(config, dimensions, default=True, output=False)
    biases += dimensions["hidden"] if config.get("attention_out_bias") else 0
    mlp = 2 * dimensions["feed_forward"] + dimensions["hidden"] if config.get("mlp_bias") else 0
    return with_rms_norms(dimensions, biases=biases, dense_mlp=mlp)


def ernie4_5(config: Config) -> ModelShape:
    """A llama with biases everywhere if `use_bias`, heads of 128 and tied embeddings by default."""
    biases = bool(config.get("use_bias"))
    defaults = {"tie_word_embeddings": True, "head_dim": 128}
    return llama(defaults | dict(config) | {"attention_bias": biases, "mlp_bias": biases})


def cohere(config: Config) -> ModelShape:
    """Attention and MLP stand side by side, behind a norm without biases; a head may have norms of 2 d."""
    dimensions = decoder(config, tied=True) | {"parallel": True}
    normed = dimensions["heads"] + dimensions["kv_heads"] if config.get("use_qk_norm") else 0
    biases = projection_biases(config, dimensions)
    return with_rms_norms(dimensions, norms=1, query_key_norms=normed, biases=biases)


def cohere2(config: Config) -> ModelShape:
    """A cohere in which all but every fourth layer have a window."""
    dimensions = decoder(config, tied=True) | {"parallel": True}
    dimensions |= window({"sliding_window": 4096} | dict(config), full_every=4)
    return with_rms_norms(dimensions, norms=1, biases=projection_biases(config, dimensions))


def qwen3(config: Config) -> ModelShape:
    """Queries and keys have a norm of d each; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    return with_rms_norms(dimensions, query_key_norms=2, biases=projection_biases(config, dimensions))


def olmo2(config: Config) -> ModelShape:
    """Norms follow attention and MLP; queries and keys have a norm over all heads: (H + K) d."""
    return _olmo_with(config, decoder(config))


def olmo3(config: Config) -> ModelShape:
    """An olmo2 in which all but every fourth layer have a window."""
    return _olmo_with(config, decoder(config) | window(config, full_every=4))


def _olmo_with(config: Config, dimensions: Mapping[str, int]) -> ModelShape:
    normed = dimensions["heads"] + dimensions["kv_heads"]
    return with_rms_norms(dimensions, query_key_norms=normed, biases=projection_biases(config, dimensions))


def gemma(config: Config) -> ModelShape:
    """A llama with wide heads and tied embeddings."""
    dimensions = decoder(config, head_dim=256, tied=True)
    return with_rms_norms(dimensions, biases=projection_biases(config, dimensions))


def gemma2(config: Config) -> ModelShape:
    """Every second layer sees all; the others have a window."""
    dimensions = decoder(config, head_dim=256, tied=True) | window(config, full_every=2)
    return with_rms_norms(dimensions, norms=4, biases=projection_biases(config, dimensions))


def gemma3(config: Config) -> ModelShape:
    """Every sixth layer sees all; queries and keys have a norm of d each. Published configs leave out defaults."""
    config = {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4} | dict(config)
    config = {"max_position_embeddings": 131072} | config
    dimensions = decoder(config, head_dim=256, tied=True) | window(config, full_every=6)
    return with_rms_norms(dimensions, norms=4, query_key_norms=2, biases=projection_biases(config, dimensions))


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


def qwen2_moe(config: Config) -> ModelShape:
    """A shared expert with a gate of h, and biases of queries, keys and values."""
    dimensions = _experts_in_steps(config, decoder(config))
    dimensions["shared_feed_forward"] = whole(config, "shared_expert_intermediate_size", default=5632)
    biases = attention_biases(dimensions, output=False) if config.get("qkv_bias", True) else 0
    return with_rms_norms(dimensions, biases=biases, router=dimensions["hidden"])


def qwen3_moe(config: Config) -> ModelShape:
    """Queries and keys have a norm of d each."""
    dimensions = _experts_in_steps(config, decoder(config))
    return with_rms_norms(dimensions, query_key_norms=2, biases=projection_biases(config, dimensions))


def _experts_in_steps(config: Config, dimensions: dict[str, int]) -> dict[str, int]:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    step, skipped = optional(config, "decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    sparse = sum(layer not in skipped and (layer + 1) % step == 0 for layer in range(dimensions["layers"]))
    experts = _experts(config, whole(config, "moe_intermediate_size"), dense=dimensions["layers"] - sparse)
    return dimensions | experts | {"interleaved": step > 1}


def olmoe(config: Config) -> ModelShape:
    """Experts in every layer; queries and keys have a norm over all heads: (H + K) d."""
    dimensions = decoder(config)
    dimensions |= _experts(config, dimensions["feed_forward"], default=(64, 8))
    normed, biases = dimensions["heads"] + dimensions["kv_heads"], projection_biases(config, dimensions)
    return with_rms_norms(dimensions, query_key_norms=normed, biases=biases)


def minimax_m2(config: Config) -> ModelShape:
    """The same with a routing bias; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    dimensions |= _experts(config, dimensions["feed_forward"], default=(256, 8))
    normed = dimensions["heads"] + dimensions["kv_heads"]
    return with_rms_norms(dimensions, query_key_norms=normed, router=dimensions["experts"])


def ernie4_5_moe(config: Config) -> ModelShape:
    """Experts with a routing bias in every n-th layer from a first to a last one, beside shared ones.

    Raises:
        UsageError: its projections have biases.
    """
    if config.get("use_bias"):
        raise UsageError("an ERNIE 4.5 with experts and biases of its projections cannot be planned yet")
    dimensions = decoder(config, tied=True)
    to_end = config.get("moe_layer_end_index", -1) == -1
    end = dimensions["layers"] if to_end else whole(config, "moe_layer_end_index") + 1
    step, start = optional(config, "moe_layer_interval", 1), whole(config, "moe_layer_start_index", default=1)
    sparse = sum((layer + 1) % step == 0 for layer in range(start, min(end, dimensions["layers"])))
    width = whole(config, "moe_intermediate_size", default=1536)
    named = {"num_experts": config.get("moe_num_experts", 64), "num_experts_per_tok": config.get("moe_k", 6)}
    named["n_shared_experts"] = config.get("moe_num_shared_experts", 2)
    dimensions |= _experts(named, width, dense=dimensions["layers"] - sparse) | {"interleaved": step > 1}
    return with_rms_norms(dimensions, router=dimensions["experts"])


def glm4_moe(config: Config) -> ModelShape:
    """Experts with a routing bias in all but the first layers; queries and keys have a norm if `use_qk_norm`."""
    dense = whole(config, "first_k_dense_replace", default=1)
    dimensions = decoder(config) | _experts(config, whole(config, "moe_intermediate_size"), dense=dense)
    biases, norms = projection_biases(config, dimensions, output=False), 2 if config.get("use_qk_norm") else 0
    return with_rms_norms(dimensions, query_key_norms=norms, biases=biases, router=dimensions["experts"])


def llama4(config: Config) -> ModelShape:
    """Experts and a shared one in every n-th layer; all but every fourth layer attend within chunks."""
    dimensions, width = decoder(config, width_key="intermediate_size_mlp"), whole(config, "intermediate_size")
    every = dimensions["layers"] // optional(config, "interleave_moe_layer_step", 1)
    dense = dimensions["layers"] - (every if config.get("moe_layers") is None else len(config["moe_layers"]))
    dimensions |= window(config, full_every=optional(config, "no_rope_layer_interval", 4))
    dimensions |= _experts(config, width, dense=dense) | {"shared_feed_forward": width}
    dimensions |= {"interleaved": dense > 0, "chunked": True}
    return with_rms_norms(dimensions, biases=projection_biases(config, dimensions))


def arctic(config: Config) -> ModelShape:
    """A dense MLP of width h and a norm stand beside the experts of every layer, as a shared expert would."""
    if not config.get("use_residual") or config.get("moe_layer_frequency") != 1:
        raise UsageError("an Arctic without a dense MLP beside the experts of every layer cannot be planned yet")
    dimensions = decoder(config)
    dimensions |= _experts(config, dimensions["feed_forward"]) | {"shared_feed_forward": dimensions["hidden"]}
    return with_rms_norms(dimensions, norms=3)


def mixtral(config: Config) -> ModelShape:
    """A mistral with experts in every layer, as wide as `intermediate_size`."""
    dimensions = decoder(config) | window(config)
    return with_rms_norms(dimensions | _experts(config, dimensions["feed_forward"], default=(8, 2)))


def gpt_oss(config: Config) -> ModelShape:
    """Biases everywhere, a sink per head, and a window in every second layer."""
    dimensions = decoder(config, head_dim=64) | window(config, full_every=2)
    hidden, width = dimensions["hidden"], dimensions["feed_forward"]
    dimensions |= _experts(config, width, default=(128, 4))
    biases = dimensions["heads"] + projection_biases(config, dimensions, default=True)
    return with_rms_norms(dimensions, biases=biases, expert=2 * width + hidden, router=dimensions["experts"])


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
    return with_rms_norms(dimensions | {"latent": latent}, biases=norms + biases, router=router)
