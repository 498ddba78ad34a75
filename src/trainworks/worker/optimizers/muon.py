"""Muon for the hidden matrices of a model, AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainworks.config.optimizer import Optimizer

_TABLES = ("embed", "lm_head", "wte", "wpe", "classifier", "decoder.weight")
"""Parts of the names of embeddings and output matrices, whose rows are tokens, positions or classes."""


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon updates this parameter: a matrix between hidden states. Source: Jordan et al. 2024, "Muon"."""
    return parameter.ndim == 2 and not any(part in name for part in _TABLES)


class MuonWithAdamW:
    """Looks like one optimizer to its caller.

    torch's Muon orthogonalises the momentum of each matrix, which must be whole. Its update is scaled to the size of
    AdamW's (`match_rms_adamw`; Liu et al. 2025, "Muon is Scalable for LLM Training"), so that one learning rate and one
    weight decay serve both.

    Args:
        named: parameters with their names.
        settings: of the run file; `betas` and `eps` are those of AdamW.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], settings: Optimizer) -> None:
        matrices = [parameter for name, parameter in named if is_hidden_matrix(name, parameter)]
        rest = [parameter for name, parameter in named if not is_hidden_matrix(name, parameter)]
        decay = settings.weight_decay
        groups = [
            {"params": [each for each in rest if each.ndim >= 2], "weight_decay": decay},
            {"params": [each for each in rest if each.ndim < 2], "weight_decay": 0.0},
        ]
        self._both: list[torch.optim.Optimizer] = [
            *([_muon(matrices, settings)] if matrices else []),
            torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True),
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both."""
        return [group for each in self._both for group in each.param_groups]

    @property
    def state(self) -> dict[Any, dict[str, Any]]:
        """The state of both, by parameter."""
        return {key: value for each in self._both for key, value in each.state.items()}

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for each in self._both:
            each.step()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for each in self._both:
            each.zero_grad(set_to_none=set_to_none)


def _muon(matrices: list[nn.Parameter], settings: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.Muon(
        matrices, lr=settings.lr, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
