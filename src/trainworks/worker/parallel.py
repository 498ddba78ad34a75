"""From one module to a distributed one: DDP for replicas, FSDP2 for shards, and what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainworks.spec.layout import ResolvedLayout
from trainworks.worker.model import CausalLanguageModel
from trainworks.worker.timing import Mark, Timeline

__all__ = ["Parallel", "parallelize"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Parallel(Protocol):
    """A model that computes gradients over all ranks and notes how long it waited for the others."""

    @property
    def module(self) -> nn.Module:
        """The wrapped model, whose state a checkpoint holds."""
        ...

    def accumulate(self, tokens: Tensor, *, scale: Tensor | float, last: bool) -> Tensor:
        """Forward and backward of one micro-batch.

        Args:
            tokens: [micro_batch, T + 1].
            scale: factor of the loss before backward.
            last: sum the accumulated gradients over the ranks (mean over data-parallel ranks).

        Returns:
            The unscaled loss, detached, on the device.
        """
        ...

    def settle(self) -> None:
        """To be called once after a first forward and backward whose gradients were thrown away."""
        ...


def parallelize(
    model: CausalLanguageModel, layout: ResolvedLayout, *, device: torch.device, precision: str, timeline: Timeline
) -> Parallel:
    """Wrap a model for a layout of dp_replicate and dp_shard, both checked before."""
    model.to(device)
    if layout.dp_shard > 1:
        return _Sharded(model, layout, device, precision, timeline)
    if layout.dp_replicate > 1:
        return _Replicated(model, device, precision, timeline)
    return _Single(model, device, precision)


class _Single:
    """One process: nothing to wait for."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str) -> None:
        self.module = model
        self._device = device
        self._dtype = _DTYPES.get(precision)

    def accumulate(self, tokens: Tensor, *, scale: Tensor | float, last: bool) -> Tensor:
        loss = self._loss(tokens)
        self._backward(loss, scale)
        return loss.detach()

    def settle(self) -> None:
        pass

    def _loss(self, tokens: Tensor) -> Tensor:
        with self._autocast():
            loss: Tensor = self.module(tokens)
        return loss

    def _autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, dtype=self._dtype)

    def _backward(self, loss: Tensor, scale: Tensor | float) -> None:
        (loss if isinstance(scale, float) and scale == 1.0 else loss * scale).backward()


class _Replicated(_Single):
    """DDP. Gradients are summed while backward runs; what remains after the last gradient is there is exposed."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str, timeline: Timeline) -> None:
        replicated = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        super().__init__(replicated, device, precision)
        self._replicated = replicated
        self._timeline = timeline
        self._last_gradient = _LastGradient(model, timeline)

    def accumulate(self, tokens: Tensor, *, scale: Tensor | float, last: bool) -> Tensor:
        if not last:
            with self._replicated.no_sync():
                return super().accumulate(tokens, scale=scale, last=last)
        loss = super().accumulate(tokens, scale=scale, last=last)
        self._timeline.waited_since(self._last_gradient.mark)
        return loss

    def settle(self) -> None:
        self._last_gradient.keep_only_last()


class _LastGradient:
    """Marks the moment at which the parameter whose gradient comes last has it.

    Which parameter that is shows in the first backward; from then on a single hook remains.
    """

    def __init__(self, model: nn.Module, timeline: Timeline) -> None:
        self.mark: Mark | None = None
        self._timeline = timeline
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._last = len(self._parameters) - 1
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._noting(index))
            for index, parameter in enumerate(self._parameters)
        ]

    def _noting(self, index: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            self._last = index
            self.mark = self._timeline.mark()

        return note

    def keep_only_last(self) -> None:
        """Drop the hooks of all parameters but the one that came last."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [self._parameters[self._last].register_post_accumulate_grad_hook(self._noting(self._last))]


class _Sharded(_Single):
    """FSDP2: each block's parameters are gathered before use, its gradients reduced to shards after, and over the
    replicas once per step.
    """

    def __init__(
        self,
        model: CausalLanguageModel,
        layout: ResolvedLayout,
        device: torch.device,
        precision: str,
        timeline: Timeline,
    ) -> None:
        super().__init__(model, device, "fp32")  # the mixed-precision policy casts, not autocast
        dtype = _DTYPES.get(precision)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
        mesh = _data_mesh(layout, device)
        units = [fully_shard(unit, mesh=mesh, mp_policy=policy) for unit in (*model.blocks, model)]
        self._root: FSDPModule = units[-1]
        if device.type == "cpu":
            _note_collectives(units, timeline)

    def accumulate(self, tokens: Tensor, *, scale: Tensor | float, last: bool) -> Tensor:
        # Gradients go to their shards after every micro-batch: kept whole they would need as much as no shards at all.
        self._root.set_requires_all_reduce(last)
        return super().accumulate(tokens, scale=scale, last=last)


def _data_mesh(layout: ResolvedLayout, device: torch.device) -> dist.DeviceMesh:
    if layout.dp_replicate == 1:
        return init_device_mesh(device.type, (layout.dp_shard,), mesh_dim_names=("dp_shard",))
    degrees = (layout.dp_replicate, layout.dp_shard)
    return init_device_mesh(device.type, degrees, mesh_dim_names=("dp_replicate", "dp_shard"))


def _note_collectives(units: list[FSDPModule], timeline: Timeline) -> None:
    """On a CPU every collective of FSDP2 blocks its caller: all of its time is exposed."""
    for unit in units:
        unit.set_custom_all_gather(_Noted(dist.all_gather_into_tensor, timeline))  # type: ignore[arg-type]
        unit.set_custom_reduce_scatter(_Noted(dist.reduce_scatter_tensor, timeline))  # type: ignore[arg-type]


class _Noted:
    """FSDP2's default collective, with its duration noted (the interface of `fully_shard`'s custom collectives)."""

    def __init__(self, collective: Callable[..., dist.Work | None], timeline: Timeline) -> None:
        self._collective = collective
        self._timeline = timeline

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: object) -> dist.Work | None:
        start = self._timeline.mark()
        work = self._collective(output_tensor, input_tensor, **options)
        self._timeline.waited_since(start)
        return work
