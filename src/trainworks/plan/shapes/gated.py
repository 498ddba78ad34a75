"""Decoders with rotary positions, RMS norms and a gated MLP, dense or with experts.

Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.plan.shapes.hf_config import Config, attention_biases, completed, decoder, optional, whole, window
from trainworks.record.model_shape import LatentAttention, ModelShape, SmallParameters


def llama(config: Config) -> ModelShape:
    """RMS norms 2 h; biases of all projections if `attention_bias`, of the MLP 2 f + h if `mlp_bias`."""
    dimensions = decoder(config)
    hidden = dimensions["hidden"]
    biases = attention_biases(dimensions, output=True) if config.get("attention_bias") else 0
    mlp = 2 * dimensions["feed_forward"] + hidden if config.get("mlp_bias") else 0
    small = SmallParameters(layer=2 * hidden + biases, dense_mlp=mlp, model=hidden)
    return completed(**dimensions, small=small)


def smollm3(config: Config) -> ModelShape:
    """A llama whose embeddings are tied by default."""
    return llama({"tie_word_embeddings": True} | dict(config))


def mistral(config: Config) -> ModelShape:
    """A llama whose layers may all have a sliding window."""
    dimensions = decoder(config) | window(config)
    hidden = dimensions["hidden"]
    return completed(**dimensions, small=SmallParameters(layer=2 * hidden, model=hidden))


def qwen2(config: Config) -> ModelShape:
    """Queries, keys and values have biases: (H + 2 K) d."""
    dimensions = decoder(config)
    hidden = dimensions["hidden"]
    layer = 2 * hidden + attention_biases(dimensions, output=False)
    return completed(**dimensions, small=SmallParameters(layer=layer, model=hidden))


def qwen3(config: Config) -> ModelShape:
    """Queries and keys have a norm of d each; heads are 128 wide by default."""
    dimensions = decoder(config, head_dim=128)
    return completed(**dimensions, small=_qwen3_small(config, dimensions))


def qwen3_moe(config: Config) -> ModelShape:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    dimensions = decoder(config)
    step, skipped = optional(config, "decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    layers = range(dimensions["layers"])
    sparse = sum(layer not in skipped and (layer + 1) % step == 0 for layer in layers)
    experts = {
        "experts": whole(config, "num_experts", "num_local_experts"),
        "experts_per_token": whole(config, "num_experts_per_tok"),
        "expert_feed_forward": whole(config, "moe_intermediate_size"),
        "dense_layers": dimensions["layers"] - sparse,
    }
    return completed(**dimensions, **experts, small=_qwen3_small(config, dimensions))


def _qwen3_small(config: Config, dimensions: Mapping[str, Any]) -> SmallParameters:
    biases = attention_biases(dimensions, output=True) if config.get("attention_bias") else 0
    layer = 2 * dimensions["hidden"] + 2 * dimensions["head_dim"] + biases
    return SmallParameters(layer=layer, model=dimensions["hidden"])


def olmo2(config: Config) -> ModelShape:
    """Norms follow attention and MLP; queries and keys have a norm over all heads: (H + K) d."""
    return _olmo_with(config, decoder(config))


def olmo3(config: Config) -> ModelShape:
    """An olmo2 in which all but every fourth layer have a window."""
    return _olmo_with(config, decoder(config) | window(config, full_every=4))


def _olmo_with(config: Config, dimensions: dict[str, Any]) -> ModelShape:
    hidden = dimensions["hidden"]
    query_key_norms = (dimensions["heads"] + dimensions["kv_heads"]) * dimensions["head_dim"]
    biases = attention_biases(dimensions, output=True) if config.get("attention_bias") else 0
    return completed(**dimensions, small=SmallParameters(layer=2 * hidden + query_key_norms + biases, model=hidden))


def mixtral(config: Config) -> ModelShape:
    """A mistral with experts in every layer, as wide as `intermediate_size`."""
    dimensions = decoder(config) | window(config)
    hidden = dimensions["hidden"]
    experts = {
        "experts": whole(config, "num_local_experts", default=8),
        "experts_per_token": whole(config, "num_experts_per_tok", default=2),
        "expert_feed_forward": dimensions["feed_forward"],
    }
    return completed(**dimensions, **experts, small=SmallParameters(layer=2 * hidden, model=hidden))


def gpt_oss(config: Config) -> ModelShape:
    """Biases everywhere, a sink per head, and a window in every second layer."""
    dimensions = decoder(config, head_dim=64) | window(config, full_every=2)
    hidden, width = dimensions["hidden"], dimensions["feed_forward"]
    experts = whole(config, "num_local_experts", "num_experts", default=128)
    biases = attention_biases(dimensions, output=True) if config.get("attention_bias", True) else 0
    small = SmallParameters(
        layer=2 * hidden + dimensions["heads"] + biases, expert=2 * width + hidden, router=experts, model=hidden
    )
    return completed(
        **dimensions,
        experts=experts,
        experts_per_token=whole(config, "num_experts_per_tok", "experts_per_token", default=4),
        expert_feed_forward=width,
        small=small,
    )


def gemma(config: Config) -> ModelShape:
    """A llama with wide heads and tied embeddings."""
    return _gemma_with(config, decoder(config, head_dim=256, tied=True), norms=2)


def gemma2(config: Config) -> ModelShape:
    """Every second layer sees all; the others have a window."""
    return _gemma_with(config, decoder(config, head_dim=256, tied=True) | window(config, full_every=2), norms=4)


def gemma3(config: Config) -> ModelShape:
    """Every sixth layer sees all; queries and keys have a norm of d each."""
    dimensions = decoder(config, head_dim=256, tied=True) | window(config, full_every=6)
    return _gemma_with(config, dimensions, norms=4, query_key_norms=2)


def _gemma_with(config: Config, dimensions: dict[str, Any], *, norms: int, query_key_norms: int = 0) -> ModelShape:
    hidden = dimensions["hidden"]
    biases = attention_biases(dimensions, output=True) if config.get("attention_bias") else 0
    layer = norms * hidden + query_key_norms * dimensions["head_dim"] + biases
    return completed(**dimensions, small=SmallParameters(layer=layer, model=hidden))


def deepseek_v2(config: Config) -> ModelShape:
    """Latent attention and experts in all but the first `first_k_dense_replace` layers."""
    return _deepseek(config, dense_layers=0, routing_bias=False)


def deepseek_v3(config: Config) -> ModelShape:
    """The same with a routing bias; Kimi K2 is one too."""
    return _deepseek(config, dense_layers=3, routing_bias=True)


def _deepseek(config: Config, *, dense_layers: int, routing_bias: bool) -> ModelShape:
    """Latent attention, shared experts, dense first layers, and in V3 a routing bias of E that balances the load.

    Layers that predict further tokens (`num_nextn_predict_layers`) are not counted.
    """
    latent = LatentAttention(
        query_rank=optional(config, "q_lora_rank", 0) if "q_lora_rank" in config else 1536,
        kv_rank=whole(config, "kv_lora_rank", default=512),
        rope_head_dim=whole(config, "qk_rope_head_dim", default=64),
        nope_head_dim=whole(config, "qk_nope_head_dim", default=128),
        value_head_dim=whole(config, "v_head_dim", default=128),
    )
    width = whole(config, "moe_intermediate_size")
    experts = whole(config, "n_routed_experts", "num_local_experts")
    dimensions = decoder(config) | {"head_dim": latent.nope_head_dim + latent.rope_head_dim}
    dimensions["kv_heads"] = dimensions["heads"]
    return completed(
        **dimensions,
        experts=experts,
        experts_per_token=whole(config, "num_experts_per_tok"),
        expert_feed_forward=width,
        shared_feed_forward=width * optional(config, "n_shared_experts", 0),
        dense_layers=whole(config, "first_k_dense_replace", default=dense_layers),
        latent=latent,
        small=SmallParameters(
            layer=_latent_small(config, latent, dimensions["hidden"]),
            router=experts if routing_bias else 0,
            model=dimensions["hidden"],
        ),
    )


def _latent_small(config: Config, latent: LatentAttention, hidden: int) -> int:
    """Norms 2 h + q + c; with `attention_bias` also those of the down-projections and the output: q + c + r + h."""
    norms = 2 * hidden + latent.query_rank + latent.kv_rank
    biases = latent.query_rank + latent.kv_rank + latent.rope_head_dim + hidden
    return norms + (biases if config.get("attention_bias") else 0)
