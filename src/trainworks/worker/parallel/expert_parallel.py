"""Expert parallelism: every rank of `ep` has some of the experts, and tokens travel to them and back.

Two all-to-alls per layer and direction (GShard, Lepikhin et al. 2020), of as many tokens as the router wants: no
capacity, no padding, no token dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.experts import Experts, MixtureOfExperts
from trainworks.worker.timing import all_reduce


def apply_expert_parallel(part: Decoder, mesh: DeviceMesh) -> None:
    """Spread the experts of a decoder, or of a part of one, over the ranks of a one-dimensional mesh."""
    for module in part.modules():
        if not isinstance(module, Experts):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))
        module.dispatch = _Dispatch(mesh.get_group())


def balance_sequences(part: Decoder, mesh: Mesh) -> None:
    """Experts are balanced over whole sequences, of which this rank has a part of the positions."""
    group = mesh.sequence_group
    for module in part.modules():
        if isinstance(module, MixtureOfExperts):
            module.balance.sum_over_sequence = functools.partial(all_reduce, group=group)
            module.balance.shards = mesh.layout.tp if mesh.layout.sequence_parallel else 1


class _Dispatch:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)

    def __call__(self, compute: Callable[[Tensor, Tensor], Tensor], x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of this rank's tokens, in the order in which they came."""
        sent = counts_E.view(self._ranks, -1)  # [rank, expert of that rank]
        received = all_to_all_single(sent, None, None, self._group)
        to, of = sent.sum(1).tolist(), received.sum(1).tolist()
        x_RD = self._exchange(x_RD, of, to)
        # They come by sender; the products want them by expert.
        experts = torch.arange(received.shape[1], device=x_RD.device).repeat(self._ranks)
        order = experts.repeat_interleave(received.flatten()).argsort(stable=True)
        out_RD = compute(x_RD[order], received.sum(0))
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return self._exchange(out_RD[back], to, of)

    def _exchange(self, x: Tensor, output_splits: list[int], input_splits: list[int]) -> Tensor:
        return all_to_all_single_autograd(x.contiguous(), output_splits, input_splits, self._group)
