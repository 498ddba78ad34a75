"""Layouts that a model of `transformers` can be trained under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainworks.config.layout import ModelSupport
from trainworks.config.model import Model
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.models.families import adaptable_decoder, balance_weight, decoder_config, dropout_rate

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COLUMNS, ROWS = "colwise", "rowwise"
"""Cuts of `base_model_tp_plan` that the worker makes."""


def support_of(config: PretrainedConfig, *, adapted: bool) -> ModelSupport:
    """What the worker can do with a model, beside which adapters train if it is `adapted`."""
    decoder = adaptable_decoder(config) if adapted else decoder_config(config)
    uncut, key_heads = {}, 0
    if decoder is None:
        uncut = dict.fromkeys(("pp", "cp", "ep"), "the worker trains it as `transformers` computes it")
        if reason := _no_tensor_parallel(config):
            uncut["tp"] = reason
        else:
            key_heads = getattr(config, "num_key_value_heads", None) or 0
    return ModelSupport(
        model_type=config.model_type,
        uncut=uncut,
        key_heads=key_heads,
        dropout=dropout_rate(config),
        balance_loss=balance_weight(config),
    )


def _no_tensor_parallel(config: PretrainedConfig) -> str | None:
    """The reason why a model that the decoder is not cannot be cut by the table that `transformers` has for it."""
    if rate := dropout_rate(config):
        return f"with dropout ({rate:g}), each rank would drop other values of activations that all ranks share"
    table = getattr(config, "base_model_tp_plan", None) or {}
    if unknown := sorted(set(table.values()) - {COLUMNS, ROWS}):
        return f"its table in `transformers` has {', '.join(unknown)}"
    return None if table else "`transformers` has no table for it"


def loaded_config(model: Model, **changes: int) -> PretrainedConfig:
    """The config of a model that is named, with the balance loss of the run file and other fields changed.

    Raises:
        EnvironmentProblem: it cannot be read.
        UsageError: the run file has a balance loss, and the model does not.
    """
    from transformers import AutoConfig, logging  # noqa: PLC0415  # a second, for models that are named alone

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(str(model.hf), **changes)
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
