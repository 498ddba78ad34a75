"""What older versions of PyTorch, from 2.11 on, name or do otherwise than 2.13; no other module asks for it.

before 2.13   `all_gather_single` is `all_gather_into_tensor`, and `reduce_scatter_single` `reduce_scatter_tensor`
2.11          `varlen_attn` has no `enable_gqa`: it takes fewer key than query heads unasked
2.11          `DefaultStager` closes its copier after each copy and fails in the next (pytorch/pytorch#183413)

That this is all is known from one H100 with 2.11, and from the documentation and issues of PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

Collective = Callable[..., dist.Work | None]

ALL_GATHER: Collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Collective = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def grouped_heads(attend: Callable[..., Any]) -> dict[str, bool]:
    """The option that lets several query heads share a key head; none where `varlen_attn` does so without it."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(attend).parameters else {}


def reusable_stager(options: StagingOptions) -> DefaultStager:
    """A stager of many copies, whose buffers are kept from one to the next, until it is garbage."""
    from torch.distributed.checkpoint.staging import DefaultStager  # noqa: PLC0415  # ranks that save none do without

    stager = DefaultStager(options)
    stager._state_dict_stager.close = lambda: None  # type: ignore[method-assign]
    return stager
