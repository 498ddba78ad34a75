"""An exported adapter on disk, `adapter_config.json` beside `adapter_model.safetensors`, read without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_LONGEST_HEADER = 100_000_000
"""Bytes; the library of safetensors reads no longer one."""
_LONGEST_REASON = 300
_A, _B, _MAGNITUDES = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_TENSOR = re.compile(rf"base_model\.model\.(.+)\.({re.escape(_A)}|{re.escape(_B)}|{_MAGNITUDES})")
_READ = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "use_dora": "use_dora"}
"""Settings of the run file by their names in the config."""
_HARMLESS = (
    *("peft_type", "peft_version", "task_type", "auto_mapping", "inference_mode", "runtime_config", "megatron_core"),
    *("base_model_name_or_path", "revision", "bias", "fan_in_fan_out", "init_lora_weights", "ensure_weight_tying"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "qalora_group_size"),
)
"""Further keys of adapters that are W + alpha / rank * B A; which layers have one, the tensors say."""
_BEGINNINGS = (True, False, "gaussian", "orthogonal", "eva")
"""First values that leave the weights of the checkpoint as they are."""


def continued(adapter: Adapter) -> Adapter:
    """An adapter as its `folder` describes it, with an absolute path; one without a folder as it is.

    Raises:
        UsageError: the folder has no adapter that training can continue from, or the run file contradicts it.
    """
    if adapter.folder is None:
        return adapter
    folder = Path(adapter.folder).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"`{adapter.folder}` is not a folder", hint="name the folder of an exported adapter")
    config = _config(folder)
    try:
        found = Adapter.model_validate({key: config[name] for key, name in _READ.items() if name in config})
    except ValidationError as error:
        first = error.errors()[0]
        raise _refusal(folder, f"`{_READ[str(first['loc'][0])]}` of {_CONFIG}: {first['msg']}") from None
    found = found.model_copy(update={"targets": _targets(folder, found), "folder": str(folder), "base": adapter.base})
    for key in ("rank", "alpha", "use_dora"):
        if key in adapter.model_fields_set and getattr(adapter, key) != getattr(found, key):
            raise UsageError(
                f"`{key}` is {getattr(adapter, key)}, and {getattr(found, key)} in `{folder}`",
                hint=f"leave `{key}` out: it is that of the folder",
            )
    named = [(short, name) for short in adapter.targets for name in found.targets if f".{name}".endswith(f".{short}")]
    both = [set(adapter.targets), set(found.targets)]
    if adapter.targets and [set(each) for each in zip(*named, strict=True)] != both:
        raise UsageError(
            f"`targets` are {', '.join(adapter.targets)}, and {', '.join(found.targets)} in `{folder}`",
            hint="leave `targets` out: they are those of the folder",
        )
    dropout = adapter.dropout if "dropout" in adapter.model_fields_set else found.dropout
    return found.model_copy(update={"dropout": dropout})


def _refusal(folder: Path, why: str) -> UsageError:
    shown = "".join(each if each.isprintable() else "?" for each in why[:_LONGEST_REASON])  # names are the file's
    hint = "training continues from LoRA and DoRA of linear layers, as `trainworks export` and `peft` write them"
    return UsageError(f"cannot continue from the adapter in `{folder}`: {shown}", hint=hint)


def _config(folder: Path) -> dict[str, Any]:
    """The config of an adapter whose weights are in safetensors."""
    if not (folder / _WEIGHTS).is_file():
        if (folder / _PICKLE).exists():
            raise UsageError(
                f"the adapter in `{folder}` is {_PICKLE}, a pickle, which may run any code when it is read",
                hint="where you trust it, open it with `peft` and save it with `save_pretrained`, as safetensors",
            )
        raise _refusal(folder, f"it has no {_WEIGHTS}")
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(folder, f"cannot read {_CONFIG}: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise _refusal(folder, f"{_CONFIG} has no `peft_type: LORA`")
    other = [key for key, value in config.items() if value and key not in _HARMLESS and key not in _READ.values()]
    other += [
        key
        for key, usual in (("bias", ("none",)), ("init_lora_weights", _BEGINNINGS))
        if key in config and config[key] not in usual
    ]
    if other:
        raise _refusal(folder, f"{_CONFIG} has `{other[0]}: {json.dumps(config[other[0]])}`")
    if missing := next((name for name in ("r", "lora_alpha") if name not in config), None):
        raise _refusal(folder, f"{_CONFIG} has no `{missing}`")
    return config


def _targets(folder: Path, found: Adapter) -> tuple[str, ...]:
    """The layers that have an adapter, like `self_attn.q_proj`, of which each has all its tensors, of one rank."""
    layers: dict[str, dict[str, list[int]]] = {}
    for name, shape in _shapes(folder).items():
        if (match := _TENSOR.fullmatch(name)) is None:
            raise _refusal(folder, f"tensor `{name}` belongs to no adapter of a linear layer")
        layers.setdefault(match[1], {})[match[2]] = shape
    if not layers:
        raise _refusal(folder, f"{_WEIGHTS} has no tensors")
    wanted = (_A, _B, _MAGNITUDES) if found.use_dora else (_A, _B)
    for layer, tensors in layers.items():
        if unlike := set(tensors).symmetric_difference(wanted):
            part = min(unlike)
            has = "has a" if part in tensors else "lacks its"
            raise _refusal(folder, f"layer `{layer}` {has} `{part}`")
        for part, axis in ((_A, 0), (_B, 1)):
            if len(tensors[part]) != 2 or tensors[part][axis] != found.rank:
                raise _refusal(folder, f"`{layer}.{part}` is {tensors[part]}, and the rank in {_CONFIG} {found.rank}")
    return tuple(sorted({".".join(layer.split(".")[-2:]) for layer in layers}))


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Shapes of the tensors by name, from the header of the file: its length in 8 bytes, and JSON."""
    file = folder / _WEIGHTS
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ValueError(f"its header has {length:,} bytes")
            header = json.loads(stream.read(length))
        shapes = {name: list(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if (size := file.stat().st_size) != 8 + length + end:
            raise ValueError(f"it has {size:,} bytes of {8 + length + end:,}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _refusal(folder, f"cannot read {_WEIGHTS}: {error}") from None
    return shapes
