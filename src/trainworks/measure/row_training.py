"""What a measured run trains, and what it keeps in the host's memory: adapters and offloading.

Both change memory and time by factors, so a row whose words name one of them is never priced as a run without it.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast, get_args

from trainworks.config.finetune import LARGEST_ADAPTER_RANK, Adapter
from trainworks.errors import UsageError
from trainworks.measure.tables import Row, flag_of, text_of, whole_of
from trainworks.plan.run.adapters import adapter_parameters
from trainworks.record.model_shape import ModelShape

ADAPTER_COLUMNS = ("adapter_rank", "adapter_targets", "adapter_base")
OFFLOADING_COLUMNS = ("offload_activations", "offload_optimizer")

_SAYING = ("model", "source", "framework", "notes", "zero_stage", "recompute", "precision")
_METHODS = r"(?:q?lora|dora|peft|offload\w*)"
_DENIED = re.compile(
    rf"\b(?:no|not|without|w/o)\s+(?:\w+[\s-]+)?{_METHODS}|\b(?:\w+[\s-]+)?{_METHODS}\s*[:=]?\s*(?:no|none|off|false|0)\b",
    re.IGNORECASE,
)
"""What a row says that its run does not do."""
_ADAPTERS = re.compile(r"\b(?:q?lora|dora|peft)\b", re.IGNORECASE)
_EVERY_LAYER = ("all", "all-linear", "all linear", "linear")
_SHORT_NAMES = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
Base = Literal["auto", "fp32", "bf16", "nf4"]

_OFFLOAD = re.compile(r"\b(?:cpu[- ])?offload\w*|zero-?offload|cpu[\s_-]?adam", re.IGNORECASE)
_TO_HOST = r"offload(?:s|ed|ing)?[\s_:-]+(?:of[\s_]+)?(?:the[\s_]+)?"
_ACTIVATIONS = re.compile(rf"activations?[\s_-]+offload|{_TO_HOST}activation", re.IGNORECASE)
_OPTIMIZER = re.compile(
    rf"(?:optimi[sz]er|adam)(?:[\s_-]+(?:states?|cpu))*[\s_-]+offload|{_TO_HOST}(?:optimi[sz]er|adam)|zero-?offload|"
    r"cpu[\s_-]?adam",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    rf"(?:param(?:eter)?s?|weights?|model)[\s_-]+offload|{_TO_HOST}(?:param|weight|model)|zero-infinity|"
    r"nvme[\s_-]+offload|offload[^;.,]*\bnvme\b",
    re.IGNORECASE,
)


class Offloading(NamedTuple):
    """What a run keeps in the host's memory."""

    activations: int | None
    """1, or 0 where a column says so; None where the row says nothing."""
    optimizer: bool


def read_adapter(row: Row, shape: ModelShape, precision: str) -> Adapter | None:
    """Adapter that a row's run trains beside frozen weights; None for a run of all weights.

    Raises:
        UsageError: the row's words name adapters without a rank, or the columns do not describe one of this model.
    """
    rank, words = whole_of(row, "adapter_rank"), _words(row)
    said = _ADAPTERS.search(words)
    if said is not None and said[0].lower() == "dora":
        raise UsageError(f"`{said[0]}` is not planned: its adapters have magnitudes, too")
    if rank is None:
        if filled := next((name for name in ADAPTER_COLUMNS[1:] if text_of(row, name)), None):
            raise UsageError(f"{filled} is filled in, and adapter_rank is empty")
        if said is not None and not text_of(row, "adapter_rank"):
            raise UsageError(
                f"`{said[0]}` trains adapters beside frozen weights: fill in adapter_rank, 0 where all weights train"
            )
        return None
    if rank > (most := min(shape.hidden, LARGEST_ADAPTER_RANK)):
        raise UsageError(f"adapter_rank {rank} is more than {most}, the largest of this model")
    base = text_of(row, "adapter_base").lower() or _usual_base(words, precision)
    if base not in get_args(Base):
        raise UsageError(f"adapter_base `{base}` is not one of {', '.join(get_args(Base))}")
    adapter = Adapter(rank=rank, targets=_targets(row), base=cast("Base", base))
    if not adapter_parameters(shape, adapter):
        raise UsageError(f"adapter_targets `{text_of(row, 'adapter_targets')}` names no linear layer of the model")
    return adapter


def _usual_base(words: str, precision: str) -> Base:
    """4 bits in QLoRA or with nf4, else the format of the weights in this precision."""
    if re.search(r"qlora|nf4", words, re.IGNORECASE):
        return "nf4"
    return "fp32" if precision in ("fp32", "tf32") else "bf16"


def _targets(row: Row) -> tuple[str, ...]:
    """Names of the adapted layers: `q_proj v_proj`, `q, v`; none for every linear layer of the blocks."""
    text = text_of(row, "adapter_targets").lower()
    if text in _EVERY_LAYER:
        return ()
    names = [name for name in re.split(r"[\s,;+/|]+", text) if name]
    return tuple(_SHORT_NAMES.get(name, name) for name in names)


def read_offloading(row: Row) -> Offloading:
    """What the columns say is offloaded, else what the row's words say.

    Raises:
        UsageError: a column is neither yes nor no, the words do not say what is offloaded, or it is the weights.
    """
    words = _words(row)
    if said := _WEIGHTS.search(words):
        raise UsageError(f"`{said[0]}` keeps weights in the host's memory or states on drives, which is not planned")
    activations, optimizer = (_flag(row, name) for name in OFFLOADING_COLUMNS)
    if (said := _OFFLOAD.search(words)) is not None and activations is None and optimizer is None:
        activations = True if _ACTIVATIONS.search(words) else None
        optimizer = True if _OPTIMIZER.search(words) else None
        if activations is None and optimizer is None:
            columns = " or ".join(OFFLOADING_COLUMNS)
            raise UsageError(f"`{said[0]}` does not say what is offloaded: fill in {columns}")
    return Offloading(None if activations is None else int(activations), bool(optimizer))


def _flag(row: Row, name: str) -> bool | None:
    text = text_of(row, name).lower()
    value = True if text in ("cpu", "host") else flag_of(row, name)
    if text and value is None:
        raise UsageError(f"{name} `{text}` is neither yes nor no")
    return value


def _words(row: Row) -> str:
    """What the row says of its run, without what it denies."""
    return _DENIED.sub("", "; ".join(filter(None, (text_of(row, name) for name in _SAYING))))
