"""How blocks compute: their products in 8 bits, and the activations that they keep for backward."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
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


def use_float8(blocks: Sequence[nn.Module], *, emulate: bool, gather: bool = False) -> None:
    """Let the linear layers of the blocks multiply in fp8; parameters keep their names and stay as they are stored.

    Scaling is dynamic per tensor (torchao): inputs and weights in e4m3, gradients of outputs in e5m2 (Micikevicius et
    al. 2022), sums in higher precision. Embeddings, output, norms, routers and grouped products of experts stay in
    bf16. `emulate` rounds to fp8 and multiplies in bf16, where the hardware has no such product.
    With `gather` FSDP2 gathers weights that are rounded already, with the largest value of all shards.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415  # needed by few
    except ImportError:
        raise MissingExtraError("torchao", "fp8") from None
    config = Float8LinearConfig(emulate=emulate, enable_fsdp_float8_all_gather=gather)
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=config)


def measure_scales(parts: Iterable[nn.Module]) -> None:
    """Find the largest values of all weights that are gathered in 8 bits, in one all-reduce of a part.

    They hold until the weights change. Without them each gather would begin with an all-reduce of its own.
    """
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp  # noqa: PLC0415  # needed by few

    for part in parts:
        precompute_float8_dynamic_scale_for_fsdp(part)


def stored_weight(weight: Tensor) -> Tensor:
    """A weight without what torchao wraps around shards that are gathered in 8 bits: the same storage, in fp32."""
    inner = getattr(weight.to_local(), "_tensor", None) if isinstance(weight, DTensor) else None
    if inner is None:
        return weight
    assert isinstance(weight, DTensor)
    mesh, shape, stride = weight.device_mesh, weight.shape, weight.stride()
    return DTensor.from_local(inner, mesh, weight.placements, run_check=False, shape=shape, stride=stride)


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


def offload_activations(blocks: Iterable[nn.Module], device: torch.device, *, compiled: bool) -> None:
    """Let what blocks keep for their backward wait in the host's memory.

    What moves them stays outside of the graph of blocks that are `compiled`.
    """
    offload = _Offload(_CudaCopies(device) if device.type == "cuda" else _HostCopies())
    for block in blocks:
        name = "_compiled_call_impl" if compiled else "forward"
        setattr(block, name, functools.partial(offload.run, getattr(block, name)))


class _HostCopies:
    """Copies of a CPU, which are done when they return."""

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """The copy, and a moment after which it can be read."""
        return tensor.clone(), None

    def to_device(self, host: Tensor, after: Any) -> tuple[Tensor, Any]:
        """The same back."""
        return host.clone(), None

    def wait(self, moment: Any) -> None:
        """Nothing to do."""


class _CudaCopies(_HostCopies):
    """Copies between a GPU and page-locked memory on streams of their own, beside what the GPU computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """The copy begins when what computes the tensor has ended."""
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            host = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            return host, self._out.record_event()

    def to_device(self, host: Tensor, after: Any) -> tuple[Tensor, Any]:
        """The tensor belongs to the present stream, which must wait for the moment before it reads it."""
        current = torch.cuda.current_stream(self._device)
        tensor = torch.empty_like(host, device=self._device)  # of the present stream, which may still read its memory
        self._back.wait_stream(current)
        self._back.wait_event(after)
        with torch.cuda.stream(self._back):
            tensor.copy_(host, non_blocking=True)
            return tensor, self._back.record_event()

    def wait(self, moment: Any) -> None:
        """Let the GPU, not the host, wait."""
        torch.cuda.current_stream(self._device).wait_event(moment)


class _Kept:
    """A tensor that a block keeps for its backward: on the device until it is copied, then on the host alone."""

    def __init__(self, tensor: Tensor, block: _KeptByBlock, copies: _HostCopies) -> None:
        self._copies = copies
        self._block = block
        self._tensor: Tensor | None = tensor.detach()
        self._host, self._moment = copies.to_host(tensor.detach())

    def release(self) -> None:
        """Free the memory of the device; what is computed from now on may use it, so it waits for the copy."""
        if self._tensor is not None:
            self._copies.wait(self._moment)
            self._tensor = None

    __del__ = release
    """A graph may end before a copy does, and the memory may not be used again until then."""

    def fetch(self) -> None:
        """Begin to copy it back."""
        if self._tensor is None:
            self._tensor, self._moment = self._copies.to_device(self._host, self._moment)

    def unpack(self) -> Tensor:
        """The tensor on the device; those of the block before begin to come back."""
        self.fetch()
        self._copies.wait(self._moment)
        tensor, self._tensor = self._tensor, None
        assert tensor is not None
        self._block.fetch_before()
        return tensor


class _KeptByBlock:
    """What one call of a block keeps, without keeping it alive."""

    def __init__(self, before: _KeptByBlock | None) -> None:
        self._before = before
        self.kept: list[weakref.ref[_Kept]] = []

    def each(self, action: Callable[[_Kept], None]) -> None:
        """Apply an action to what is still needed."""
        for reference in self.kept:
            if (kept := reference()) is not None:
                action(kept)

    def fetch_before(self) -> None:
        """Begin to copy back what the block before keeps, once."""
        before, self._before = self._before, None
        if before is not None:
            before.each(_Kept.fetch)


class _Offload:
    """Moves what blocks keep to the host while the next block computes, and back while the one behind does.

    At most two blocks have theirs on the device at a time: a block begins when the copies of the second one before it
    have ended. The GPU waits for copies, and the host for none. Weights stay where they are.
    """

    def __init__(self, copies: _HostCopies) -> None:
        self._copies = copies
        self._blocks: deque[_KeptByBlock] = deque()

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Forward of a block."""
        while len(self._blocks) > 1:
            self._blocks.popleft().each(_Kept.release)
        block = _KeptByBlock(self._blocks[-1] if self._blocks else None)
        self._blocks.append(block)

        def pack(tensor: Tensor) -> Tensor | _Kept:
            if isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
                return tensor
            kept = _Kept(tensor, block, self._copies)
            block.kept.append(weakref.ref(kept))
            return kept

        def unpack(packed: Tensor | _Kept) -> Tensor:
            return packed.unpack() if isinstance(packed, _Kept) else packed

        with saved_tensors_hooks(pack, unpack):
            return forward(*args, **kwargs)
