"""AdamW, its learning rate as a function of the step, gradient clipping and loss scaling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainworks.spec.run_file import Optimizer

__all__ = ["StepOptimizer", "learning_rate"]


def learning_rate(step: int, *, num_steps: int, settings: Optimizer) -> float:
    """Learning rate of optimizer step `step` (0 is the first).

    Warm-up over w steps rises linearly from lr / w to lr; then, with x = (step - w) / (num_steps - w) in 0 ... 1
    and r = min_lr_ratio:

        cosine    lr * (r + (1 - r) * (1 + cos(pi x)) / 2)
        linear    lr * (1 - (1 - r) * x)
        constant  lr

    Edge: steps from num_steps on keep the last value.
    """
    warmup = settings.warmup.amount if settings.warmup else 0
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    x = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    floor = settings.min_lr_ratio
    if settings.schedule == "cosine":
        return settings.lr * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
    if settings.schedule == "linear":
        return settings.lr * (1 - (1 - floor) * x)
    return settings.lr


class StepOptimizer:
    """One optimizer step: unscale, clip, update, with no host synchronisation in between."""

    def __init__(
        self, module: nn.Module, settings: Optimizer, *, num_steps: int, precision: str, device: torch.device
    ) -> None:
        self._settings = settings
        self._num_steps = num_steps
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.adamw = torch.optim.AdamW(
            _parameter_groups(self._parameters, settings.weight_decay),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._one = torch.ones((), device=device)

    @property
    def lr(self) -> float:
        """Learning rate of the last step."""
        return float(self.adamw.param_groups[0]["lr"])

    def loss_scale(self, grad_accum_steps: int) -> Tensor | float:
        """Factor of each micro-batch's loss before backward."""
        if self.scaler.is_enabled():
            return self.scaler.scale(self._one) / grad_accum_steps
        return 1.0 / grad_accum_steps

    def step(self, step: int) -> Tensor:
        """Update the weights and clear the gradients; returns the gradient norm before clipping, on the device."""
        rate = learning_rate(step, num_steps=self._num_steps, settings=self._settings)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.scaler.unscale_(self.adamw)
        norm = self._clip()
        self.scaler.step(self.adamw)
        self.scaler.update()
        self.adamw.zero_grad(set_to_none=True)
        return norm

    def _clip(self) -> Tensor:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self._settings.clip_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.clip_grad_norm, norm, foreach=True)
        return norm


def _parameter_groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and norms do not."""
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
