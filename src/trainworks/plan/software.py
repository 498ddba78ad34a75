"""Training software, as far as a plan depends on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Software"]


@dataclass(frozen=True, slots=True)
class Software:
    """Behaviour of the training software; the plan depends on it as much as on the hardware."""

    fused_attention: bool = True
    """Attention as one kernel that never writes its scores (FlashAttention), half the work when causal."""
    fused_kernels: bool = True
    """Norms, rotations, activation functions and residual additions are a kernel each (Transformer Engine,
    torch.compile), not one per operation."""
    overlap: bool = True
    """Communication runs beside computing: gradient buckets, gathered weights, tensor-parallel pieces."""
    gradient_bytes: int = 4
    """Bytes per parameter of the gradients that are summed over the replicas."""
