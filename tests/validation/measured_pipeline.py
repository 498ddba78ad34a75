"""Memory of the first rank of a pipeline under PyTorch's own schedules, measured as in `measured_memory`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import InferenceMode

from tests.validation.measured_memory import ByteTracker, fake_ranks, num_bytes, total_bytes
from tests.validation.reference_model import Block, Sizes


class _Agreed:
    """Stages do not vote how to find their shapes: the votes of ranks that do not exist would have no values."""

    def _warmup_p2p(self, stages: list[Any], *_: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC


class _Plain(_Agreed, Schedule1F1B): ...


class _Interleaved(_Agreed, ScheduleInterleaved1F1B): ...


def peak_of_first_rank(
    sizes: Sizes, *, stages: int, chunks: int, blocks: int, micro_batches: int, sequence_length: int
) -> int:
    """Peak of one forward and backward of micro-batches of one sequence, beyond 16-bit weights and their gradients.

    Args:
        sizes: of the blocks; `layers` is not used.
        stages: ranks of the pipeline.
        chunks: parts of the model that each rank holds.
        blocks: of one part.
        micro_batches: of the step.
        sequence_length: tokens.
    """
    with fake_ranks(stages), FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        parts = [nn.Sequential(*(Block(sizes) for _ in range(blocks))) for _ in range(chunks)]
        inputs = torch.zeros(micro_batches, sequence_length, sizes.hidden)
        torch.set_default_dtype(torch.float32)
        held = [_stage(part, index * stages, stages * chunks, inputs[:1]) for index, part in enumerate(parts)]
        schedule: Any = (
            _Plain(held[0], micro_batches, loss_fn=_no_loss)
            if chunks == 1
            else _Interleaved(held, micro_batches, loss_fn=_no_loss)
        )
        schedule.step(inputs)
        parameters = [parameter for part in parts for parameter in part.parameters()]
        for parameter in parameters:
            parameter.grad = None
        tracker = ByteTracker()
        tracker.track_external(*parts, inputs)
        with tracker:
            schedule.step(inputs)
        return total_bytes(tracker.get_tracker_snapshot("peak")) - num_bytes([*parameters, *parameters, inputs])


def _stage(part: nn.Module, index: int, num_stages: int, example: Tensor) -> PipelineStage:
    gradients = {} if index == 0 else {"input_grads": (example,)}
    received = example if index == 0 else example.detach().requires_grad_()
    return PipelineStage(
        part,
        index,
        num_stages,
        torch.device("cpu"),
        input_args=(received,),
        output_args=(example,),
        output_grads=(example,),
        **gradients,
    )


def _no_loss(*_: Any) -> None:
    raise AssertionError("the first rank has no loss")
