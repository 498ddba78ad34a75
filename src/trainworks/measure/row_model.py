"""Model of a measured run: a known name, or the dimensions that a row prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from trainworks.catalog.catalog import explain_term
from trainworks.catalog.models import find_preset, preset
from trainworks.errors import UsageError
from trainworks.measure.tables import Row, needed_whole, number_of, text_of, whole_of
from trainworks.plan.parameters import num_parameters, resized
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.record.model_shape import ModelShape

_EXPERT_COLUMNS = ("experts", "experts_per_token", "expert_ffn", "shared_experts", "dense_layers")
MODEL_COLUMNS = (
    *("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab"),
    *_EXPERT_COLUMNS,
)
_PADDING = 128
_GATED_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|deepseek|yi|falcon3|olmo|granite|phi-?3|smollm", re.IGNORECASE
)
_EXPERT_NAMES = re.compile(r"\d+x\d+b|moe\b|[-_]a\d+b", re.IGNORECASE)


def read_model(row: Row) -> ModelShape:
    """Shape of a row's model: that of its name, unless `hidden` or `experts` says otherwise, else of its dimensions.

    Raises:
        UsageError: the name is unknown and the dimensions are missing, or say too little of the experts.
    """
    found, layers = find_preset(text_of(row, "model")), whole_of(row, "layers")
    if found is not None:
        shape = shape_of_hf_config(preset(found))
        printed = (whole_of(row, "hidden") or shape.hidden, whole_of(row, "experts") or shape.experts)
        if printed == (shape.hidden, shape.experts):
            dense_layers = _dense_of_cut(shape, layers)
            return resized(shape, layers=layers, dense_layers=dense_layers, vocabulary=whole_of(row, "vocab"))
    return _shape_of_dimensions(row, layers)


def _dense_of_cut(shape: ModelShape, layers: int | None) -> int | None:
    """Layers without experts of a model cut to so many layers: their share of the model, at least one if it has any."""
    if not shape.experts or layers is None or layers == shape.layers:
        return None
    return max(min(1, shape.dense_layers), round(shape.dense_layers * layers / shape.layers))


def _shape_of_dimensions(row: Row, layers: int | None) -> ModelShape:
    """A decoder of these dimensions, with a gated MLP if its name, its size or its experts imply one.

    Raises:
        UsageError: no dimensions, or experts that no column describes.
    """
    name = text_of(row, "model")
    hidden = whole_of(row, "hidden")
    if hidden is None:
        unknown = f"model `{name}` is unknown and has no dimensions" if name else "model and hidden are empty"
        raise explain_term(name) or UsageError(unknown)
    experts = _experts(row)
    heads = whole_of(row, "heads") or max(1, hidden // 128)
    if heads > hidden:
        raise UsageError(f"{heads} heads do not fit a hidden size of {hidden}")
    gated = bool(experts) or bool(_GATED_NAMES.search(name)) or _has_gated_size(row, hidden, heads)
    width = whole_of(row, "ffn") or (-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)
    vocabulary = whole_of(row, "vocab") or (32000 if gated else 51200)
    kv_heads = whole_of(row, "kv_heads") or heads
    build = _gated_config if gated else _plain_config
    length = whole_of(row, "seq_len") or 2048

    def of(num_layers: int) -> ModelShape:
        shape = shape_of_hf_config(build(num_layers, hidden, heads, kv_heads, width, vocabulary, length))
        changed = shape.model_copy(update=experts)
        return changed.model_copy(update={"num_parameters": num_parameters(changed)}) if experts else shape

    return of(layers or _layers_of_size(row, of, experts.get("dense_layers", 0)))


def _layers_of_size(row: Row, of: Callable[[int], ModelShape], dense_layers: int) -> int:
    """The number of layers with which a model has the printed size."""
    total = number_of(row, "params_b")
    if not total:
        raise UsageError(f"model `{text_of(row, 'model')}` has neither layers nor a size")
    one, two = of(dense_layers + 1).num_parameters, of(dense_layers + 2).num_parameters
    return dense_layers + max(1, round((total * 1e9 - one) / (two - one)) + 1)


def _experts(row: Row) -> dict[str, int]:
    """The fields of a shape with experts; empty for a dense model.

    Without `expert_ffn` an expert is `ffn` wide, as those of Mixtral; a shared one is as wide as a routed one.

    Raises:
        UsageError: the model has experts by its name, and a column that describes them is empty.
    """
    name, count = text_of(row, "model"), whole_of(row, "experts")
    if count is None:
        if _EXPERT_NAMES.search(name) or text_of(row, "usable_for_step_eval").lower() == "moe":
            raise UsageError(
                f"model `{name}` is unknown, and no column says how many experts it has: fill in experts, "
                "experts_per_token and expert_ffn"
            )
        if said := next((column for column in _EXPERT_COLUMNS if whole_of(row, column)), None):
            raise UsageError(f"{said} is filled in, and experts is empty")
        return {}
    per_token, dense = needed_whole(row, "experts_per_token"), whole_of(row, "dense_layers") or 0
    if per_token > count:
        raise UsageError(f"experts_per_token {per_token} is more than the {count} experts")
    if (layers := whole_of(row, "layers")) is not None and dense >= layers:
        raise UsageError(f"dense_layers {dense} leaves none of the {layers} layers for experts")
    width = whole_of(row, "expert_ffn") or (needed_whole(row, "ffn") if not dense else needed_whole(row, "expert_ffn"))
    return {
        "experts": count,
        "experts_per_token": per_token,
        "expert_feed_forward": width,
        "shared_feed_forward": width * (whole_of(row, "shared_experts") or 0),
        "dense_layers": dense,
    }


def _has_gated_size(row: Row, hidden: int, heads: int) -> bool:
    """Shared keys and values, or an MLP of 8/3 h to 3.5 h, came with the gated ones; plain MLPs have 4 h."""
    width = whole_of(row, "ffn")
    return (whole_of(row, "kv_heads") or heads) < heads or (width is not None and 2.5 < width / hidden < 3.7)


def _gated_config(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocabulary: int, length: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
    }


def _plain_config(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocabulary: int, length: int
) -> dict[str, Any]:
    del kv_heads  # GPT-2 and its kin have one per head
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": width,
        "vocab_size": -(-vocabulary // _PADDING) * _PADDING,
        "n_positions": length,
    }
