"""How blocks compute: their products in 8 bits, and the activations that they keep for backward."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from trainworks.errors import MissingExtraError

_MULTIPLE = 16
"""Divisor of both feature sizes of a product that the hardware requires."""
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
_KEPT_BY_NAME = "torch_attn._varlen_attn.default"
"""Another one, which torch registers where it is used."""


def use_float8(blocks: Sequence[nn.Module], *, emulate: bool) -> None:
    """Let the linear layers of the blocks multiply in fp8; parameters keep their names and stay as they are stored.

    Scaling is dynamic per tensor (torchao): inputs and weights in e4m3, gradients of outputs in e5m2 (Micikevicius et
    al. 2022), sums in higher precision. Embeddings, output, norms, routers and grouped products of experts stay in
    bf16. `emulate` rounds to fp8 and multiplies in bf16, where the hardware has no such product.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415  # needed by few
    except ImportError:
        raise MissingExtraError("torchao", "fp8") from None
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=Float8LinearConfig(emulate=emulate))


def _fits(module: nn.Module, name: str) -> bool:
    if not isinstance(module, nn.Linear) or name.endswith("mlp.gate"):
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0


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


def _is_kept(function: Any) -> bool:
    return function in _KEPT or str(function) == _KEPT_BY_NAME


class _Keep(TorchDispatchMode):
    """Notes the outputs of operations that are not to be repeated."""

    def __init__(self, kept: defaultdict[Any, deque[Any]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if _is_kept(function):
            self._kept[function].append(tree_map_only(torch.Tensor, torch.Tensor.detach, output))
        return output


class _Reuse(_Keep):
    """Gives them back, in the same order."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_kept(function):
            return self._kept[function].popleft()
        return function(*args, **(kwargs or {}))


def offload_activations(blocks: Iterable[nn.Module], *, pin_memory: bool) -> None:
    """Let what blocks keep for their backward wait in the host's memory."""
    for block in blocks:
        block.forward = functools.partial(_offloading, block.forward, pin_memory)  # type: ignore[method-assign]


def _offloading(forward: Callable[..., Any], pin_memory: bool, *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=pin_memory):
        return forward(*args, **kwargs)
