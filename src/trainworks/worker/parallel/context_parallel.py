"""Context parallelism: each rank of `cp` has a range of the positions, and during attention a part of the heads.

Ulysses (Jacobs et al. 2023): an all-to-all turns [B, T / c, N, H] into [B, T, N / c, H], attention runs over the whole
sequence with the fused causal kernel, and another turns its output back. Every rank has the same work for any
mask. Each exchange moves (c - 1) / c of what a rank has. The degree is bounded by the query heads that a rank has.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from trainworks.worker.models.decoder import Attend, Attention, Decoder


def apply_context_parallel(part: Decoder, group: dist.ProcessGroup, *, first_position: int) -> None:
    """Let a decoder, or a part of one, see whole sequences of which this rank has the positions from the first on."""
    part.first_position = first_position
    for module in part.modules():
        if isinstance(module, Attention):
            module.exchange = _Ulysses(group)


class _Ulysses:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)

    def __call__(self, attend: Attend, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor) -> Tensor:
        """Attention output [B, T / c, N, H] of this rank's positions, from its own queries, keys and values."""
        copies = self._ranks // math.gcd(k_BTKH.shape[2], self._ranks)  # each rank needs a key head of its own
        parts = [q_BTNH, *(x if copies == 1 else x.repeat_interleave(copies, dim=2) for x in (k_BTKH, v_BTKH))]
        heads = [part.shape[2] // self._ranks for part in parts]
        by_rank = torch.cat([part.unflatten(2, (self._ranks, -1)) for part in parts], dim=3)
        gathered = self._exchange(by_rank.movedim(2, 0)).movedim(0, 1).flatten(1, 2)
        out_BTNH = attend(*gathered.split(heads, dim=2))
        returned = self._exchange(out_BTNH.unflatten(1, (self._ranks, -1)).movedim(1, 0))
        return returned.movedim(0, 2).flatten(2, 3)

    def _exchange(self, x: Tensor) -> Tensor:
        """Row r of the first dimension goes to rank r."""
        return all_to_all_single_autograd(x.contiguous(), None, None, self._group)
