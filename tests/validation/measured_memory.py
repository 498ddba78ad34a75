"""Memory of a training step under real PyTorch, measured on fake tensors: nothing is computed, every byte is counted.

`torch.distributed._tools.mem_tracker.MemTracker` counts the storages that live; the process group is fake, so that one
process is one rank of many. A first step is not counted: it creates the optimizer's states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import AdamW
from torch.testing._internal.distributed.fake_pg import FakeStore

MICRO_BATCHES = 2
"""Of a step: the second one meets the gradients of the first, as in every step that accumulates."""


@dataclass(frozen=True)
class Parallel:
    """How the model is spread over ranks, and who holds what in which precision."""

    states: str = "copies"
    """`copies`: 16-bit weights, fp32 gradients and copies (Megatron-LM); `autocast`: fp32 weights, products in bf16
    (PyTorch's recipe); `sharded`: FSDP2, fp32 shards, gathered in bf16; `fp32`: no mixed precision."""
    dp_shard: int = 1
    zero: int = 0
    tp: int = 1
    sequence_parallel: bool = False

    @property
    def world_size(self) -> int:
        return self.dp_shard * self.tp


@dataclass(frozen=True)
class Measured:
    """Bytes of one rank."""

    weights: int
    gradients: int
    optimizer: int
    """Moments and fp32 copies."""
    kept: int
    """Between forward and backward, beyond what was there before forward."""
    peak: int


class ByteTracker(MemTracker):
    """Totals alone: statistics per module know no second micro-batch."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None: ...

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None: ...

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None: ...

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None: ...


@dataclass
class _Trainer:
    model: nn.Module
    optimizer: AdamW
    copies: list[Tensor]
    gradients: Callable[[], Iterable[Tensor | None]]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def measure(
    build: Callable[[], nn.Module], parallel: Parallel, *, micro_batch: int, sequence_length: int, dtype: torch.dtype
) -> Measured:
    """One training step of a model that turns tokens [B, T] into a loss."""
    with fake_ranks(parallel.world_size) as mesh, FakeTensorMode():
        trainer = _trainer(build, parallel, mesh, dtype)
        tokens = torch.zeros(micro_batch, sequence_length, dtype=torch.long)
        _step(trainer, tokens, None)
        tracker = ByteTracker()
        tracker.track_external(trainer.model, trainer.optimizer, *trainer.copies, *_present(trainer.gradients()))
        with tracker:
            kept, gradients = _step(trainer, tokens, tracker)
        moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
        return Measured(
            weights=num_bytes(trainer.model.parameters()),
            gradients=gradients,
            optimizer=num_bytes([*moments, *trainer.copies]),
            kept=kept,
            peak=total_bytes(tracker.get_tracker_snapshot("peak")),
        )


def _step(trainer: _Trainer, tokens: Tensor, tracker: ByteTracker | None) -> tuple[int, int]:
    kept = 0
    for _ in range(MICRO_BATCHES):
        before = total_bytes(tracker.get_tracker_snapshot()) if tracker else 0
        with trainer.context():
            loss = trainer.model(tokens)
        if tracker:
            kept = total_bytes(tracker.get_tracker_snapshot()) - before
        loss.backward()
        del loss
    gradients = num_bytes(_present(trainer.gradients()))
    trainer.optimizer.step()
    if not trainer.copies:
        trainer.optimizer.zero_grad()
    return kept, gradients


def _trainer(
    build: Callable[[], nn.Module], parallel: Parallel, mesh: DeviceMesh | None, dtype: torch.dtype
) -> _Trainer:
    torch.set_default_dtype(dtype if parallel.states == "copies" else torch.float32)
    try:
        model = build()
    finally:
        torch.set_default_dtype(torch.float32)
    if mesh is not None and parallel.tp > 1:
        _split_by_tensor_parallelism(model, mesh, parallel.sequence_parallel)
    if parallel.states == "copies":
        return _with_copies(model)
    if mesh is not None and parallel.states == "sharded":
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=parallel.zero == 3)
    parameters = list(model.parameters())
    trainer = _Trainer(model, AdamW(parameters, fused=True), [], lambda: [parameter.grad for parameter in parameters])
    if parallel.states == "autocast":
        trainer.context = lambda: torch.autocast("cpu", dtype=dtype)
    return trainer


def _with_copies(model: nn.Module) -> _Trainer:
    """The optimizer sees fp32 copies; a gradient is added to its copy's as soon as it is there, and dropped."""
    copies = {parameter: _local(parameter.detach()).float() for parameter in model.parameters()}
    for copy in copies.values():
        copy.grad = torch.zeros_like(copy)

    def accumulate(parameter: Tensor) -> None:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
            gradient = gradient.redistribute(placements=parameter.placements)
        total = copies[parameter].grad
        assert gradient is not None and total is not None
        total.add_(_local(gradient))
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(accumulate)
    held = list(copies.values())
    return _Trainer(model, AdamW(held, fused=True), held, lambda: [copy.grad for copy in held])


def _split_by_tensor_parallelism(model: nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    between = Shard(1) if sequence_parallel else Replicate()
    split = {"attention.query": ColwiseParallel(), "attention.key": ColwiseParallel()}
    split |= {"attention.value": ColwiseParallel(), "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
    plan: dict[str, Any] = split | {name: RowwiseParallel(output_layouts=between) for name in _SUMMED}
    edges: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1)),
    }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        plan |= {
            name: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            for name in ("attention", "mlp")
        }
        edges["norm"] = SequenceParallel()
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    parallelize_module(model, mesh, edges)


_SUMMED = ("attention.output", "mlp.down")


@contextmanager
def fake_ranks(world_size: int) -> Iterator[DeviceMesh | None]:
    """Rank 0 of a group whose collectives return at once; no group for one rank."""
    if world_size == 1:
        yield None
        return
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world_size,))
    finally:
        dist.destroy_process_group()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _present(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_local(tensor).nbytes for tensor in tensors)


def total_bytes(snapshot: dict[torch.device, dict[str, int]]) -> int:
    return sum(by_kind["Total"] for by_kind in snapshot.values())
