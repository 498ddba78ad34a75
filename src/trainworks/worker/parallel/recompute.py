"""Activations that a block keeps for backward: all, the outputs of its products, its input, or none on the device."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}
"""Operations that cost more to repeat than their output costs to keep: products, attention, exchanges between ranks."""


def recompute(blocks: Iterable[nn.Module], what: Literal["none", "selective", "full"]) -> None:
    """Let blocks compute their forward again in backward: `full` from their input, `selective` from the outputs of
    matrix products, attention and exchanges, which they keep.
    """
    if what == "none":
        return
    keeping = functools.partial(checkpoint, use_reentrant=False)
    if what == "selective":
        keeping = functools.partial(keeping, context_fn=_selective)
    for block in blocks:
        block.forward = functools.partial(keeping, block.forward)  # type: ignore[method-assign]


def _selective() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Contexts of forward and of recomputation.

    (torch's own contexts fail with FSDP2 modules inside a block, whose gathers are not repeated.)
    """
    kept: defaultdict[Any, deque[Any]] = defaultdict(deque)
    return _Keep(kept), _Reuse(kept)


class _Keep(TorchDispatchMode):
    """Notes the outputs of operations that are not to be repeated."""

    def __init__(self, kept: defaultdict[Any, deque[Any]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if function in _KEPT:
            self._kept[function].append(tree_map_only(torch.Tensor, torch.Tensor.detach, output))
        return output


class _Reuse(TorchDispatchMode):
    """Gives them back, in the same order."""

    def __init__(self, kept: defaultdict[Any, deque[Any]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _KEPT:
            return self._kept[function].popleft()
        return function(*args, **(kwargs or {}))


def offload_activations(blocks: Iterable[nn.Module], *, pin_memory: bool) -> None:
    """Let what blocks keep for their backward wait in the host's memory."""
    for block in blocks:
        block.forward = functools.partial(_offloading, block.forward, pin_memory)  # type: ignore[method-assign]


def _offloading(forward: Callable[..., Any], pin_memory: bool, *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=pin_memory):
        return forward(*args, **kwargs)
