"""Position of this rank in the layout, and its process groups.

Ranks are numbered with the axes in this order, the last one fastest, so that axes that communicate most are closest:

    pp, dp_replicate, dp_shard, cp, tp

Weights are sharded over `fsdp` = dp_shard * cp, because ranks of one context-parallel group have the same weights. The
weights of experts are spread over `ep`, and sharded over what that leaves of dp_shard * cp * tp.
"""

from __future__ import annotations

import functools

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainworks.config.layout import ResolvedLayout


class Mesh:
    """Process groups of one rank. All ranks create a group together, at its first use.

    Args:
        layout: of the whole job; its world size is that of the default process group.
        device: `cpu` or `cuda`.
    """

    def __init__(self, layout: ResolvedLayout, device: str) -> None:
        self.layout = layout
        self._device = device
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        axes = (layout.pp, layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp)
        pp, replicate, shard, cp, tp = (int(index) for index in np.unravel_index(self._rank, axes))
        self.pp_rank, self.cp_rank, self.tp_rank = pp, cp, tp
        self.dp_rank = replicate * layout.dp_shard + shard

    @property
    def num_losses(self) -> int:
        """Ranks over which the gradients of one loss are averaged: dp * cp."""
        return self.layout.dp * self.layout.cp

    @functools.cached_property
    def _dense(self) -> DeviceMesh:
        layout = self.layout
        degrees = (layout.pp, layout.dp_replicate, layout.dp_shard * layout.cp, layout.tp)
        return init_device_mesh(self._device, degrees, mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"))

    @functools.cached_property
    def _expert(self) -> DeviceMesh:
        layout = self.layout
        shards = layout.dp_shard * layout.cp * layout.tp // layout.ep
        degrees = (layout.pp, layout.dp_replicate, shards, layout.ep)
        return init_device_mesh(self._device, degrees, mesh_dim_names=("pp", "dp_replicate", "fsdp", "ep"))

    @functools.cached_property
    def _context(self) -> DeviceMesh:
        layout = self.layout
        degrees = (layout.pp * layout.dp, layout.cp, layout.tp)
        return init_device_mesh(self._device, degrees, mesh_dim_names=("rest", "cp", "tp"))

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

    @property
    def cp_group(self) -> dist.ProcessGroup:
        """Context-parallel ranks."""
        return self._context.get_group("cp")

    @functools.cached_property
    def sequence_group(self) -> dist.ProcessGroup:
        """Ranks that share the positions of a sequence, those of sequence parallelism included."""
        layout = self.layout
        if not layout.sequence_parallel:
            return self.cp_group
        degrees = (layout.pp * layout.dp, layout.cp * layout.tp)
        return init_device_mesh(self._device, degrees, mesh_dim_names=("rest", "sequence")).get_group("sequence")

    @functools.cached_property
    def embedding_group(self) -> dist.ProcessGroup:
        """The first and the last pipeline rank, which both have a tied embedding."""
        per_stage = self.layout.world_size // self.layout.pp
        last = self.layout.world_size - per_stage
        groups = [[first, last + first] for first in range(per_stage)]
        group, _ = dist.new_subgroups_by_enumeration(groups)
        return group
