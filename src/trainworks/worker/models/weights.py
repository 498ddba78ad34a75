"""First values of a decoder's parameters: drawn, or read from safetensors. Each rank makes or reads its own part alone.

A drawn value depends on the seed, the parameter's name and its place in the whole parameter, never on the layout, so
that every layout starts from the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainworks.errors import EnvironmentProblem
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import StoredParameter, names_in_files, stored_as
from trainworks.worker.models.nf4 import fill, is_in_nf4

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PEFT = "base_model.model."
"""Prefix of the names in the files of an adapter."""
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
_BLOCK_VALUES = 1 << 20
"""Values drawn from one seed; a rank draws the blocks that its part touches."""

Slices = tuple[slice, ...]
SCORE = "score.weight"
"""The head of a reward model. A checkpoint of a language model has none, and it is then drawn."""


def draw_weights(
    parts: Iterable[Decoder], *, seed: int, progress: Callable[[], None] = lambda: None, only: str = ""
) -> None:
    """Normal with `Decoder.initial_std`; norms 1, biases 0. `progress` is called for each parameter, and `only` those
    are drawn whose names end so.
    """
    with torch.no_grad():
        for part in parts:
            for name, parameter in part.named_parameters():
                if not name.endswith(only):
                    continue
                progress()
                local, place = _local_part(parameter)
                std = part.initial_std(name)
                if std:
                    local.copy_(_drawn(name, parameter.shape, place, seed).mul_(std))
                else:
                    local.fill_(1.0 if std is None else 0.0)


def _drawn(name: str, shape: torch.Size, place: Slices, seed: int) -> Tensor:
    """The part `place` of a parameter of standard normal values."""
    row_values = math.prod(shape[1:])
    rows_per_block = max(1, _BLOCK_VALUES // max(1, row_values))
    first, last = place[0].start, place[0].stop
    if first >= last:
        return torch.empty([part.stop - part.start for part in place])
    blocks = range(first // rows_per_block, (last - 1) // rows_per_block + 1)
    begin = blocks[0] * rows_per_block
    drawn = torch.cat(
        [
            torch.empty(min(rows_per_block, shape[0] - block * rows_per_block), *shape[1:]).normal_(
                generator=_generator(seed, name, block)
            )
            for block in blocks
        ]
    )
    return drawn[(slice(first - begin, last - begin), *place[1:])]


def _generator(seed: int, name: str, block: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def is_adapter(name: str) -> bool:
    """True for the name of an adapter's matrix or magnitudes (`adapters`)."""
    return name.endswith((".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"))


def draw_uniform(name: str, parameter: Tensor, bound: float, *, seed: int) -> None:
    """Fill a small parameter with values between -bound and bound; they depend on the seed and the name alone."""
    fill_part(parameter, torch.empty(parameter.shape).uniform_(-bound, bound, generator=_generator(seed, name, 0)))


def fill_part(parameter: Tensor, whole: Tensor) -> None:
    """Fill this rank's part of a parameter from the values of all of it."""
    local, place = _local_part(parameter)
    local.copy_(whole[place])


def load_adapters(parts: Iterable[nn.Module], folder: Path, config: PretrainedConfig) -> None:
    """The tensors of adapters from an exported one.

    Raises:
        EnvironmentProblem: a tensor is missing, has another shape or belongs to a layer that the model does not have,
            or a file cannot be read.
    """
    stored, layer_of = SafetensorsFolder(folder, "adapter_model"), names_in_files(config)
    for name in stored.names:
        if (layer := max(map(int, filter(str.isdecimal, name.split("."))), default=0)) >= config.num_hidden_layers:
            raise EnvironmentProblem(
                f"`{folder}` has an adapter of layer {layer}, and the model the layers 0 to "
                f"{config.num_hidden_layers - 1}",
                hint="set `model.hf` to the checkpoint that the adapter was trained beside",
            )
    with torch.no_grad():
        for part in parts:
            for name, parameter in part.named_parameters():
                if is_adapter(name):
                    layer_name, _, kind = name.partition(".lora_")
                    local, place = _local_part(parameter)
                    local.copy_(stored.read(f"{PEFT}{layer_of(layer_name)}.lora_{kind}", parameter.shape, place))


def load_weights(
    parts: Iterable[Decoder],
    folder: SafetensorsFolder,
    config: PretrainedConfig,
    *,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Every parameter but those of adapters, and a head of rewards that the files lack, from a Hugging Face model;
    `progress` is called for each.

    Raises:
        EnvironmentProblem: a tensor is missing, has another shape, or a file cannot be read.
    """
    with torch.no_grad():
        for part in parts:
            for name, parameter in part.named_parameters():
                progress()
                if not is_adapter(name) and (name != SCORE or name in folder.names):
                    local, place = _local_part(parameter)
                    local.copy_(_read(folder, stored_as(name, config), parameter.shape, place))
            for name, layer in part.named_modules():
                if is_in_nf4(layer):
                    progress()
                    shape = layer.nf4_shape
                    assert isinstance(shape, torch.Size)
                    whole = tuple(slice(0, size) for size in shape)
                    fill(layer, _read(folder, stored_as(f"{name}.weight", config), shape, whole))


def _read(folder: SafetensorsFolder, stored: StoredParameter, shape: torch.Size, place: Slices) -> Tensor:
    if stored.stacked:
        rows = range(place[0].start, place[0].stop)
        tensors = [folder.read(stored.names[row], shape[1:], place[1:]) for row in rows]
        return torch.stack(tensors) if tensors else torch.empty(0, *(part.stop - part.start for part in place[1:]))
    start = stored.part * shape[0]
    first = slice(place[0].start + start, place[0].stop + start)
    whole = torch.Size((shape[0] * stored.parts, *shape[1:]))
    if not stored.transposed:
        return folder.read(stored.names[0], whole, (first, *place[1:]))
    return folder.read(stored.names[0], whole[::-1], (*place[1:], first)).T


def _local_part(parameter: Tensor) -> tuple[Tensor, Slices]:
    """This rank's values, and their slices of the whole parameter."""
    if not isinstance(parameter, DTensor):
        return parameter, tuple(slice(0, size) for size in parameter.shape)
    local = parameter.to_local()
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return local, tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))


def fingerprint_of_weights(folder: Path) -> str:
    """SHA-256 over the config of a checkpoint, and over size, header and samples of each safetensors file.

    Sixteen samples of 64 KiB tell trained weights apart, which differ everywhere, without reading all of them.
    """
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for number in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class SafetensorsFolder:
    """The tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` names; `model` is `name`.

    Raises:
        EnvironmentProblem: neither is there, or they cannot be read.
    """

    def __init__(self, folder: Path, name: str = "model") -> None:
        self._folder = folder
        whole = f"{name}.safetensors"
        index = folder / f"{whole}.index.json"
        try:
            if index.exists():
                self._files = dict(json.loads(index.read_bytes())["weight_map"])
            else:
                with safe_open(folder / whole, "pt") as file:
                    self._files = dict.fromkeys(file.keys(), whole)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise EnvironmentProblem(
                f"cannot read the weights of `{folder}`: {error}",
                hint=f"it needs {whole} or {whole}.index.json",
            ) from None

    @property
    def names(self) -> Iterable[str]:
        """Names of the tensors."""
        return self._files.keys()

    def read(self, name: str, shape: torch.Size, place: Slices) -> Tensor:
        """Part of a tensor, in fp32; the tensor must have that shape."""
        found = self._files.get(name) or self._files.get(name.removeprefix("transformer."))
        if found is None:
            raise EnvironmentProblem(f"`{self._folder}` has no tensor `{name}`", hint="was it written for this model?")
        key = name if name in self._files else name.removeprefix("transformer.")
        try:
            with safe_open(self._folder / found, "pt") as file:
                part = file.get_slice(key)
                if tuple(part.get_shape()) != tuple(shape):
                    raise EnvironmentProblem(
                        f"tensor `{name}` of `{self._folder}` is {part.get_shape()}, and the model has {list(shape)}"
                    )
                values: Tensor = part[place]
        except (OSError, SafetensorError) as error:
            raise EnvironmentProblem(f"cannot read `{self._folder / found}`: {error}") from None
        return values.float()
