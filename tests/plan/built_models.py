"""The models that `transformers` builds from a config, without memory for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers

CLASSES = {"bert": transformers.BertForPreTraining, "vit": transformers.ViTForImageClassification}
CLASSES |= {"dinov2": transformers.Dinov2ForImageClassification}
_IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def config_of(fields: Mapping[str, Any]) -> Any:
    """The config object of a `model_type` and its dimensions."""
    named = dict(fields)
    kind = named.pop("model_type").replace("kimi_k2", "deepseek_v3")
    ids = {} if kind in ("vit", "dinov2") else _IDS
    return transformers.AutoConfig.for_model(kind, **(ids | named))


def built(fields: Mapping[str, Any], *, model_class: Any = None) -> Any:
    """The model with its usual head."""
    config = config_of(fields)
    chosen = model_class or CLASSES.get(config.model_type)
    return chosen(config) if chosen else transformers.AutoModelForCausalLM.from_config(config)


def built_parameters(fields: Mapping[str, Any], *, model_class: Any = None) -> int:
    """Weights of that model, and the routing bias, which is trained without a gradient; a shared matrix counts once."""
    with torch.device("meta"):
        model = built(fields, model_class=model_class)
    routing = sum(bias.numel() for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return routing + sum(parameter.numel() for parameter in model.parameters())
