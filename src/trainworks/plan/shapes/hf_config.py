"""Reading a Hugging Face config.json: what its families share.

A key that a config leaves out has the default of the family's class in `transformers`; tests build every family there
and compare. Symbols: those of `plan.parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainworks.errors import UsageError
from trainworks.plan.parameters import num_parameters
from trainworks.record.resolved import ModelShape

__all__ = ["Config", "attention_biases", "completed", "decoder", "whole", "window"]

Config = Mapping[str, Any]


def completed(**fields: Any) -> ModelShape:
    """A shape with the parameters that its other fields amount to."""
    shape = ModelShape(**fields, num_parameters=0)
    return shape.model_copy(update={"num_parameters": num_parameters(shape)})


def decoder(
    config: Config, *, head_dim: int | None = None, tied: bool = False, width_key: str = "intermediate_size"
) -> dict[str, Any]:
    """Dimensions in the words that most families use, with a gated MLP and rotary positions."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    return {
        "layers": whole(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or head_dim or hidden // heads),
        "feed_forward": whole(config, width_key),
        "vocabulary": whole(config, "vocab_size"),
        "max_sequence_length": whole(config, "max_position_embeddings", default=2048),
        "tie_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "gated_mlp": True,
        "learned_positions": False,
    }


def window(config: Config, *, full_every: int | None = None) -> dict[str, int]:
    """The sliding window and the layers that have it: those that `layer_types` names, else all, or all but every
    n-th.
    """
    tokens, layers = int(config.get("sliding_window") or 0), whole(config, "num_hidden_layers")
    types = config.get("layer_types")
    without = layers // full_every if full_every else 0
    sliding = layers - without if types is None else list(types).count("sliding_attention")
    return {"window": tokens, "window_layers": sliding} if tokens and sliding else {}


def attention_biases(dimensions: Mapping[str, Any], *, output: bool) -> int:
    """(H + 2 K) d, and h for the output projection."""
    heads = dimensions["heads"] + 2 * dimensions["kv_heads"]
    return int(heads * dimensions["head_dim"] + (dimensions["hidden"] if output else 0))


def whole(config: Config, *names: str, default: int | None = None) -> int:
    """The first of these keys that the config has.

    Raises:
        UsageError: it has none of them, and there is no default.
    """
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    if default is None:
        raise UsageError(f"the config of this `{config.get('model_type')}` has no `{names[0]}`")
    return default
