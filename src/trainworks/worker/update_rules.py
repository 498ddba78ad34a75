"""Update rules that torch does not have, Lion and AdamW in 8 bits, and those of torch with the run file's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from trainworks.config.optimizer import Optimizer

BLOCK = 256


class Lion(torch.optim.Optimizer):
    """Lion: one moment m per parameter, and an update of the same size for every element.

    With gradient g, `betas` b1 and b2, and weight decay d:

        c = b1 m + (1 - b1) g        p = p - lr (sign(c) + d p)        m = b2 m + (1 - b2) g

    The learning rate is a third to a tenth of AdamW's, and d three to ten times AdamW's. Source: Chen et al., "Symbolic
    Discovery of Optimization Algorithms" (2023), algorithm 2.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient; none where the attribute `found_inf`, a tensor, is above 0."""
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            own = [each for each in group["params"] if each.grad is not None]
            if not own:
                continue
            for each in own:
                self.state[each].setdefault("momentum", torch.zeros_like(each))
            gradients = [each.grad for each in own]
            momenta = [self.state[each]["momentum"] for each in own]
            first, second = group["betas"]
            signs = [*torch._foreach_sign(torch._foreach_lerp(momenta, gradients, 1 - first))]
            decay, size, share = group["lr"] * group["weight_decay"], group["lr"], 1 - second
            if found_inf is not None:  # signs and gradients may be NaN, and NaN * 0 is NaN
                signs = [each.masked_fill(found_inf > 0, 0.0) for each in signs]
                gradients = [torch.where(found_inf > 0, m, g) for m, g in zip(momenta, gradients, strict=True)]
                torch._foreach_mul_(own, 1 - decay * (found_inf == 0))
            else:
                torch._foreach_mul_(own, 1 - decay)
            torch._foreach_add_(own, signs, alpha=-size)
            torch._foreach_lerp_(momenta, gradients, share)


def parameter_groups(named: Sequence[tuple[str, nn.Parameter]], settings: Optimizer) -> list[dict[str, Any]]:
    """Matrices, which decay, and biases and norms, which do not; then the same of each group of the run file."""
    chosen = [settings.group_of(name) for name, _ in named]
    found: list[dict[str, Any]] = []
    for index in (None, *range(len(settings.groups))):
        own = [parameter for (_, parameter), place in zip(named, chosen, strict=True) if place == index]
        group = None if index is None else settings.groups[index]
        rate = settings.lr if group is None or group.lr is None else group.lr
        decays = (settings.weight_decay, 0.0)
        if group is not None and group.weight_decay is not None:
            decays = (group.weight_decay, group.weight_decay)
        parts = ([each for each in own if each.ndim >= 2], [each for each in own if each.ndim < 2])
        found += [{"params": part, "lr": rate, "weight_decay": d} for part, d in zip(parts, decays, strict=True)]
    return found


def adamw(named: Sequence[tuple[str, nn.Parameter]], settings: Optimizer) -> torch.optim.Optimizer:
    """Torch's AdamW with the settings of the run file."""
    groups = parameter_groups(named, settings)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)


def sgd(groups: Sequence[dict[str, Any]], settings: Optimizer) -> torch.optim.Optimizer:
    """Torch's SGD with momentum, fused on a GPU, where the kernel can leave a step out.

    Momenta begin as zeros there, which the first step turns into the gradient: the kernel would leave them as random
    memory if it left out the first step.
    """
    on_gpu = any(each.device.type == "cuda" for group in groups for each in group["params"])
    found = torch.optim.SGD(groups, lr=settings.lr, momentum=settings.betas[0], foreach=not on_gpu, fused=on_gpu)
    if on_gpu:
        for group in groups:
            for each in group["params"]:
                found.state[each]["momentum_buffer"] = torch.zeros_like(each)
    return found


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


class AdamW8bit(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) as `torch.optim.AdamW`; between steps the moments of matrices are in 8 bits.

    A block of up to 256 neighbours v in a row is stored as the nearest of 256 numbers c to each v / max |v|, and
    max |v| in fp32: 2.03 bytes for both moments of a weight instead of 8. The numbers are spread over seven decades, so
    that small values of a block keep their first digits. Source: Dettmers et al., "8-bit Optimizers via Block-wise
    Quantization" (2022), sections 2 and 3; blocks end with a row here, so that they do not depend on how rows are
    shared among ranks.

    Moments of vectors (norms, biases) stay in fp32. Each parameter is unpacked for its own update, which takes some
    16 bytes per weight of the largest one.
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


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> None:
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


def _moments(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    if "exp_avg" in state:
        return state["exp_avg"], state["exp_avg_sq"]
    first = dequantized(state["exp_avg_codes"], state["exp_avg_scales"], signed=True)
    return first, dequantized(state["exp_avg_sq_codes"], state["exp_avg_sq_scales"], signed=False)


def _store(state: dict[str, Tensor], first: Tensor, second: Tensor) -> None:
    if first.ndim < 2:
        state["exp_avg"], state["exp_avg_sq"] = first, second
        return
    for name, moment, signed in (("exp_avg", first, True), ("exp_avg_sq", second, False)):
        for part, value in zip(("codes", "scales"), quantized(moment, signed=signed), strict=True):
            kept = state.setdefault(f"{name}_{part}", value)
            if kept is not value:
                kept.copy_(value)  # a checkpoint that is being read or written holds this tensor
