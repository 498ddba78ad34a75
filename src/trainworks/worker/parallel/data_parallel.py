"""Replicas with DDP, shards with FSDP2, what each waits for, and the running statistics of batch norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from trainworks.config.layout import ResolvedLayout
from trainworks.errors import LayoutError
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.experts import Experts
from trainworks.worker.models.torch_versions import ALL_GATHER, REDUCE_SCATTER
from trainworks.worker.timing import Mark, Timeline

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Precisions in which weights are cast for forward and backward; fp8 casts from there within its matrix products."""

_SMALLEST_UNIT = 4 << 20
"""Parameters. Each unit costs its collectives' latency and some milliseconds of Python; smaller ones are joined."""


def replicate(model: nn.Module, device: torch.device, layout: ResolvedLayout) -> DistributedDataParallel:
    """Replicas: gradients are summed during backward, and compressed if the layout requests it."""
    replicas = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=layout.bucket_mib,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )
    if layout.gradient_compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=layout.powersgd_rank,
            start_powerSGD_iter=layout.powersgd_warmup,
        )
        replicas.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif layout.gradient_compression != "none":
        dtype = DTYPES[layout.gradient_compression]
        # A lambda, because DDP reads annotations, and does not understand those that are text.
        replicas.register_comm_hook(dtype, lambda dtype, bucket: _rounded_mean(dtype, bucket))  # noqa: PLW0108
    return replicas


def _rounded_mean(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum in 16 bits of gradients that are divided before, so that it cannot overflow.

    (torch has the same, but its bf16 hook refuses gloo.)
    """
    whole = bucket.buffer()
    rounded = whole.div(dist.get_world_size()).to(dtype)
    work = dist.all_reduce(rounded, async_op=True)
    assert work is not None
    return work.get_future().then(lambda _: whole.copy_(rounded))


class LastGradient:
    """Marks the moment at which the parameter whose gradient comes last has it: what DDP still does then is exposed.

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


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], mesh: Mesh, *, precision: str, device: torch.device
) -> FSDPModule:
    """Each unit's parameters are gathered before use and its gradients reduced to shards after.

    A unit is one block, or several small ones; the rest of the model belongs to the root.
    """
    dtype, layout = DTYPES.get(precision), mesh.layout
    # A zero-bubble pipeline needs gathered weights in both halves of backward. With weights in shards it is refused;
    # where each rank has all of them, they stay.
    keeps_weights = layout.zero < 3 or (layout.zero_bubble and mesh.fsdp.size(-1) == 1)
    on_host = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    options = {
        "reshard_after_forward": not keeps_weights,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
        "offload_policy": on_host if layout.offload_optimizer else OffloadPolicy(),
    }
    for module in model.modules():
        if isinstance(module, Experts):
            _shard_experts(module, mesh, options)
    if any(_is_uneven(parameter) for parameter in model.parameters(recurse=True)):
        options["shard_placement_fn"] = lambda parameter: Shard(1) if _is_uneven(parameter) else None
    for unit in _units(blocks):
        fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh.fsdp, **options)  # type: ignore[call-overload]
    root: FSDPModule = fully_shard(model, mesh=mesh.fsdp, **options)  # type: ignore[call-overload]
    return root


def _is_uneven(parameter: Tensor) -> bool:
    """True if tensor parallelism gave ranks different numbers of rows: shards then take another dimension."""
    if not isinstance(parameter, DTensor) or not any(isinstance(each, Shard) for each in parameter.placements):
        return False
    return any(
        parameter.shape[each.dim] % parameter.device_mesh.size(axis) != 0
        for axis, each in enumerate(parameter.placements)
        if isinstance(each, Shard)
    )


def _shard_experts(experts: Experts, mesh: Mesh, options: dict[str, object]) -> None:
    """Over the ranks that have the same experts. They see every token of their group, so that their gradients are
    sums already, and are divided by the number of losses instead of the number of ranks.

    Columns are split where experts do not divide evenly; FSDP2 pads experts, not columns.
    """
    shards = mesh.expert_fsdp.size(-1)
    rows = len(experts.gate_proj) // mesh.layout.ep
    has_even_columns = all(each.shape[1] % shards == 0 for each in experts.parameters())
    dim = 1 if rows % shards != 0 and has_even_columns else 0
    fully_shard(experts, mesh=mesh.expert_fsdp, shard_placement_fn=lambda parameter: Shard(dim), **options)  # type: ignore[call-overload]
    assert isinstance(experts, FSDPModule)
    experts.set_gradient_divide_factor(mesh.layout.dp * mesh.layout.cp)
    # gloo has no scaling reduction; and with sums, FSDP2 divides twice if there is nothing to reduce.
    experts.set_force_sum_reduction_for_comms(shards > 1)


def _units(blocks: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Consecutive blocks, joined until they are worth a collective."""
    units: list[list[nn.Module]] = []
    size = _SMALLEST_UNIT
    for block in blocks:
        own = sum(parameter.numel() for parameter in block.parameters())
        if size + own > _SMALLEST_UNIT:
            units.append([])
            size = 0
        units[-1].append(block)
        size += own
    return units


def note_collectives(root: nn.Module, timeline: Timeline) -> None:
    """On a CPU every collective of FSDP2 blocks its caller: all of its time is exposed."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(_Noted(ALL_GATHER, timeline))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_Noted(REDUCE_SCATTER, timeline))  # type: ignore[arg-type]


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
