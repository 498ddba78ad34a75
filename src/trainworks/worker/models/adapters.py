"""Low-rank adapters (LoRA, DoRA) of linear layers, whose own weights are frozen, in 32, 16 or 4 bits.

A layer keeps its class and the names of its weights; the adapter's matrices are `lora_A` and `lora_B` below it, and the
magnitudes of DoRA `lora_magnitude_vector`, as in `peft`. Frozen weights take no gradient, no optimizer state and no
place in checkpoints.

Symbols: I inputs and O outputs of a layer, r rank, s = alpha / r, W [O, I], A [r, I], B [O, r], m [O] magnitudes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F  # noqa: N812  (everybody writes it so)

from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.worker.models.experts import Router
from trainworks.worker.models.nf4 import dequantized, is_in_nf4, keep_in_nf4
from trainworks.worker.models.weights import SCORE, draw_uniform, fill_part, is_adapter

_A, _B = ".lora_A.weight", ".lora_B.weight"


def adapt(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    adapter: Adapter,
    *,
    precision: str,
    cut: Callable[[], object] | None = None,
) -> list[str]:
    """Freeze a model and give linear layers of its blocks adapters, without values yet; returns their names.

    The model may have no storage. `cut` spreads it over ranks once it is frozen. The adapter of a layer that is cut by
    output features has its B cut in the same way, and by input features its A; the other matrix stays whole:

        y = [W1; W2] x + [B1; B2] A x            y = W1 x1 + W2 x2 + B (A1 x1 + A2 x2)

    Magnitudes are cut as the outputs are.

    Raises:
        UsageError: no layer has a name that the adapter asks for.
    """
    layers = dict(linear_layers(model, blocks))
    for target in adapter.targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            leaves = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            raise UsageError(f"no layer `{target}` to adapt", hint=f"the linear layers of this model are {leaves}")
    targets = tuple(f".{target}" for target in adapter.targets)
    chosen = [name for name in layers if not targets or f".{name}".endswith(targets)]
    in_16_bits = adapter.base == "bf16" or (adapter.base in ("auto", "nf4") and precision == "bf16")
    freeze(model, torch.bfloat16 if in_16_bits else torch.float32, cut)
    if adapter.base == "nf4":
        for layer in layers.values():
            keep_in_nf4(layer)
    for name in chosen:
        _add_adapter(layers[name], adapter)
    for name, parameter in model.named_parameters():
        if name.endswith(SCORE):  # of a reward model: a head that begins at random
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    return chosen


def freeze(model: nn.Module, dtype: torch.dtype, cut: Callable[[], object] | None = None) -> None:
    """Keep all weights in a type, without gradients, and then cut the model."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if cut is not None:
        cut()
    model.requires_grad_(False)  # what is cut has new parameters


def linear_layers(model: nn.Module, blocks: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers of the blocks with their names in the model, without routers."""
    inside = {id(module) for block in blocks for module in block.modules()}
    for name, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear) and not isinstance(module, Router)
        if id(module) in inside and (is_linear or type(module).__name__ == "Conv1D"):  # whose import takes a second
            yield name, module


def features(layer: nn.Module) -> tuple[int, int]:
    """I and O of a linear layer; `Conv1D` stores its weight transposed."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    assert isinstance(layer.nx, int) and isinstance(layer.nf, int)
    return layer.nx, layer.nf


def _add_adapter(layer: nn.Module, adapter: Adapter) -> None:
    inputs, outputs = features(layer)
    device = next(layer.parameters(), next(layer.buffers(), torch.empty(0))).device
    layer.lora_A = nn.Linear(inputs, adapter.rank, bias=False, device=device, dtype=torch.float32)
    layer.lora_B = nn.Linear(adapter.rank, outputs, bias=False, device=device, dtype=torch.float32)
    if isinstance(weight := getattr(layer, "weight", None), DTensor):
        for matrix, place in ((layer.lora_A, Shard(1)), (layer.lora_B, Shard(0))):
            placements = [place if place in weight.placements else Replicate()]
            matrix.weight = nn.Parameter(distribute_tensor(matrix.weight.detach(), weight.device_mesh, placements))
    if adapter.use_dora:
        magnitudes = torch.empty(outputs, device=device)
        if isinstance(weight, DTensor):
            by_outputs = Shard(0) in weight.placements
            magnitudes = distribute_tensor(magnitudes, weight.device_mesh, [Shard(0) if by_outputs else Replicate()])
        layer.lora_magnitude_vector = nn.Parameter(magnitudes)
    layer.adapter_is_off = False  # type: ignore[assignment]
    scale = adapter.alpha / adapter.rank
    layer.forward = functools.partial(_adapted, layer.forward, layer, scale, adapter.dropout)  # type: ignore[method-assign]


def _adapted(forward: Callable[[Tensor], Tensor], layer: nn.Module, scale: float, dropout: float, x: Tensor) -> Tensor:
    """W x + s B A drop(x), or W x within `detach_adapters`.

    With magnitudes, and n the norms of the rows of W + s B A, which count as constants (Liu et al. 2024, section 4.3):

        W x + (m / n - 1) W drop(x) + m / n s B A drop(x)
    """
    if layer.adapter_is_off:
        return forward(x)
    dropping = dropout > 0 and layer.training
    dropped = F.dropout(x, dropout) if dropping else x
    assert isinstance(layer.lora_A, nn.Linear) and isinstance(layer.lora_B, nn.Linear)
    added = layer.lora_B(layer.lora_A(dropped.to(layer.lora_A.weight.dtype))) * scale
    whole = forward(x)
    magnitudes = getattr(layer, "lora_magnitude_vector", None)
    if magnitudes is None:
        return whole + added
    gain = magnitudes.float() / _row_norms(layer, scale).to(magnitudes.dtype)  # 1 at the start, in 16 bits too
    plain = forward(dropped) if dropping else whole
    y = (plain + added) * gain
    if (bias := getattr(layer, "bias", None)) is not None:  # the magnitudes do not scale it
        y = y + bias * (1 - gain)
    return (y + (whole - plain) if dropping else y).to(whole.dtype)


@torch.no_grad()
def _row_norms(layer: nn.Module, scale: float) -> Tensor:
    """Norms n [O] of the rows of W + s B A in fp32, without the product of B and A, which is as large as W.

        n^2 = |W|^2 + 2 s (W A^T) . B + s^2 (B A A^T) . B        row by row

    Each rank of a layer that is cut by input features has a part of the sum.
    """
    assert isinstance(layer.lora_A, nn.Linear) and isinstance(layer.lora_B, nn.Linear)
    whole = frozen_weight(layer)
    weights = (whole, layer.lora_A.weight, layer.lora_B.weight)
    w, a, b = (each.to_local() if isinstance(each, DTensor) else each for each in weights)
    with torch.autocast(w.device.type, enabled=False):
        a, b = a.float(), b.float()
        crossed = ((w @ a.T.to(w.dtype)).float() * b).sum(1)
        squares = torch.linalg.vector_norm(w, dim=1, dtype=torch.float32).square()
        squares = squares + 2 * scale * crossed + scale**2 * ((b @ (a @ a.T)) * b).sum(1)
    if isinstance(whole, DTensor):
        (cut,) = whole.placements
        before, after = (Partial(), Replicate()) if cut == Shard(1) else (cut, cut)
        squares = DTensor.from_local(squares, whole.device_mesh, [before], run_check=False)
        squares = squares.redistribute(placements=[after])
    return squares.clamp(min=torch.finfo(torch.float32).tiny).sqrt()


def frozen_weight(layer: nn.Module) -> Tensor:
    """W [O, I] of a linear layer, as this rank has it."""
    if is_in_nf4(layer):
        codes, scales, shape = layer.nf4_codes, layer.nf4_scales, layer.nf4_shape
        assert isinstance(codes, Tensor) and isinstance(scales, Tensor) and isinstance(shape, torch.Size)
        weight = dequantized(codes, scales, shape, torch.float32)
    else:
        weight = layer.weight  # type: ignore[assignment]
    return weight if isinstance(layer, nn.Linear) else weight.T


@contextmanager
def detach_adapters(parts: Iterable[nn.Module]) -> Iterator[None]:
    """The parts as their checkpoint is."""
    adapted = [module for part in parts for module in part.modules() if hasattr(module, "adapter_is_off")]
    for layer in adapted:
        layer.adapter_is_off = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in adapted:
            layer.adapter_is_off = False  # type: ignore[assignment]


def draw_adapters(parts: Iterable[nn.Module], *, seed: int) -> None:
    """First values: A uniform within 1 / sqrt(I), as in `peft`; B zero, and magnitudes the norms of the rows of W, so
    that the model begins as the checkpoint.

    They depend on the seed, the name and the place, never on the layout.
    """
    with torch.no_grad():
        for part in parts:
            for name, parameter in part.named_parameters():
                if name.endswith(_A):
                    draw_uniform(name, parameter, 1 / math.sqrt(parameter.shape[1]), seed=seed)
                elif name.endswith(_B):
                    parameter.zero_()
            for layer in part.modules():
                magnitudes = getattr(layer, "lora_magnitude_vector", None)
                if magnitudes is not None:
                    weight = frozen_weight(layer)
                    if isinstance(weight, DTensor):  # whole rows; moved where the mesh can gather it
                        weight = weight.to(weight.device_mesh.device_type)
                        assert isinstance(weight, DTensor)
                        weight = weight.full_tensor()
                    fill_part(magnitudes, torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32))


def trained_state(part: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: all of it, or its adapters, with the head of a reward model."""
    state = part.state_dict()
    if not any(map(is_adapter, state)):
        return state
    return {name: tensor for name, tensor in state.items() if is_adapter(name) or name.endswith(SCORE)}
