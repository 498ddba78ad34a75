"""Cuts of the decoder: by tensors over the ranks of `tp`, by positions over `cp`, by experts over `ep`.

Tensors are cut as in Megatron (Shoeybi et al. 2019): q, k, v, gate and up by output features, o and down by input
features, so that each half of a block needs one exchange. With sequence parallelism (Korthikanti et al. 2022) norms and
residual stream are cut by positions, and that exchange is a gather before and a reduce-scatter after, of the same
volume.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import embedding, pad

from trainworks.worker.loss import ChunkedCrossEntropy
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Attend, Attention, Decoder, DecoderBlock, DecoderConfig, FeedForward
from trainworks.worker.models.experts import Experts, MixtureOfExperts
from trainworks.worker.timing import all_reduce


def apply_tensor_parallel(part: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut a decoder, or a part of one, over the ranks of a one-dimensional mesh."""
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {}
    if part.embed_tokens is not None:
        plan["embed_tokens"] = _VocabularyRows(between, _rows_per_rank(part, mesh))
    if part.embed_positions is not None:
        plan["embed_positions"] = _Replicated(Replicate(), between)
    if part.lm_head is not None:
        plan["lm_head"] = ColwiseParallel()
    if sequence_parallel:
        part.sequence_shards = mesh.size()
        if part.norm is not None:
            plan["norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(part, mesh, plan)
    for block in part.layers.values():
        assert isinstance(block, DecoderBlock)
        parallelize_module(block, mesh, _block_plan(block, between, part.config, mesh.size()))
    _cut_output(part, mesh, between)


def _rows_per_rank(part: Decoder, mesh: DeviceMesh) -> int:
    """Rows of the vocabulary on each rank; the last one has the rest where they do not divide evenly."""
    return -(-part.config.vocabulary // mesh.size())


def _block_plan(block: DecoderBlock, between: Placement, config: DecoderConfig, ranks: int) -> dict[str, ParallelStyle]:
    shared = config.kv_heads % ranks != 0
    plan: dict[str, ParallelStyle] = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": _SharedHeads(config) if shared else ColwiseParallel(),
        "self_attn.v_proj": _SharedHeads(config) if shared else ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
    }
    assert isinstance(block.self_attn, Attention)
    if block.self_attn.q_norm is not None:  # of heads, which are what is cut there
        plan |= {f"self_attn.{name}": SequenceParallel(sequence_dim=2, use_local_output=True) for name in _HEAD_NORMS}
    if isinstance(between, Shard):
        plan |= {name: SequenceParallel(use_local_output=True) for name in _BLOCK_NORMS}
        plan["self_attn"] = _gathered(3)
    if isinstance(block.mlp, FeedForward):
        plan |= {"mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=between)}
        if block.mlp.gate_proj is not None:
            plan["mlp.gate_proj"] = ColwiseParallel()
        if isinstance(between, Shard):
            plan["mlp"] = _gathered(1)
    else:  # each rank routes the positions that it has; the experts are `apply_expert_parallel`'s
        plan["mlp.gate"] = _Replicated(between, between)
    return plan


_HEAD_NORMS = ("q_norm", "k_norm")
_BLOCK_NORMS = ("input_layernorm", "post_attention_layernorm")


def _gathered(num_arguments: int) -> PrepareModuleInput:
    """The first argument is gathered over the positions, others are left alone."""
    others = (None,) * (num_arguments - 1)
    return PrepareModuleInput(
        input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others), use_local_output=False
    )


class _VocabularyRows(ParallelStyle):
    """An embedding of which each rank has some rows; tokens of other rows count as zeros before the sum over the ranks.

    (`RowwiseParallel` gives its gradient the size of the whole table.)
    """

    def __init__(self, outputs: Placement, rows: int) -> None:
        self._outputs = outputs
        self._rows = rows

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        module.weight = nn.Parameter(distribute_tensor(module.weight, device_mesh, [Shard(0)]))
        module.forward = functools.partial(self._look_up, module, device_mesh)  # type: ignore[method-assign]
        return module

    def _look_up(self, module: nn.Embedding, mesh: DeviceMesh, tokens_BT: Tensor) -> Tensor:
        assert isinstance(module.weight, DTensor)
        rows_VD = module.weight.to_local()
        row_BT = tokens_BT - self._rows * mesh.get_local_rank()
        mine_BT = (row_BT >= 0) & (row_BT < len(rows_VD))
        x_BTD = embedding(row_BT.clamp(0, len(rows_VD) - 1), rows_VD) * mine_BT.unsqueeze(-1)
        return (
            DTensor.from_local(x_BTD, mesh, [Partial()], run_check=False)
            .redistribute(placements=[self._outputs])
            .to_local()
        )


class _SharedHeads(ParallelStyle):
    """Keys or values of fewer heads than ranks: every rank computes all of them and keeps the one of its queries.

    Each rank's gradient is that of its own head; DTensor sums them.
    """

    def __init__(self, config: DecoderConfig) -> None:
        self._heads, self._head_dim = config.kv_heads, config.head_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        first = device_mesh.get_local_rank() * self._heads // device_mesh.size() * self._head_dim

        def place_inputs(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> tuple[DTensor, ...]:
            x = inputs[0]
            return (x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()], run_check=False),)

        def own_head(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            return output.to_local(grad_placements=[Partial()])[..., first : first + self._head_dim]

        return distribute_module(module, device_mesh, _replicate, place_inputs, own_head)  # type: ignore[arg-type]


class _Replicated(ParallelStyle):
    """A module with the same weights on every rank that computes on distributed tensors, so that DTensor sums its
    gradients where ranks see different positions.
    """

    def __init__(self, inputs: Placement, outputs: Placement) -> None:
        self._inputs, self._outputs = inputs, outputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def place_inputs(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> tuple[DTensor, ...]:
            return (DTensor.from_local(inputs[0], mesh, [self._inputs], run_check=False),)

        def local_output(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            return output.redistribute(placements=[self._outputs]).to_local()

        return distribute_module(module, device_mesh, _replicate, place_inputs, local_output)  # type: ignore[arg-type]


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in module.named_parameters(recurse=False):
        module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Replicate()])))


def _cut_output(part: Decoder, mesh: DeviceMesh, between: Placement) -> None:
    """Each rank has some rows of the vocabulary; the loss is computed from them without ever gathering logits."""
    if part.output is None:
        return
    rows, vocabulary = _rows_per_rank(part, mesh), part.config.vocabulary
    part.output.loss = ChunkedCrossEntropy(mesh.get_group(), rows)

    def gather_positions(x_BTD: Tensor) -> Tensor:
        # The loss gives the same gradient to every rank, which is what `to_local` takes it for.
        return (
            DTensor.from_local(x_BTD, mesh, [between], run_check=False)
            .redistribute(placements=[Replicate()])
            .to_local()
        )

    def gather_logits(logits: Tensor) -> Tensor:
        logits = pad(logits, (0, rows - logits.shape[-1])).contiguous()
        pieces = [torch.empty_like(logits) for _ in range(mesh.size())]
        dist.all_gather(pieces, logits, group=mesh.get_group())
        return torch.cat(pieces, dim=-1)[..., :vocabulary]

    part.output.gather_positions = gather_positions
    part.output.gather_logits = gather_logits


def apply_context_parallel(part: Decoder, group: dist.ProcessGroup, *, first_position: int) -> None:
    """Let a decoder, or a part of one, see whole sequences of which this rank has the positions from the first on."""
    part.first_position, part.context_shards = first_position, dist.get_world_size(group)
    for module in part.modules():
        if isinstance(module, Attention):
            module.exchange = _Ulysses(group)


class _Ulysses:
    """Each rank has a range of the positions, and during attention a part of the heads (Jacobs et al. 2023).

    An all-to-all turns [B, T / c, N, H] into [B, T, N / c, H], attention runs over the whole sequence with the kernel
    of the device, and another turns its output back. Every rank has the same work for any mask. Each exchange moves
    (c - 1) / c of what a rank has. The degree is bounded by the query heads that a rank has.
    """

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


def apply_expert_parallel(part: Decoder, mesh: DeviceMesh, capacity: float | None = None) -> None:
    """Spread the experts of a decoder, or of a part of one, over the ranks of a one-dimensional mesh.

    `capacity` is `Layout.expert_capacity`; None has room for every token.
    """
    for module in part.modules():
        if not isinstance(module, Experts):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))
        group = mesh.get_group()
        module.dispatch = _Dispatch(group) if capacity is None else PaddedDispatch(group, capacity)


def balance_sequences(part: Decoder, mesh: Mesh) -> None:
    """Experts are balanced over whole sequences, of which this rank has a part of the positions."""
    group = mesh.sequence_group
    for module in part.modules():
        if isinstance(module, MixtureOfExperts):
            module.balance.sum_over_sequence = functools.partial(all_reduce, group=group)
            module.balance.shards = mesh.layout.tp if mesh.layout.sequence_parallel else 1


class _Dispatch:
    """Tokens travel to the rank of their expert and back: two all-to-alls per layer and direction (GShard, Lepikhin et
    al. 2020), of as many tokens as the router wants: no capacity, no padding, no token dropped.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)

    def __call__(self, compute: Callable[[Tensor, Tensor], Tensor], x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of this rank's tokens, in the order in which they came."""
        sent = counts_E.view(self._ranks, -1)  # [rank, expert of that rank]
        received = all_to_all_single(sent, None, None, self._group)
        # An all-to-all takes the sizes from the host: the one wait of a layer, for both of its directions.
        to, of = torch.stack((sent, received)).sum(2).tolist()
        x_RD = self._exchange(x_RD, of, to)
        # They come by sender; the products want them by expert.
        experts = torch.arange(received.shape[1], device=x_RD.device).repeat(self._ranks)
        order = experts.repeat_interleave(received.flatten(), output_size=sum(of)).argsort(stable=True)
        out_RD = compute(x_RD[order], received.sum(0))
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return self._exchange(out_RD[back], to, of)

    def _exchange(self, x: Tensor, output_splits: list[int] | None, input_splits: list[int] | None) -> Tensor:
        return all_to_all_single_autograd(x.contiguous(), output_splits, input_splits, self._group)


class PaddedDispatch(_Dispatch):
    """The same with sizes that are known before: every rank sends as many rows to each other one, filled up with zeros.

        room = ceil(capacity * R / ranks), at most R

    rows go from this rank to each other one. Of a rank that is sent more, each expert gets an equal share of its own
    rows, its first ones; the others are left out, so that their outputs are zero (Switch, Fedus et al. 2021, section
    2.2). Without gradients, as in evaluation, every row has room. `dropped` of `routed` rows were left out.
    """

    def __init__(self, group: dist.ProcessGroup, capacity: float) -> None:
        super().__init__(group)
        self._capacity = capacity
        self.dropped, self.routed = torch.zeros(()), 0

    def __call__(self, compute: Callable[[Tensor, Tensor], Tensor], x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of this rank's tokens, in the order in which they came."""
        if not torch.is_grad_enabled():
            return super().__call__(compute, x_RD, counts_E)
        rows, ranks = len(x_RD), self._ranks
        room = min(rows, math.ceil(self._capacity * rows / ranks))
        counts = counts_E.view(ranks, -1)  # [rank, expert of that rank]
        sent = counts * room // counts.sum(1, keepdim=True).clamp(min=room)
        self.routed, self.dropped = self.routed + rows, self.dropped.to(x_RD.device) + (rows - sent.sum())
        received = all_to_all_single(sent, None, None, self._group)
        slot_R = _slots(counts_E, sent, rows, room)
        filled = x_RD.new_zeros(ranks * room + 1, x_RD.shape[1]).index_copy(0, slot_R, x_RD)
        arrived = self._exchange(filled[:-1], None, None)
        places = torch.arange(room, device=x_RD.device).repeat(ranks, 1)
        expert = torch.searchsorted(received.cumsum(1), places, right=True)  # zeros have one that this rank lacks
        order = expert.flatten().argsort(stable=True)
        is_row = torch.arange(len(order), device=order.device) < received.sum()
        # Products leave what belongs to no expert as the memory was.
        out = torch.where(is_row.unsqueeze(1), compute(arrived[order], received.sum(0)), 0.0)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return pad(self._exchange(out[back], None, None), (0, 0, 0, 1))[slot_R]


def _slots(counts_E: Tensor, sent: Tensor, rows: int, room: int) -> Tensor:
    """Where each of `rows` goes among the slots of all ranks, `room` each; those left out share one behind the last."""
    row_R = torch.arange(rows, device=sent.device)
    ends_E = counts_E.cumsum(0)
    expert_R = torch.searchsorted(ends_E, row_R, right=True)
    place_R = row_R - (ends_E - counts_E)[expert_R]
    first = torch.arange(len(sent), device=sent.device).unsqueeze(1) * room + sent.cumsum(1) - sent
    return torch.where(place_R < sent.flatten()[expert_R], first.flatten()[expert_R] + place_R, len(sent) * room)
