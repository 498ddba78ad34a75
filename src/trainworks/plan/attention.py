"""Rate of attention kernels: by kernel, generation of the accelerator, head size, length and causality.

    rate = peak * share(kernel, generation) * d / (d + 24) * T / (T + T_half)

A pair of positions costs 4 d FLOPs and one exponential, which runs on another, slower unit and is hidden in part: the
factor with d. T_half is what filling and draining the tiles costs, and with a mask the tiles on the diagonal.
"""

from __future__ import annotations

from trainworks.catalog.facts import Accelerator
from trainworks.plan.software import Attention

__all__ = ["attention_reach", "attention_shares"]

_HEAD_HALF = 24.0
_CAUSAL_HALF, _FULL_HALF = 512.0, 180.0
_SHARES: dict[tuple[str, str], tuple[float, float]] = {
    ("flash-1", "Ampere"): (0.55, 0.45),
    ("flash-2", "Ampere"): (0.85, 0.74),
    ("flash-2", "Hopper"): (0.467, 0.377),
    ("flash-3", "Hopper"): (0.775, 0.67),
    ("cudnn", "Hopper"): (0.72, 0.63),
    ("flash-2", "Blackwell"): (0.25, 0.2),
    ("cudnn", "Blackwell"): (0.68, 0.55),
    ("flash-2", "CDNA"): (0.4, 0.3),
}


def attention_shares(kernel: Attention, accelerator: Accelerator) -> tuple[float, float]:
    """Shares of the peak that a kernel reaches forward and backward, for long sequences and wide heads.

    A kernel runs on later generations as the newest that is published for it; older parts reach the first one's.
    """
    architecture = accelerator.architecture or ""
    generation = next((name for name in ("Hopper", "Blackwell", "CDNA") if architecture.startswith(name)), "Ampere")
    for name in (kernel, "flash-2"):
        if found := _SHARES.get((name, generation)):
            return found
    return _SHARES["flash-2", "Ampere"]


def attention_reach(head_dim: float, length: float, *, causal: bool) -> float:
    """Share of the rate for long sequences and wide heads that a head size and a length leave."""
    half = _CAUSAL_HALF if causal else _FULL_HALF
    return head_dim / (head_dim + _HEAD_HALF) * length / (length + half)
