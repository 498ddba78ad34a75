"""The norm of all gradients, over whatever ranks they are spread, in one collective.

    ||g||^2 = sum over ranks r and parameters p of ||g_rp||^2 / c_p

g_rp is the part of p's gradient on rank r, and c_p the number of ranks that have the same part: world size over
pipeline stages and over the ranks among which p is sharded. A parameter that two stages share counts on the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate

from trainworks.worker.mesh import Mesh

__all__ = ["GlobalNorm", "clip"]


class GlobalNorm:
    """The norm of the gradients of some parameters.

    Args:
        parameters: of this rank, distributed or not.
        mesh: of this rank.
        not_counted: the one that another rank counts.
    """

    def __init__(self, parameters: Sequence[Tensor], mesh: Mesh, *, not_counted: Tensor | None) -> None:
        skipped = not_counted if mesh.pp_rank > 0 else None
        layout = mesh.layout
        per_stage = layout.world_size // layout.pp
        self._copies = [math.inf if each is skipped else per_stage / _shards(each) for each in parameters]
        self._spread = layout.pp > 1 or any(copies != per_stage for copies in self._copies)

    def of(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """The norm, a scalar on the device, the same on every rank; parameters without gradients count as zeros.

        Args:
            gradients: this rank's parts, in the order of the parameters.
        """
        if not self._spread:  # every rank has every gradient
            return torch.nn.utils.get_total_norm([each for each in gradients if each is not None], foreach=True)
        by_copies: dict[float, list[Tensor]] = {}
        for gradient, copies in zip(gradients, self._copies, strict=True):
            if gradient is not None and not math.isinf(copies):
                by_copies.setdefault(copies, []).append(gradient)
        squares = [
            torch.nn.utils.get_total_norm(group, foreach=True) ** 2 / copies for copies, group in by_copies.items()
        ]
        total = torch.stack(squares).sum()
        dist.all_reduce(total)
        return total.sqrt()


def _shards(parameter: Tensor) -> int:
    """Ranks among which a parameter is split."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements
    return math.prod(mesh.size(dim) for dim, placement in enumerate(placements) if not isinstance(placement, Replicate))


def clip(gradients: Sequence[Tensor | None], norm: Tensor, limit: float) -> None:
    """Scale gradients in place to a norm of at most `limit`, without asking the device for the norm."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([each for each in gradients if each is not None], factor)
