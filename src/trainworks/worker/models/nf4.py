"""Frozen weights in 4 bits (NormalFloat, Dettmers et al. 2023, appendix E), in blocks that share a scale.

A block of 64 values w is stored as the nearest of 16 numbers to each w / max |w|, two in a byte, and max |w| in fp32:
4.5 bits per weight. The numbers are quantiles of a normal distribution, scaled to -1 ... 1, with an exact zero.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from trainworks.worker.loss import dtype_of_products

BLOCK = 64
CODE = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [n / 2] in uint8, the first of a pair in the high bits, and scales [blocks] in fp32.

    The last block may be filled up with zeros.
    """
    values = weight.detach().float().flatten()
    blocks = nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    normal = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    between = torch.tensor([(left + right) / 2 for left, right in itertools.pairwise(CODE)])
    codes = torch.bucketize(normal.contiguous(), between.to(normal.device)).to(torch.uint8).view(-1, 2)
    return codes[:, 0] << 4 | codes[:, 1], scales


@functools.cache
def _table(device: torch.device) -> Tensor:
    """Copied to the device once: the host waits for such a copy."""
    return torch.tensor(CODE, device=device)


def dequantized(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The weight that is stored."""
    table = _table(codes.device)
    numbers = torch.stack((codes >> 4, codes & 15), dim=1).flatten().long()
    values = table[numbers].view(-1, BLOCK) * scales.unsqueeze(1)
    return values.flatten()[: shape.numel()].view(shape).to(dtype)


def keep_in_nf4(layer: nn.Module) -> None:
    """Replace the weight of a linear layer by its codes, which every rank holds whole.

    They are buffers outside of checkpoints. A layer that has storage is converted, one without is filled by `fill`.
    """
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    size, device = weight.numel(), weight.device
    if device.type == "meta":
        blocks = -(-size // BLOCK)
        codes = torch.empty(blocks * BLOCK // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(blocks, device=device)
    else:
        codes, scales = quantized(weight)
    transposed = not isinstance(layer, nn.Linear)
    layer.nf4_shape = weight.shape  # type: ignore[assignment]
    del layer.weight
    layer.register_buffer("nf4_codes", codes, persistent=False)
    layer.register_buffer("nf4_scales", scales, persistent=False)

    def forward(x: Tensor) -> Tensor:
        out: Tensor = _Product.apply(x, layer.nf4_codes, layer.nf4_scales, layer.nf4_shape, transposed)
        return out if layer.bias is None else out + layer.bias  # type: ignore[operator]

    layer.forward = forward  # type: ignore[method-assign]


def fill(layer: nn.Module, weight: Tensor) -> None:
    """Store a weight in a layer that `keep_in_nf4` prepared without storage."""
    codes, scales = quantized(weight)
    assert isinstance(layer.nf4_codes, Tensor) and isinstance(layer.nf4_scales, Tensor)
    layer.nf4_codes.copy_(codes)
    layer.nf4_scales.copy_(scales)


def is_in_nf4(layer: nn.Module) -> bool:
    """True for a layer that `keep_in_nf4` prepared."""
    return hasattr(layer, "nf4_codes")


class _Product(torch.autograd.Function):
    """x W^T with W unpacked for the product alone: backward unpacks it again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, shape: torch.Size, transposed: bool) -> Tensor:
        dtype = dtype_of_products(x)
        ctx.save_for_backward(codes, scales)
        ctx.shape, ctx.transposed, ctx.dtype, ctx.x_dtype = shape, transposed, dtype, x.dtype
        weight = dequantized(codes, scales, shape, dtype)
        with torch.autocast(x.device.type, enabled=False):
            return x.to(dtype) @ (weight if transposed else weight.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        codes, scales = ctx.saved_tensors
        weight = dequantized(codes, scales, ctx.shape, ctx.dtype)
        with torch.autocast(grads[0].device.type, enabled=False):
            grad_x = grads[0].to(ctx.dtype) @ (weight.T if ctx.transposed else weight)
        return grad_x.to(ctx.x_dtype), None, None, None, None
