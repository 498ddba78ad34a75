"""Running statistics of batch norm, which every rank keeps of its own micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainworks.errors import LayoutError


def check_batch_norm(model: nn.Module, precision: str) -> None:
    """Refuse batch norm in models sharded in a 16-bit precision: it keeps fp32 statistics and rejects 16-bit weights
    beside them.

    Raises:
        LayoutError: it has batch norm, and the precision has 16 bits.
    """
    if precision in ("bf16", "fp16") and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise LayoutError(
            f"batch norm cannot be sharded in {precision}: its statistics are fp32, its gathered weights would not be",
            field="dp_shard",
            hint="train it with replicas (`dp_replicate`), or in fp32",
        )


@torch.no_grad()
def average_statistics(parts: Sequence[nn.Module]) -> None:
    """Make running means and variances the same on all ranks, so that a checkpoint holds those of all the data.

    Training does not read them. The mean of variances ignores the variance between ranks, which is small
    because every rank sees a random part of the batch.
    """
    statistics = [value for part in parts for module in part.modules() for value in _statistics(module)]
    if not statistics or dist.get_world_size() == 1:
        return
    flat = torch.cat([value.flatten() for value in statistics])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for value, mean in zip(statistics, flat.split([value.numel() for value in statistics]), strict=True):
        value.copy_(mean.view_as(value))


@contextmanager
def averaged_statistics(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Running means and variances of all the data for a while; afterwards every rank has its own again."""
    statistics = [value for part in parts for module in part.modules() for value in _statistics(module)]
    own = [value.clone() for value in statistics]
    average_statistics(parts)
    try:
        yield
    finally:
        for value, before in zip(statistics, own, strict=True):
            value.copy_(before)


def _statistics(module: nn.Module) -> list[Tensor]:
    if not isinstance(module, _BatchNorm):
        return []
    return [value for value in (module.running_mean, module.running_var) if value is not None]
