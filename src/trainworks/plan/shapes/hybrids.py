"""Hybrids of attention and Mamba-2 in a Hugging Face config: layers that are one or the other, or an MLP, or several.

Symbols: those of `parameters`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from trainworks.errors import UsageError
from trainworks.plan.shapes.hf_config import Config, completed, decoder, optional, whole
from trainworks.record.model_shape import ModelShape, SmallParameters, StateSpace

_KINDS = {
    **dict.fromkeys(("M", "mamba", "mamba2", "linear_attention"), "mixer"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
    **dict.fromkeys(("E", "moe"), "experts"),
    "hybrid": "both",
}
"""Letters of `hybrid_override_pattern` and names in `layers_block_type`, new and old."""
_BIASES = ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "projectors_bias")


def nemotron_h(config: Config) -> ModelShape:
    """Every layer is one of a Mamba-2 mixer, attention, an MLP and experts, behind one norm; Nemotron 3 is one too.

    MLPs have no gate, routers have a bias that balances the load, and routed experts may work in a latent width.
    """
    kinds = _kinds(config, default=("mamba", "moe", "attention", "mlp"))
    fixed = {"num_hidden_layers": kinds.total(), "max_position_embeddings": 4096, "vocab_size": 131072}
    fixed |= {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 21504}
    config = fixed | dict(config) | {"num_hidden_layers": kinds.total()}
    dimensions: dict[str, Any] = decoder(config, head_dim=128) | {"gated_mlp": False}
    if kinds["experts"]:
        dimensions |= {
            "experts": whole(config, "n_routed_experts", "num_local_experts", default=8),
            "experts_per_token": whole(config, "num_experts_per_tok", default=2),
            "expert_feed_forward": whole(config, "moe_intermediate_size", default=7688),
            "expert_groups": optional(config, "n_group", 1),
            "groups_per_token": optional(config, "topk_group", 1),
            "further_tokens": optional(config, "num_nextn_predict_layers", 0),
            "shared_feed_forward": whole(config, "moe_shared_expert_intermediate_size", default=7688),
            "expert_latent": optional(config, "moe_latent_size", 0),
            "dense_layers": kinds["mlp"],
        }
    heads = whole(config, "mamba_num_heads", default=128)
    mixer = _mixer(
        kinds["mixer"],
        heads,
        whole(config, "mamba_head_dim", default=64),
        state=whole(config, "ssm_state_size", default=128),
        groups=whole(config, "n_groups", "mamba_n_groups", default=8),
        convolution=whole(config, "conv_kernel", "mamba_d_conv", default=4),
        chunk=whole(config, "chunk_size", "mamba_chunk_size", default=128),
        has_bias=bool(config.get("use_conv_bias", config.get("mamba_conv_bias", True))),
    )
    mlps, router = kinds["mlp"] + kinds["experts"], dimensions.get("experts", 0)
    return _hybrid(config, dimensions, kinds, mixer, norms=1, mlps=mlps, router=router)


def bamba(config: Config) -> ModelShape:
    """Every layer has a mixer or attention, and a gated MLP."""
    layers, attending = whole(config, "num_hidden_layers"), set(config.get("attn_layer_indices") or ())
    kinds = _kinds(config, default=["attention" if layer in attending else "mamba" for layer in range(layers)])
    return _with_mlps(config, decoder(config), kinds)


def granite_hybrid(config: Config) -> ModelShape:
    """Every layer has a mixer or attention, a gated MLP that each token passes, and unless it is dense experts."""
    kinds = _kinds(config, default=["mamba"] * whole(config, "num_hidden_layers"))
    dimensions, shared = decoder(config), optional(config, "shared_intermediate_size", 1024)
    experts = config.get("num_local_experts", 8)
    if experts:
        dimensions |= {
            "experts": whole(config, "num_local_experts", default=8),
            "experts_per_token": whole(config, "num_experts_per_tok", default=2),
            "expert_feed_forward": dimensions["feed_forward"],
            "shared_feed_forward": shared,
        }
    return _with_mlps(config, dimensions | {"feed_forward": shared}, kinds)


def falcon_h1(config: Config) -> ModelShape:
    """Every layer has a mixer beside its attention, whose outputs are added, and a gated MLP."""
    kinds = Counter({"both": whole(config, "num_hidden_layers")})
    inner = optional(config, "mamba_d_ssm", 1024)
    return _with_mlps(config, decoder(config), kinds, inner=inner, normed=bool(config.get("mamba_rms_norm", False)))


def _with_mlps(
    config: Config, dimensions: dict[str, Any], kinds: Counter[str], *, inner: int | None = None, normed: bool = True
) -> ModelShape:
    heads = whole(config, "mamba_n_heads", default=128)
    inner = inner or optional(config, "mamba_expand", 2) * dimensions["hidden"]
    mixer = _mixer(
        kinds["mixer"] + kinds["both"],
        heads,
        inner // heads,
        state=whole(config, "mamba_d_state", default=256),
        groups=whole(config, "mamba_n_groups", default=1),
        convolution=whole(config, "mamba_d_conv", default=4),
        chunk=whole(config, "mamba_chunk_size", default=256),
        has_bias=bool(config.get("mamba_conv_bias", True)),
        normed=normed,
    )
    return _hybrid(config, dimensions, kinds, mixer, norms=2, mlps=dimensions["layers"])


def _mixer(
    layers: int, heads: int, head_dim: int, *, has_bias: bool, normed: bool = True, **dimensions: int
) -> StateSpace:
    """A decay, a skip and a bias of the step per head, biases of the convolution, and a norm of all heads."""
    mixer = StateSpace(layers=layers, heads=heads, head_dim=head_dim, **dimensions, small=0)
    small = 3 * heads + has_bias * mixer.convolved + normed * mixer.inner
    return mixer.model_copy(update={"small": small})


def _hybrid(
    config: Config,
    dimensions: dict[str, Any],
    kinds: Counter[str],
    mixer: StateSpace,
    *,
    norms: int,
    mlps: int,
    router: int = 0,
) -> ModelShape:
    """The layers of each kind, with so many norms of h each, and biases of a router.

    Raises:
        UsageError: projections have biases.
    """
    if said := next((name for name in _BIASES if config.get(name)), None):
        raise UsageError(f"a hybrid with biases of its projections (`{said}`) cannot be planned yet")
    hidden = dimensions["hidden"]
    return completed(
        **dimensions,
        interleaved=True,
        state_space=mixer,
        attention_layers=kinds["attention"] + kinds["both"],
        mlp_layers=mlps,
        small=SmallParameters(layer=norms * hidden, model=hidden, router=router),
    )


def _kinds(config: Config, *, default: list[str] | tuple[str, ...]) -> Counter[str]:
    """Number of layers of each kind: by the pattern, else by the list of types, else by the default.

    Raises:
        UsageError: a letter or a type is unknown.
    """
    named = next((config[key] for key in ("hybrid_override_pattern", "hybrid_layer_pattern") if config.get(key)), None)
    named = named or config.get("layers_block_type") or config.get("layer_types") or default
    if unknown := sorted({str(name) for name in named} - set(_KINDS)):
        raise UsageError(
            f"layers of kind `{unknown[0][:40]}` cannot be planned yet", hint=f"known: {', '.join(_KINDS)}"
        )
    return Counter(_KINDS[name] for name in named)
