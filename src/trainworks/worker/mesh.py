"""Position of this rank in the layout, and its process groups.

Ranks are numbered with the axes in this order, the last one fastest, so that axes that communicate most are closest:

    pp, dp_replicate, dp_shard, cp, tp

Weights are sharded over `fsdp` = dp_shard * cp, because ranks of one context-parallel group have the same weights. The
weights of experts are spread over `ep`, and sharded over what that leaves of dp_shard * cp * tp.

To create a process group is a collective of all ranks, members or not. This module therefore creates every group of a
rank when the rank starts, in an order and from values that all ranks share: first that of all ranks (`join_group`).
`Mesh.check_links` uses each of them once, so that a broken link shows before the first step.
"""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainworks.config.layout import ResolvedLayout
from trainworks.errors import EnvironmentProblem
from trainworks.host.network import is_loopback
from trainworks.record.model_shape import ModelShape

CHECKPOINT_GROUP = "checkpoint"
"""Description of the group that saves in the background; waiting in it blocks no training."""


def open_store(
    address: str,
    port: int,
    *,
    serves: bool = False,
    listener: int | None = None,
    timeout: timedelta = timedelta(minutes=5),
) -> dist.TCPStore:
    """The store over which ranks or node agents meet; opening it waits for none of them.

    The process at that address serves it, on its listening socket where that is bound already, which the store then
    closes.
    """
    return dist.TCPStore(
        address, port, is_master=serves, wait_for_workers=False, master_listen_fd=listener, timeout=timeout
    )


def join_group(
    backend: str,
    address: str,
    store: dist.Store | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    timeout: timedelta | None = None,
    device: torch.device | None = None,
) -> None:
    """Create the group of all ranks, the first one of every process; all ranks call it together.

    Rank 0 is at `address`; on one machine, gloo connects over its loopback device. Without a store, they meet at that
    of the environment, as torchrun sets it, with its rank and world size. With the GPU of the rank as `device`, NCCL
    connects here and not in the first collective, and later groups are split from this one.
    """
    if is_loopback(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    bound = device if device is not None and device.type == "cuda" else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=bound)


class Mesh:
    """Position of one rank, and the process groups that the layout and the model need.

    All ranks construct it together, with equal arguments; the world size of the layout is that of the default process
    group. A process without one has no others. The experts and the tied embedding of `model` may need groups; None,
    and a shape without dimensions, makes those of any model. `device` is `cpu` or `cuda`. An optimizer may need
    `whole_matrices` of weights that ranks have parts of.
    """

    cp_group: dist.ProcessGroup
    """Context-parallel ranks."""
    sequence_group: dist.ProcessGroup
    """Ranks that share the positions of a sequence, those of sequence parallelism included."""
    embedding_group: dist.ProcessGroup
    """First and last pipeline rank, which both have a tied embedding."""
    weights_group: dist.ProcessGroup
    """Ranks that have parts of the same dense weights, numbered by shard and then by tp; for whole matrices alone."""
    checkpoint_group: dist.ProcessGroup
    """All ranks, over gloo, to save in the background."""

    def __init__(
        self, layout: ResolvedLayout, device: str, model: ModelShape | None = None, *, whole_matrices: bool = False
    ) -> None:
        self.layout = layout
        self._device = device
        rank = dist.get_rank() if dist.is_initialized() else 0
        axes = (layout.pp, layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp)
        pp, replicate, shard, cp, tp = (int(index) for index in np.unravel_index(rank, axes))
        self.pp_rank, self.cp_rank, self.tp_rank = pp, cp, tp
        self.dp_rank = replicate * layout.dp_shard + shard
        self._groups: list[dist.ProcessGroup] = []
        if dist.is_initialized():
            is_unknown = model is None or not model.is_described
            has_experts = is_unknown or (model is not None and model.experts > 0)
            is_tied = is_unknown or (model is not None and model.tie_embeddings)
            self._create_meshes(has_experts=has_experts)
            self._create_groups(has_experts=has_experts, is_tied=is_tied)
            if whole_matrices and layout.dp_shard * layout.cp * layout.tp > 1:
                shared = layout.dp_shard * layout.cp * layout.tp
                self.weights_group = self._own_group(np.arange(layout.world_size).reshape(-1, shared))

    def _create_meshes(self, *, has_experts: bool) -> None:
        """Meshes of dense weights and of experts; plain replicas need none, because DDP uses the default group."""
        layout = self.layout
        if layout.world_size == layout.dp_replicate and not layout.offload_optimizer:
            return
        shards = layout.dp_shard * layout.cp
        self._dense = self._device_mesh(fsdp=shards, tp=layout.tp)
        self._expert = self._dense
        if has_experts and layout.ep * layout.tp > 1:
            self._expert = self._device_mesh(fsdp=shards * layout.tp // layout.ep, ep=layout.ep)

    def _device_mesh(self, **degrees: int) -> DeviceMesh:
        """A mesh of all ranks: pp, dp_replicate, and these axes; an axis of one rank is left out, but for `fsdp`."""
        degrees = {"pp": self.layout.pp, "dp_replicate": self.layout.dp_replicate} | degrees
        used = {name: degree for name, degree in degrees.items() if degree > 1 or name == "fsdp"}
        mesh = init_device_mesh(self._device, tuple(used.values()), mesh_dim_names=tuple(used))
        self._groups += mesh.get_all_groups()
        return mesh

    def _create_groups(self, *, has_experts: bool, is_tied: bool) -> None:
        layout = self.layout
        ranks = np.arange(layout.world_size).reshape(layout.pp, -1, layout.cp, layout.tp)
        if layout.cp > 1:
            self.cp_group = self.sequence_group = self._own_group(ranks.swapaxes(2, 3).reshape(-1, layout.cp))
        if has_experts and layout.sequence_parallel:
            self.sequence_group = self._own_group(ranks.reshape(-1, layout.cp * layout.tp))
        if is_tied and layout.pp > 1:
            self.embedding_group = self._own_group(ranks.reshape(layout.pp, -1)[[0, -1]].T)
        self.checkpoint_group = checkpoint_group()
        self._groups.append(self.checkpoint_group)

    def _own_group(self, rows: NDArray[np.int64]) -> dist.ProcessGroup:
        """The group of this rank, one per row; ranks in no row get one that they cannot use."""
        group, _ = dist.new_subgroups_by_enumeration(rows.tolist())
        self._groups += [group] if isinstance(group, dist.ProcessGroup) else []
        return group

    def check_links(self, device: torch.device, timeout: timedelta) -> None:
        """Sum a one over every group of this rank, in the order in which they were made; all ranks call it together.

        A link that is broken shows here, and so does a rank that is in another place than the layout says. `timeout`
        is from now on that of every group but the one of checkpoints; torch gives those of a mesh ten minutes.

        Raises:
            EnvironmentProblem: the sum over a group is not its number of ranks.
        """
        for group in dict.fromkeys([dist.group.WORLD, *self._groups]):
            assert group is not None
            if group is not self.checkpoint_group:
                _set_pg_timeout(timeout, group)
            one = torch.ones((), device=device if dist.get_backend(group) == "nccl" else "cpu")
            dist.all_reduce(one, group=group)
            ranks = dist.get_process_group_ranks(group)
            if (total := one.item()) != len(ranks):
                raise EnvironmentProblem(
                    f"ranks {ranks} summed one each in the group `{group.group_desc}` and got {total:g}",
                    hint="test the links between their nodes: trainworks bench collectives",
                )

    @property
    def fsdp(self) -> DeviceMesh:
        """Over which dense weights are sharded, and copied if there are replicas."""
        return self._dense["dp_replicate", "fsdp"] if self.layout.dp_replicate > 1 else self._dense["fsdp"]

    @property
    def expert_fsdp(self) -> DeviceMesh:
        """The same of the weights of experts."""
        return self._expert["dp_replicate", "fsdp"] if self.layout.dp_replicate > 1 else self._expert["fsdp"]

    @property
    def tp(self) -> DeviceMesh:
        """Tensor-parallel ranks."""
        return self._dense["tp"]

    @property
    def ep(self) -> DeviceMesh:
        """Expert-parallel ranks."""
        return self._expert["ep"]

    @property
    def pp_group(self) -> dist.ProcessGroup:
        """Pipeline stages."""
        return self._dense.get_group("pp")


def checkpoint_group() -> dist.ProcessGroup:
    """All ranks, over gloo, to save in the background; for a loop without a mesh, whose ranks call it together."""
    return dist.new_group(backend="gloo", group_desc=CHECKPOINT_GROUP)
