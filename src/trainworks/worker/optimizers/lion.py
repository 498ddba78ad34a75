"""Lion: the sign of a momentum, element by element.

Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """One moment m per parameter, and an update of the same size for every element.

    With gradient g and weight decay d:

        c = b1 m + (1 - b1) g        p = p - lr (sign(c) + d p)        m = b2 m + (1 - b2) g

    Args:
        params: parameters, or groups of them.
        lr: learning rate, a third to a tenth of AdamW's.
        betas: b1 and b2.
        weight_decay: d, three to ten times AdamW's.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            own = [each for each in group["params"] if each.grad is not None]
            if not own:
                continue
            for each in own:
                self.state[each].setdefault("momentum", torch.zeros_like(each))
            gradients = [each.grad for each in own]
            momenta = [self.state[each]["momentum"] for each in own]
            first, second = group["betas"]
            signs = torch._foreach_sign(torch._foreach_lerp(momenta, gradients, 1 - first))
            torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(own, signs, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - second)
