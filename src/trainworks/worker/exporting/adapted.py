"""A trained adapter, as `peft` stores it, or merged into the weights that it was trained beside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from trainworks.config.finetune import Adapter
from trainworks.config.run_file import Workload
from trainworks.files import naming_full_disk, write_atomic
from trainworks.record.model_shape import ModelShape
from trainworks.worker.exporting.files import DTYPES, read_tensors, report, save_tensors, state_of
from trainworks.worker.models.adapters import linear_layers
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import adaptable_decoder, stored_as
from trainworks.worker.models.nf4 import dequantized, quantized
from trainworks.worker.models.transformer import blocks_of, checkpoint_folder, model_config

_PEFT = "base_model.model."
_CONV1D = ("gpt2",)
"""Models whose linear layers are `Conv1D`, which stores weights transposed."""
_INDEX = "model.safetensors.index.json"


def write_adapted(
    workload: Workload, shape: ModelShape, folder: Path, part: Path, dtype: str, *, merge: bool
) -> dict[str, Any]:
    """Write the adapter of a checkpoint; returns tensors, bytes and files.

    Args:
        workload: with the adapter.
        shape: of the model.
        folder: of the checkpoint.
        part: where the files go.
        dtype: of what is written.
        merge: write the whole model.

    Raises:
        EnvironmentProblem: the checkpoint, or that which the adapter belongs to, cannot be read.
        DiskFullError: no space left.
    """
    assert workload.adapter is not None and workload.model.hf is not None
    config = model_config(workload.model, shape)
    matrices = read_tensors(folder, {name: like for name, like in state_of(folder).items() if ".lora_" in name})
    layer_of = _names_in_files(config)
    trained = {
        f"{layer_of(name.partition('.lora_')[0])}.lora_{name.partition('.lora_')[2]}": value
        for name, value in matrices.items()
    }
    if merge:
        return _write_merged(workload.adapter, config, checkpoint_folder(workload.model.hf), trained, part, dtype)
    return _write_adapter(workload, config, trained, part, dtype)


def _names_in_files(config: PretrainedConfig) -> Callable[[str], str]:
    """A layer's name in the files of `transformers`, from that in the checkpoint."""
    if adaptable_decoder(config) is None:
        return lambda name: name.removeprefix("model.")
    return lambda name: stored_as(f"{name}.weight", config).names[0].removesuffix(".weight")


def _write_adapter(
    workload: Workload, config: PretrainedConfig, trained: dict[str, Tensor], part: Path, dtype: str
) -> dict[str, Any]:
    adapter = workload.adapter
    assert adapter is not None
    content = {f"{_PEFT}{name}": value.to(DTYPES[dtype]).contiguous() for name, value in trained.items()}
    save_tensors(content, part / "adapter_model.safetensors")
    layers = [name.partition(".lora_")[0] for name in trained]
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": workload.model.hf,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": sorted({".".join(name.split(".")[-2:]) for name in layers}),
        "fan_in_fan_out": config.model_type in _CONV1D,
        "bias": "none",
        "inference_mode": True,
    }
    write_atomic(part / "adapter_config.json", json.dumps(settings, indent=2) + "\n")
    size = sum(tensor.nbytes for tensor in content.values())
    report(size, size)
    return {"tensors": len(content), "bytes": size, "files": 1}


def _write_merged(
    adapter: Adapter, config: PretrainedConfig, base: Path, trained: dict[str, Tensor], part: Path, dtype: str
) -> dict[str, Any]:
    """One file of the checkpoint after the other, with alpha / rank * B A added to the weights that have an adapter.

    Weights that were kept in 4 bits are written as these have them: the adapter was trained to go with those.
    """
    frozen = _in_nf4(config) if adapter.base == "nf4" else set()
    transposed = config.model_type in _CONV1D
    files = sorted(base.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    tensors = size = done = 0
    for file in files:
        content: dict[str, Tensor] = {}
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # it has no iterator
                value = _merged(stored.get_tensor(name), name, adapter, trained, frozen, transposed=transposed)
                content[name] = value.to(DTYPES[dtype]).contiguous() if value.is_floating_point() else value
        save_tensors(content, part / file.name)
        tensors += len(content)
        size += sum(tensor.nbytes for tensor in content.values())
        done += file.stat().st_size
        report(done, total)
    if (base / _INDEX).is_file():
        shutil.copyfile(base / _INDEX, part / _INDEX)
    config.dtype = DTYPES[dtype]
    with naming_full_disk(part):
        config.save_pretrained(part)
    return {"tensors": tensors, "bytes": size, "files": len(files)}


def _merged(
    weight: Tensor, name: str, adapter: Adapter, trained: dict[str, Tensor], frozen: set[str], *, transposed: bool
) -> Tensor:
    """A tensor of the checkpoint, with its adapter if it has one; files may lack the prefix of the model."""
    layer = name.removesuffix(".weight")
    names = (layer, f"transformer.{layer}", f"model.{layer}")
    known = next((each for each in names if each in frozen or f"{each}.lora_A.weight" in trained), None)
    if known is None or not name.endswith(".weight"):
        return weight
    if known in frozen:
        weight = dequantized(*quantized(weight), weight.shape, torch.float32)
    if f"{known}.lora_A.weight" not in trained:
        return weight
    delta = trained[f"{known}.lora_B.weight"] @ trained[f"{known}.lora_A.weight"] * (adapter.alpha / adapter.rank)
    return weight.float() + (delta.T if transposed else delta)


def _in_nf4(config: PretrainedConfig) -> set[str]:
    """Names, in the files, of the layers that are kept in 4 bits."""
    decoder = adaptable_decoder(config)
    with torch.device("meta"):
        model: nn.Module = Decoder(decoder) if decoder is not None else AutoModelForCausalLM.from_config(config)
    blocks = model.blocks if isinstance(model, Decoder) else blocks_of(model)
    layer_of = _names_in_files(config)
    return {layer_of(name) for name, _ in linear_layers(model, blocks)}
