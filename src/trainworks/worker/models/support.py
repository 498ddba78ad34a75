"""Layouts that a model of `transformers` can be trained under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainworks.config.layout import ModelSupport
from trainworks.config.model import Model
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.models.families import adaptable_decoder, balance_weight, decoder_config, dropout_rate

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COLUMNS, ROWS = "colwise", "rowwise"
"""Cuts of `base_model_tp_plan` that the worker makes."""
_WHOLE = "the worker trains it as `transformers` computes it"


def support_of(config: PretrainedConfig, *, adapted: bool) -> ModelSupport:
    """What the worker can do with a model.

    Args:
        config: of the model.
        adapted: whether adapters train beside it.
    """
    decoder = adaptable_decoder(config) if adapted else decoder_config(config)
    facts: dict[str, Any] = {"model_type": config.model_type, "dropout": dropout_rate(config)}
    facts["balance_loss"] = balance_weight(config)
    if decoder is not None:
        return ModelSupport(**facts)
    uncut = dict.fromkeys(("pp", "cp", "ep"), _WHOLE)
    if reason := _no_tensor_parallel(config):
        uncut["tp"] = reason
    elif heads := getattr(config, "num_key_value_heads", None):
        facts["key_heads"] = heads
    return ModelSupport(**facts, uncut=uncut)


def _no_tensor_parallel(config: PretrainedConfig) -> str | None:
    """The reason why a model that the decoder is not cannot be cut by the table that `transformers` has for it."""
    if rate := dropout_rate(config):
        return f"with dropout ({rate:g}), each rank would drop other values of activations that all ranks share"
    table = getattr(config, "base_model_tp_plan", None) or {}
    if unknown := sorted(set(table.values()) - {COLUMNS, ROWS}):
        return f"its table in `transformers` has {', '.join(unknown)}"
    return None if table else "`transformers` has no table for it"


def loaded_config(model: Model) -> PretrainedConfig:
    """The config of a model that is named, with the balance loss of the run file.

    Raises:
        EnvironmentProblem: it cannot be read.
        UsageError: the run file has a balance loss, and the model does not.
    """
    from transformers import AutoConfig  # noqa: PLC0415  # a second, for models that are named alone

    try:
        config = AutoConfig.from_pretrained(str(model.hf))
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load `{model.hf}`: {error}") from None
    if model.balance_loss and not hasattr(config, "router_aux_loss_coef"):
        raise UsageError(
            f"`balance_loss` is for experts that `transformers` balances, and `{model.hf}` has none", hint="remove it"
        )
    if model.balance_loss is not None:
        config.router_aux_loss_coef = model.balance_loss
        config.output_router_logits = model.balance_loss > 0
    return config
