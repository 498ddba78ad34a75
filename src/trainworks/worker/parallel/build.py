"""Build the part of a model that this rank trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from trainworks.config.finetune import Adapter
from trainworks.config.layout import ResolvedLayout, stage_layers
from trainworks.worker.loss import spread_nonfinite, weighted
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.adapters import adapt, freeze
from trainworks.worker.models.decoder import Decoder, DecoderConfig
from trainworks.worker.models.experts import Experts, MixtureOfExperts
from trainworks.worker.parallel import data_parallel, model_parallel
from trainworks.worker.parallel.blocks import measure_scales, offload_activations, recompute, use_float8
from trainworks.worker.timing import Timeline, all_reduce, note_waits

if TYPE_CHECKING:
    from trainworks.worker.parallel.pipeline import PipelineRun


@contextmanager
def _seen_from(parts: Sequence[nn.Module], first_position: int) -> Iterator[None]:
    """Temporarily set the first position of context-parallel parts."""
    decoders = [part for part in parts if isinstance(part, Decoder)]
    before = [part.first_position for part in decoders]
    for part in decoders:
        part.first_position = first_position
    try:
        yield
    finally:
        for part, position in zip(decoders, before, strict=True):
            part.first_position = position


FirstWeights = Callable[[Sequence[Decoder]], None]
"""Fills the parameters of this rank's parts."""
Objective = Callable[[nn.Module, Any, Any], Tensor]
"""Model, inputs and labels of a micro-batch to its loss, or to [2]: its loss and the number of right predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Mesh, device and precision that a model is prepared for."""

    mesh: Mesh
    device: torch.device
    precision: str
    """Precision of forward and backward; weights, gradients and optimizer state stay in fp32."""
    compiled: bool
    """Compile each block."""
    timeline: Timeline
    """Records how long this rank waits for others."""
    progress: Callable[[], None] = lambda: None
    """Called for each parameter that gets its first values, which takes minutes for a large model."""


class Parallel:
    """Model parts of this rank, wrapped for the layout; computes gradients over all ranks.

    `parts` are the model, or this rank's pipeline stages, which `pipeline` runs and which then compute the loss; a
    checkpoint holds their state.
    """

    def __init__(self, parts: list[nn.Module], setup: Setup, pipeline: PipelineRun | None = None) -> None:
        self.objective: Objective = lambda module, x, labels: module(x, labels)  # the model computes its loss itself
        self.parts = parts
        self.mesh = setup.mesh
        self._pipeline = pipeline
        self._device = setup.device
        self._timeline = setup.timeline
        sharded = isinstance(parts[0], FSDPModule)
        self._autocast_dtype = None if sharded else data_parallel.DTYPES.get(setup.precision)
        self._module = parts[0]
        self._balances = [
            module.balance for part in parts for module in part.modules() if isinstance(module, MixtureOfExperts)
        ]
        self._accuracy: Tensor | None = None
        """Share of right predictions of this rank's last step, detached; None where the objective counts none."""
        self._padded = [
            module.dispatch
            for part in parts
            for module in part.modules()
            if isinstance(module, Experts) and isinstance(module.dispatch, model_parallel.PaddedDispatch)
        ]
        self._last_gradient: data_parallel.LastGradient | None = None
        layout = setup.mesh.layout
        if layout.tp * layout.cp * layout.ep * layout.pp > 1:
            note_waits(setup.timeline, pipelined=layout.pp > 1)
        if sharded and setup.device.type == "cpu":
            for part in parts:
                data_parallel.note_collectives(part, setup.timeline)
        if not sharded and layout.dp_replicate > 1 and any(each.requires_grad for each in parts[0].parameters()):
            self._last_gradient = data_parallel.LastGradient(parts[0], setup.timeline)
            self._module = data_parallel.replicate(parts[0], setup.device, layout)

    def gradients(self, x: Any, labels: Any, *, scale: Tensor | float, weights: Tensor | None = None) -> Tensor:
        """Forward and backward of one step; gradients are summed over the ranks, as a mean over data-parallel ranks.

        Args:
            x: inputs of the model, a tensor or several, each [accumulation, micro_batch, ...].
            labels: the same of what the loss compares with.
            scale: factor of each micro-batch's loss before backward.
            weights: of each micro-batch's loss [accumulation], see `loss_weights`; None weighs all alike.

        Returns:
            Mean of the weighted losses of this rank's micro-batches, detached, on the device; 0 on ranks without the
            last stage.
        """
        self._measure_scales()
        for balance in self._balances:
            balance.scale = scale
        if self._pipeline is not None:
            loss = self._pipeline.gradients(_joined(x), _joined(labels), scale, weights)
            if (tied := tied_embedding(self.parts)) is not None and tied.grad is not None:
                # The first and the last stage both have the matrix, each with its own part of the gradient.
                gradient = tied.grad.to_local() if hasattr(tied.grad, "to_local") else tied.grad
                all_reduce(gradient, self.mesh.embedding_group)
            return torch.zeros((), device=self._device) if loss is None else loss
        accum = len(labels)
        found = [
            self._micro_batch(
                _row(x, index),
                _row(labels, index),
                scale,
                weight=None if weights is None else weights[index],
                last=index == accum - 1,
            )
            for index in range(accum)
        ]
        losses, right = zip(*found, strict=True)
        if right[0] is not None:
            self._accuracy = torch.stack(right).sum() / labels.numel()
        return losses[0] if accum == 1 else torch.stack(losses).mean()

    def _micro_batch(
        self, x: Any, labels: Any, scale: Tensor | float, *, weight: Tensor | None, last: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Loss, and right predictions where the objective counts them."""
        with self._synchronised(last=last):
            with self._autocast():
                loss, *right = self.objective(self._module, x, labels).view(-1)
                loss = weighted(loss, weight)
            spread_nonfinite(loss, scale).backward()
        if last and self._last_gradient is not None:
            self._timeline.waited_since(self._last_gradient.mark)
        return loss.detach(), right[0].detach() if right else None

    @torch.no_grad()
    def evaluate(self, x: Any, labels: Any, objective: Objective | None = None) -> Tensor:
        """Losses of micro-batches without training on them; the model has to be in its evaluation mode.

        Args:
            x: inputs of the model, each [accumulation, micro_batch, ...].
            labels: the same of what the loss compares with.
            objective: computed instead of the loss, on a model without pipelines; its values are returned.

        Returns:
            For each micro-batch its mean loss, and the number of right predictions where the model counts them
            [accumulation, 1 or 2]; zeros on ranks without the last stage.
        """
        accum = len(labels)
        self._measure_scales()
        if self._pipeline is None:
            rows = []
            for index in range(accum):
                with self._autocast():
                    values = (objective or self.objective)(self.parts[0], _row(x, index), _row(labels, index))
                    rows.append(values.view(-1).float())
            return torch.stack(rows)
        losses = self._pipeline.evaluate(_joined(x), _joined(labels))
        return torch.zeros(accum, 1, device=self._device) if losses is None else losses.view(accum, 1)

    def leave_evaluation(self) -> None:
        """Give back what evaluation has gathered: the next forward gathers the weights anew, as after any step."""
        for part in self.parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    @property
    def has_loss(self) -> bool:
        """Whether this rank has the last stage, which computes the loss."""
        return self._pipeline is None or self._pipeline.has_last

    @property
    def warm_up_micro_batches(self) -> int:
        """Micro-batches of the smallest step: one, or as many as the pipeline's schedule is made for."""
        return 1 if self._pipeline is None else self.mesh.layout.grad_accum_steps

    def take_figures(self) -> dict[str, Tensor]:
        """Further figures of this rank's last step: the accuracy where the objective counts it, and the overflow, the
        share of the copies of tokens that experts of a known capacity have left out since the last call.
        """
        figures = {} if self._accuracy is None else {"accuracy": self._accuracy}
        if self.mesh.layout.expert_capacity is None:
            return figures
        routed = sum(each.routed for each in self._padded)
        share = sum((each.dropped for each in self._padded), torch.zeros((), device=self._device)) / max(1, routed)
        for each in self._padded:
            each.routed, each.dropped = 0, torch.zeros_like(each.dropped)
        return figures | {"overflow": share}

    def settle(self) -> None:
        """To be called once after a first step whose gradients were thrown away."""
        self.take_figures()
        if self._last_gradient is not None:
            self._last_gradient.keep_only_last()

    @torch.no_grad()
    def next_token_logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits [B, V] of the token that follows, on every rank; all ranks call it together."""
        layout, length = self.mesh.layout, tokens_BT.shape[1]
        self._measure_scales()
        padded_BT = pad(tokens_BT, (0, -length % (layout.tp * layout.cp)))
        stretch = padded_BT.shape[1] // layout.cp
        first = self.mesh.cp_rank * stretch
        mine_BT = padded_BT[:, first : first + stretch]
        with _seen_from(self.parts, first), self._autocast():
            forward = self.parts[0] if self._pipeline is None else self._pipeline.forward
            logits_BV: Tensor = forward(mine_BT, at=(length - 1) % stretch)
        if layout.cp > 1:
            dist.broadcast(logits_BV, group=self.mesh.cp_group, group_src=(length - 1) // stretch)
        return logits_BV

    def _measure_scales(self) -> None:
        if self.mesh.layout.fp8_all_gather:
            measure_scales(self.parts)

    def _autocast(self) -> AbstractContextManager[object]:
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast_dtype)

    def _synchronised(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients go to other ranks when they must, and no sooner.

        With ZeRO-1 and with replicas that is once per step; with ZeRO-2 and 3 they go to their shards after every
        micro-batch, because kept whole they would need as much as no shards at all. Weights that stay after forward
        stay until the last backward.
        """
        root = self.parts[0]
        if isinstance(root, FSDPModule):
            zero = self.mesh.layout.zero
            root.set_requires_gradient_sync(last or zero > 1)
            root.set_requires_all_reduce(last)
            if zero < 3:
                root.set_reshard_after_backward(last)
        elif not last and isinstance(self._module, DistributedDataParallel):
            return self._module.no_sync()
        return nullcontext()


def _row(values: Any, index: int) -> Any:
    return tree_map(lambda each: each[index], values)


def _joined(values: Any) -> Any:
    """All micro-batches in one dimension."""
    return tree_map(lambda each: each.flatten(0, 1), values)


def tied_embedding(parts: Sequence[nn.Module]) -> Tensor | None:
    """The copy of a tied embedding that another pipeline rank has, too; None if there is none."""
    weights = (getattr(part, "shared_weight", None) for part in parts)
    return next((weight for weight in weights if weight is not None), None)


def distribute_decoder(
    config: DecoderConfig,
    setup: Setup,
    *,
    positions: int,
    first_weights: FirstWeights,
    adapter: Adapter | None = None,
    frozen: torch.dtype | None = None,
) -> Parallel:
    """A decoder for any layout. Built without storage, cut, and only then filled: no rank ever holds all of a model
    that is sharded, but for weights in 4 bits.

    Sequences have `positions`. An `adapter` is trained beside the weights, which are then frozen; `frozen` is the type
    in which weights are kept that do not train. Both are None to train the weights, which `first_weights` fills.
    """
    mesh = setup.mesh
    of_rank = stages_of_rank(mesh.layout, mesh.pp_rank, config.layers)
    with torch.device("meta"):
        stages = {
            index: Decoder(config, layers, first=first, last=last) for index, (layers, first, last) in of_rank.items()
        }
    parts = list(stages.values())
    for at, part in enumerate(parts):
        cut = functools.partial(_cut, part, mesh, positions)
        if adapter is not None:
            adapt(part, part.blocks, adapter, precision=setup.precision, cut=cut)
        elif frozen is not None:
            freeze(part, frozen, cut)
        else:
            cut()
        _prepare_blocks(part.blocks, setup, parts[:at])
        part.compiled, part.selective = setup.compiled, mesh.layout.recompute == "selective"
        if setup.compiled and setup.device.type != "cpu" and part.output is not None:
            part.output.compile_loss()
        if _is_sharded(setup, experts=config.experts):
            data_parallel.shard(part, part.blocks, mesh, precision=setup.precision, device=setup.device)
    for part in parts:
        part.to_empty(device=_home(setup))
    first_weights(parts)
    split = mesh.layout.tp if mesh.layout.sequence_parallel else 1
    stretch = positions // mesh.layout.cp
    sizes = {"hidden": config.hidden, "vocabulary": config.vocabulary, "split": split}
    pipeline = _pipeline(stages, setup, stretch, **sizes) if mesh.layout.pp > 1 else None
    return Parallel(list(parts), setup, pipeline)


def distribute_stages(
    stages: Mapping[int, nn.Module], setup: Setup, *, positions: int, hidden: int, vocabulary: int
) -> Parallel:
    """Pipeline stages of this rank by their index, with their first weights, under every layout that needs no more
    surgery. Sequences have `positions`; what passes between stages has `hidden` features.
    """
    parts = list(stages.values())
    for at, part in enumerate(parts):
        _wrap(part, part.blocks, setup, parts[:at])  # type: ignore[arg-type]
    pipeline = _pipeline(stages, setup, positions, hidden=hidden, vocabulary=vocabulary, split=1)
    return Parallel(parts, setup, pipeline)


def stages_of_rank(layout: ResolvedLayout, pp_rank: int, num_layers: int) -> dict[int, tuple[range, bool, bool]]:
    """Layers of the stages that a pipeline rank has, by their index, and whether each is the first, or the last.

    With i chunks per rank, stage s is on rank s mod pp (Narayanan et al. 2021); without pipelines there is one stage.
    """
    stages = stage_layers(layout, num_layers)
    last = len(stages) - 1
    return {index: (stages[index], index == 0, index == last) for index in range(pp_rank, len(stages), layout.pp)}


def distribute_module(model: nn.Module, blocks: Sequence[nn.Module], setup: Setup) -> Parallel:
    """Any module that maps (x, labels) to its loss, under every layout that needs no surgery: replicas and shards.

    The model has its first weights, the same on every rank; each of its blocks is worth gathering on its own.
    """
    _wrap(model, blocks, setup)
    return Parallel([model], setup)


def _wrap(model: nn.Module, blocks: Sequence[nn.Module], setup: Setup, earlier: Sequence[nn.Module] = ()) -> None:
    _prepare_blocks(blocks, setup, earlier)
    model.to(_home(setup))
    if _is_sharded(setup, experts=0):
        data_parallel.check_batch_norm(model, setup.precision)
        data_parallel.shard(model, blocks, setup.mesh, precision=setup.precision, device=setup.device)


def _cut(part: Decoder, mesh: Mesh, positions: int) -> None:
    layout = mesh.layout
    if layout.tp > 1:
        model_parallel.apply_tensor_parallel(part, mesh.tp, sequence_parallel=layout.sequence_parallel)
    if layout.cp > 1:
        first = mesh.cp_rank * (positions // layout.cp)
        model_parallel.apply_context_parallel(part, mesh.cp_group, first_position=first)
    if layout.ep > 1:
        model_parallel.apply_expert_parallel(part, mesh.ep, layout.expert_capacity)
    if part.config.balance_loss and layout.cp * layout.tp > 1:
        model_parallel.balance_sequences(part, mesh)


def _prepare_blocks(blocks: Sequence[nn.Module], setup: Setup, earlier: Sequence[nn.Module]) -> None:
    layout = setup.mesh.layout
    if setup.precision == "fp8":
        use_float8(blocks, emulate=setup.device.type == "cpu", gather=layout.fp8_all_gather)
    before = sum(len(part.blocks) for part in earlier)  # type: ignore[misc, arg-type]
    recompute(blocks[: max(0, (layout.recompute_layers or before + len(blocks)) - before)], layout.recompute)
    if setup.compiled:
        for block in blocks:
            block.compile()
    if layout.offload_activations:
        offload_activations(blocks, setup.device, compiled=setup.compiled)


def _is_sharded(setup: Setup, *, experts: int) -> bool:
    """FSDP2 for everything but plain replicas. It also keeps 32-bit weights beside 16-bit ones, and sums the gradients
    of experts that several tensor-parallel ranks have.
    """
    layout = setup.mesh.layout
    if layout.offload_optimizer or layout.dp_shard * layout.cp > 1:
        return True
    cut = layout.tp * layout.pp > 1
    return cut and (
        layout.dp_replicate > 1 or setup.precision in data_parallel.DTYPES or (experts > 0 and layout.tp > 1)
    )


def _home(setup: Setup) -> torch.device:
    """Device of the parameters."""
    return torch.device("cpu") if setup.mesh.layout.offload_optimizer else setup.device


def _pipeline(
    stages: Mapping[int, nn.Module], setup: Setup, positions: int, *, hidden: int, vocabulary: int, split: int
) -> PipelineRun:
    """`positions` are those of a rank, which `split` ranks share between stages."""
    micro_batch = setup.mesh.layout.micro_batch
    from trainworks.worker.parallel.pipeline import PipelineRun  # noqa: PLC0415  # imports torch.distributed.pipelining

    return PipelineRun(
        dict(stages),
        setup.mesh,
        setup.device,
        boundary=(micro_batch, positions // split, hidden),
        tokens=(micro_batch, positions),
        vocabulary=vocabulary,
        dtype=data_parallel.DTYPES.get(setup.precision, torch.float32),
    )
