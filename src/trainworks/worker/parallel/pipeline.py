"""Pipeline parallelism: the order in which micro-batches pass the stages. Imported only by runs with pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

from trainworks.config.layout import ResolvedLayout
from trainworks.worker.loss import spread_nonfinite, weighted
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import PackedTokens


class PipelineRun:
    """Runs the micro-batches of a step through the stages of all ranks.

    `modules` are the stages of this rank, as they are wrapped for data parallelism, by their index. What a stage hands
    to the next of one micro-batch has the shape `boundary`, [b, T, D], and the type `dtype`; its `tokens` are [b, T],
    and the `vocabulary` is V.
    """

    def __init__(
        self,
        modules: dict[int, nn.Module],
        mesh: Mesh,
        device: torch.device,
        *,
        boundary: tuple[int, ...],
        tokens: tuple[int, int],
        vocabulary: int,
        dtype: torch.dtype,
    ) -> None:
        layout = mesh.layout
        count = layout.pp * layout.interleave
        hidden = torch.empty(boundary, dtype=dtype, device="meta", requires_grad=True)
        first = torch.empty(tokens, dtype=torch.int64, device="meta")
        loss = torch.empty(1, device="meta", requires_grad=True)
        stages = [
            PipelineStage(
                module,
                index,
                count,
                device,
                input_args=first if index == 0 else hidden,
                output_args=loss if index == count - 1 else hidden,
                group=mesh.pp_group,
            )
            for index, module in modules.items()
        ]
        self._modules, self._count, self._layout, self._group = modules, count, layout, mesh.pp_group
        self._hidden, self._vocabulary, self._split = hidden, vocabulary, tokens[1] // boundary[1]
        self._has_first, self.has_last = 0 in modules, count - 1 in modules
        self._scale: Tensor | float = 1.0
        self._weights: Tensor | None = None
        self._losses: list[Tensor] = []
        self._schedule = _schedule(layout, stages, self._loss)

    def gradients(
        self, x: Tensor | PackedTokens, labels: Tensor, scale: Tensor | float, weights: Tensor | None = None
    ) -> Tensor | None:
        """Forward and backward of all micro-batches [m * b, T]; gradients accumulate in the parameters.

        Returns:
            Mean of the weighted losses of the micro-batches on the ranks that have the last stage; None elsewhere.
        """
        self._scale, self._weights = scale, weights
        losses = self._pass(self._schedule.step, x, labels)
        return None if losses is None else losses.mean()

    def evaluate(self, x: Tensor | PackedTokens, labels: Tensor) -> Tensor | None:
        """Losses [m] of all micro-batches [m * b, T], forward alone; None on ranks without the last stage."""
        self._scale, self._weights = 1.0, None
        return self._pass(self._schedule.eval, x, labels)

    def _pass(self, run: Callable[..., object], x: Tensor | PackedTokens, labels: Tensor) -> Tensor | None:
        self._losses = []
        options = {"labels_BT": labels}
        if isinstance(x, PackedTokens):
            x, options["positions_BT"] = x
        run(*((x,) if self._has_first else ()), target=labels, **options, return_outputs=False)
        return torch.stack(self._losses) if self.has_last else None

    def forward(self, tokens_BT: Tensor, *, at: int) -> Tensor:
        """Logits [B, V] at a position, on all ranks of the pipeline: one stage after the other."""
        split = self._split
        shape = (len(tokens_BT), tokens_BT.shape[1] // split, self._hidden.shape[-1])
        x = tokens_BT
        for index in range(self._count):
            last = index == self._count - 1
            if (module := self._modules.get(index)) is not None:
                x = module(x, at=at if last else None).contiguous()
            else:
                size = (len(tokens_BT), self._vocabulary) if last else shape
                x = torch.empty(size, dtype=self._hidden.dtype, device=tokens_BT.device)
            dist.broadcast(x, group=self._group, group_src=index % self._layout.pp)
        return x

    def _loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Weighted and scaled loss of the next micro-batch. The last stage has computed the loss itself."""
        loss = weighted(output[0], None if self._weights is None else self._weights[len(self._losses)])
        self._losses.append(loss.detach())
        return spread_nonfinite(loss, self._scale)


def _schedule(layout: ResolvedLayout, stages: list[PipelineStage], loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    options = {"n_microbatches": layout.grad_accum_steps, "loss_fn": loss, "scale_grads": False}
    if layout.zero_bubble:
        return ScheduleInterleavedZeroBubble(stages, **options)  # type: ignore[arg-type]
    if layout.interleave > 1:
        return ScheduleInterleaved1F1B(stages, **options)  # type: ignore[arg-type]
    return Schedule1F1B(stages[0], **options)  # type: ignore[arg-type]
