"""AdamW whose two moments take a byte per weight each, in blocks of a row that share a scale.

A block of up to 256 neighbours v in a row is stored as the nearest of 256 numbers c to each v / max |v|, and max |v| in
fp32: 2.03 bytes for both moments of a weight instead of 8. The numbers are spread over seven decades, so that small
values of a block keep their first digits. Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization"
(2022), sections 2 and 3; blocks end with a row here, so that they do not depend on how rows are shared among ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer

BLOCK = 256


@cache
def code(device: torch.device, *, signed: bool) -> Tensor:
    """The 256 numbers, ascending, of a dynamic tree (Dettmers 2016).

    For each decade 10^-n, n = 0 ... 6, the middles of equal parts of 0.1 ... 1, half as many in the next decade; and 0
    and +-1, which are exact. Without a sign there are twice as many parts, and no number below 0.
    """
    numbers = {0.0, 1.0, *([-1.0] if signed else [])}
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, (1 << (6 - decade + (not signed))) + 1, dtype=torch.float64)
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0**-decade).tolist()
        numbers |= {*middles, *([-each for each in middles] if signed else [])}
    # The least of them make room for the ends.
    least_first = sorted(numbers, key=lambda number: (number != 0, abs(number), number))
    kept = [0.0, *least_first[1 + len(numbers) - 256 :]]
    return torch.tensor(sorted(kept), dtype=torch.float32, device=device)


@cache
def _nearest(device: torch.device, *, signed: bool) -> Tensor:
    """Code of the nearest number, by the upper 20 bits of a value in fp32: a look-up is far faster than a search.

    These bits keep eleven binary digits, and neighbours in the code differ by the seventh at least.
    """
    values = (torch.arange(1 << 20, dtype=torch.int32, device=device) << 12).view(torch.float32).nan_to_num()
    numbers = code(device, signed=signed)
    return torch.bucketize(values, (numbers[1:] + numbers[:-1]) / 2).to(torch.uint8)


def quantized(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes [..., n] in uint8 and scales [..., blocks] in fp32 of values [..., n].

    What is stored is stored again as it is. Without a sign, a number above 0 stays above 0: a second moment that became
    0 beside a first one that did not would make an update of any size.
    """
    size = values.shape[-1]
    blocks = pad(values, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1)
    normal = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    bits = ((normal.view(torch.int32) + (1 << 11)) >> 12) & ((1 << 20) - 1)
    codes = _nearest(values.device, signed=signed).index_select(0, bits.flatten()).view(bits.shape)
    if not signed:
        codes = codes.where(blocks <= 0, codes.clamp(min=1))
    return codes.flatten(-2)[..., :size].contiguous(), scales


def dequantized(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """The values [..., n] that are stored, in fp32."""
    numbers = code(codes.device, signed=signed).index_select(0, codes.int().flatten()).view(codes.shape)
    return numbers * scales.repeat_interleave(BLOCK, -1)[..., : codes.shape[-1]]


class AdamW8bit(Optimizer):
    """AdamW (Loshchilov and Hutter 2019) as `torch.optim.AdamW`; between steps the moments of matrices are in 8 bits.

    Those of vectors (norms, biases) stay in fp32. Each parameter is unpacked for its own update, which takes some
    16 bytes per weight of the largest one.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: decay of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled, times the learning rate.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(parameter, parameter.grad, self.state[parameter], group)


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        zeros = torch.zeros_like(parameter)
        state["step"] = torch.zeros(())
        _store(state, zeros, zeros.clone())
    first, second = _moments(state)
    state["step"] += 1
    step = int(state["step"].item())  # on the CPU
    first_beta, second_beta = group["betas"]
    first.lerp_(gradient, 1 - first_beta)
    second.mul_(second_beta).addcmul_(gradient, gradient, value=1 - second_beta)
    root = (second / (1 - second_beta**step)).sqrt_().add_(group["eps"])
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.addcdiv_(first, root, value=-group["lr"] / (1 - first_beta**step))
    _store(state, first, second)


def _moments(state: dict[str, Any]) -> tuple[Tensor, Tensor]:
    if "exp_avg" in state:
        return state["exp_avg"], state["exp_avg_sq"]
    first = dequantized(state["exp_avg_codes"], state["exp_avg_scales"], signed=True)
    return first, dequantized(state["exp_avg_sq_codes"], state["exp_avg_sq_scales"], signed=False)


def _store(state: dict[str, Any], first: Tensor, second: Tensor) -> None:
    if first.ndim < 2:
        state["exp_avg"], state["exp_avg_sq"] = first, second
        return
    for name, moment, signed in (("exp_avg", first, True), ("exp_avg_sq", second, False)):
        for part, value in zip(("codes", "scales"), quantized(moment, signed=signed), strict=True):
            kept = state.setdefault(f"{name}_{part}", value)
            if kept is not value:
                kept.copy_(value)  # a checkpoint that is being read or written holds this tensor
