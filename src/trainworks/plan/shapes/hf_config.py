"""Reading a Hugging Face config.json: what its families share.

A key that a config leaves out has the default of the family's class in `transformers`; tests build every family there
and compare. Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.config.limits import check_limit
from trainworks.errors import UsageError
from trainworks.plan.parameters import num_parameters
from trainworks.record.model_shape import ModelShape

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


_MAY_BE_ZERO = ("first_k_dense_replace",)
_NAMES = {
    **dict.fromkeys(("num_layers", "num_single_layers"), "layers"),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "first_k_dense_replace", "decoder_sparse_step"), "layers"),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), "heads"),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"), "feed_forward"),
    **dict.fromkeys(("ffn_dim", "n_inner"), "feed_forward"),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts"), "experts"),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token"), "experts"),
    **dict.fromkeys(("vocab_size", "num_labels"), "vocabulary"),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "seq_length", "sliding_window"), "sequence_length"),
    **dict.fromkeys(("image_size", "image_height", "sample_size", "frames"), "image_size"),
}
"""The limit of each key; that of `hidden` for any other."""
