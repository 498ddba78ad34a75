"""The parallel layout and the checks of its degrees.

    dp_replicate * dp_shard * cp * tp * pp = world_size
    micro_batch * grad_accum_steps * dp_replicate * dp_shard = global_batch

`ep` reuses ranks: it divides `dp_shard * cp * tp` and does not enter the product.
A missing degree is 1 on this machine, and open on a described cluster (`check_written`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from trainworks.config.limits import LIMITS, up_to
from trainworks.config.spec import Spec
from trainworks.errors import LayoutError

MESH_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
"""Axes whose degrees multiply to the world size."""
Degree = up_to("accelerators", default=1)
NEEDS_RECOMPUTATION = (
    "recompute_layers counts layers that recompute, and the others keep their activations on the device"
)
"""Message for a layout without recomputation, or whose activations wait in the host's memory."""
Compression = Literal["none", "bf16", "fp16", "powersgd"]


class Layout(Spec):
    """Degrees of parallelism and options that the run file fixes.

    On this machine a missing degree is 1. On a described cluster it is open, like an option that is `auto`: `{tp: 8}`
    selects the best of all layouts with that degree.
    """

    dp_replicate: int = Degree
    """Copies of the whole model (DDP, or the outer axis of HSDP); without `dp_shard` plain data parallelism."""
    dp_shard: int = Degree
    """Ranks that share one copy of parameters, gradients and optimizer state (FSDP2)."""
    cp: int = Degree
    """Context parallel degree."""
    tp: int = Degree
    """Tensor parallel degree."""
    pp: int = Degree
    """Pipeline parallel degree."""
    ep: int = Degree
    """Expert parallel degree; divides dp_shard * cp * tp."""
    expert_capacity: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Copies of tokens for which each rank of `ep` has room, by those that it gets if all experts are used alike: sizes
    are then fixed, and no step waits to learn them. What finds no room is left out and counted. By default every copy
    has room, and each layer with experts waits once for the sizes."""
    micro_batch: Annotated[int, up_to("micro_batch")] | Literal["auto"] = "auto"
    """Sequences of one rank in one forward and backward pass."""
    zero: Literal[1, 2, 3, "auto"] = "auto"
    """State sharded over `dp_shard`: 1 optimizer state, 2 also gradients, 3 also weights (FSDP)."""
    sequence_parallel: bool | Literal["auto"] = "auto"
    """Split norms and residuals over `tp` too."""
    interleave: Annotated[int, up_to("interleave")] | Literal["auto"] = "auto"
    """Model chunks of each pipeline stage; 1 is plain 1F1B."""
    zero_bubble: bool | Literal["auto"] = "auto"
    """Let weight gradients fill the pipeline's idle time (ZB-H1)."""
    recompute: Literal["none", "selective", "full", "auto"] = "auto"
    """Activations that the backward pass recomputes: none, those of the attention between its projections, or all."""
    recompute_layers: Annotated[int, up_to("layers")] | Literal["auto"] = "auto"
    """With `recompute`, how many layers of each rank recompute, the first ones; the others keep all activations. By
    default all layers, and no more than memory asks for where a search decides `recompute`."""
    offload_activations: bool | Literal["auto"] = "auto"
    """Keep activations in host memory until their backward pass."""
    offload_optimizer: bool | Literal["auto"] = "auto"
    """Keep optimizer states in host memory."""
    gradient_compression: Compression = "none"
    """Format of gradients between replicas: fp32, rounded to 16 bits, or the low-rank factors of PowerSGD with error
    feedback (Vogels et al. 2019)."""
    fp8_all_gather: bool = False
    """With `precision: fp8`, let shards of the blocks' weights travel in 8 bits, not in 16 (torchao)."""
    powersgd_rank: Annotated[int, Field(ge=1)] = 4
    """Rank of the PowerSGD factors."""
    powersgd_warmup: Annotated[int, Field(ge=2)] = 100
    """Steps with uncompressed gradients after a start and after every resume."""
    stage_layers: (
        Annotated[tuple[Annotated[int, up_to("layers")], ...], Field(max_length=LIMITS["layers"].most)] | None
    ) = None
    """Layers of each pipeline stage, first to last; by default evenly divided, with the shorter stages at both ends."""
    selection: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share by which the best of many layouts is expected to take longer than predicted; a plan adds it to the step.
    `trainworks size` writes it with the layout that it chose; a layout of your own has none."""


class ResolvedLayout(Spec):
    """A decided layout, which fits the world size and the batch; nothing in it is automatic."""

    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    pp: int
    ep: int
    micro_batch: int
    grad_accum_steps: int
    expert_capacity: float | None = None
    zero: Literal[0, 1, 2, 3] = 3
    """State sharded over `dp_shard` and `cp`; 0 where their ranks share nothing, as some programs do over `cp`."""
    sequence_parallel: bool = False
    interleave: int = 1
    zero_bubble: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_layers: int = 0
    """Layers of each rank that recompute, the first ones; 0 for all."""
    offload_activations: bool = False
    offload_optimizer: bool = False
    gradient_compression: Compression = "none"
    fp8_all_gather: bool = False
    powersgd_rank: int = 4
    powersgd_warmup: int = 100
    bucket_mib: int = 25
    """Bucket size of the gradient all-reduce, chosen by the plan."""
    stage_layers: tuple[int, ...] | None = None

    @property
    def dp(self) -> int:
        """Number of ranks with different data."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """Product of the mesh axes."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def recomputed_words(self) -> str:
        """` of 3 layers` where a rank does not recompute all of them; else empty."""
        return f" of {self.recompute_layers} layer{'s' * (self.recompute_layers > 1)}" if self.recompute_layers else ""

    def describe(self) -> str:
        """One line without what is off: `dp_shard 32, zero 1, tp 8, pp 4, interleave 2, micro-batch 1`."""
        shared = self.dp_shard * self.cp > 1
        chosen = {
            f"dp_replicate {self.dp_replicate}": self.dp_replicate > 1,
            f"dp_shard {self.dp_shard}": self.dp_shard > 1,
            f"zero {self.zero}": self.zero > 0 and shared,
            f"cp {self.cp}": self.cp > 1,
            f"tp {self.tp}": self.tp > 1,
            "sequence-parallel": self.tp > 1 and self.sequence_parallel,
            f"ep {self.ep}": self.ep > 1,
            f"expert capacity {self.expert_capacity or 0:g}": self.expert_capacity is not None,
            f"pp {self.pp}": self.pp > 1,
            f"interleave {self.interleave}": self.interleave > 1,
            "zero bubble": self.zero_bubble,
            f"micro-batch {self.micro_batch}": True,
            f"recompute {self.recompute}{self.recomputed_words}": self.recompute != "none",
            "offload activations": self.offload_activations,
            "offload optimizer": self.offload_optimizer,
            "fp8 all-gather": self.fp8_all_gather,
            f"{self.gradient_compression} gradients": self.gradient_compression != "none",
        }
        return ", ".join(text for text, is_chosen in chosen.items() if is_chosen)


class ModelSupport(Spec):
    """Layouts that the worker can train a model under; by default all that the model's dimensions allow."""

    model_type: str = ""
    uncut: dict[str, str] = Field(default_factory=dict)
    """Axes over which its layers cannot be cut, and the reason for each."""
    layers: int = 0
    """Layers that a pipeline can cut between."""
    dropout: float = 0.0
    """Largest rate at which the model drops something."""
    balance_loss: float = 0.0
    """Weight of the loss that keeps all experts in use."""

    @property
    def splits_sequence(self) -> bool:
        """Whether ranks of tp have positions of their own between the layers: in the worker's decoder alone."""
        return not self.uncut

    def uncut_words(self, axis: str) -> tuple[str, str]:
        """Message and hint for a layout that cuts the model over one of `uncut`."""
        ways = " or ".join(f"`{each}`" for each in ("dp_shard", "tp", "pp") if each not in self.uncut)
        text = f"`{self.model_type}` cannot be cut over {axis}: {self.uncut[axis]}"
        return text, f"use {ways} to spread the model"

    @property
    def dropout_words(self) -> tuple[str, str]:
        """Message and hint for dropout over tp without sequence_parallel."""
        return (
            f"the model has dropout ({self.dropout:g}): without sequence_parallel, each rank of tp would drop other "
            "values of activations that all ranks share",
            "leave it out, or set `sequence_parallel: true`",
        )

    def check(self, layout: ResolvedLayout | Layout) -> None:
        """Check a layout; an option that is still open will be chosen to suit the model.

        Raises:
            LayoutError: it cuts what cannot be cut.
        """
        for axis in self.uncut:
            if getattr(layout, axis) > 1:
                text, hint = self.uncut_words(axis)
                raise LayoutError(text, field=axis, hint=hint)
        if self.dropout and layout.tp > 1 and layout.sequence_parallel is False:
            text, hint = self.dropout_words
            raise LayoutError(text, field="sequence_parallel", hint=hint)


ANY_LAYOUT: Final[ModelSupport] = ModelSupport()
"""Support of a model that the worker can train under every layout that its dimensions allow."""


def resolve_layout(
    layout: Layout, *, world_size: int, global_batch: int, micro_batch: int, support: ModelSupport = ANY_LAYOUT
) -> ResolvedLayout:
    """Check a layout against the world and the batch.

    Args:
        layout: the degrees.
        world_size: ranks that will be started.
        global_batch: sequences per optimizer step.
        micro_batch: sequences per forward of one rank; must divide global_batch / dp.
        support: of the model by the worker.

    Raises:
        LayoutError: naming every factor, the limit and the degree to change.
    """
    check_layout(layout, world_size=world_size, global_batch=global_batch)
    per_rank = global_batch // (layout.dp_replicate * layout.dp_shard)
    check_micro_batch(micro_batch, per_rank)
    degrees = {axis: getattr(layout, axis) for axis in (*MESH_AXES, "ep")}
    automatic: list[tuple[str, Any]] = [
        ("zero", 2 if layout.zero_bubble is True else 3),  # zero bubble needs unsharded weights
        ("sequence_parallel", layout.tp > 1 and support.splits_sequence),
        ("interleave", 1),
        ("zero_bubble", False),
        ("recompute", "none"),
        ("recompute_layers", 0),
        ("offload_activations", False),
        ("offload_optimizer", False),
    ]
    return ResolvedLayout(
        **degrees,
        micro_batch=micro_batch,
        grad_accum_steps=per_rank // micro_batch,
        expert_capacity=layout.expert_capacity,
        stage_layers=layout.stage_layers,
        gradient_compression=layout.gradient_compression,
        fp8_all_gather=layout.fp8_all_gather,
        powersgd_rank=layout.powersgd_rank,
        powersgd_warmup=layout.powersgd_warmup,
        **{name: value if (set_ := getattr(layout, name)) == "auto" else set_ for name, value in automatic},
    )


def stage_layers(layout: ResolvedLayout, num_layers: int) -> list[range]:
    """The layers of each of the pp * interleave stages.

    The stages in the middle get the remainder, because the first also has the embedding and the last the output.

    >>> four = resolve_layout(Layout(pp=4), world_size=4, global_batch=4, micro_batch=1)
    >>> stage_layers(four, 6)
    [range(0, 1), range(1, 3), range(3, 5), range(5, 6)]
    """
    count = layout.pp * layout.interleave
    sizes = list(layout.stage_layers or ())
    if not sizes:
        fewest, longer = divmod(num_layers, count)
        start = (count - longer) // 2
        sizes = [fewest + (start <= index < start + longer) for index in range(count)]
    ends = list(itertools.accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def check_micro_batch(micro_batch: int, sequences: int, *, whose: str = "that each data-parallel rank gets") -> None:
    """Check that a micro-batch divides its sequences.

    Raises:
        LayoutError: it does not; the hint names all that do.
    """
    if sequences % micro_batch:
        raise LayoutError(
            f"micro_batch ({micro_batch}) does not divide the {sequences} sequences {whose}",
            field="micro_batch",
            hint=f"set `micro_batch` to {one_of(divisors(sequences))}",
        )


def check_written(layout: Layout, *, world_size: int, global_batch: int) -> bool:
    """Check a layout with open degrees; returns whether its given degrees leave none of them open.

    They leave none open if they multiply to the world size. If data, tensor and pipeline parallelism are all given, or
    the given degrees do not divide the world size, they must do so, as in `check_layout`.

    Raises:
        LayoutError: naming every factor, the limit and the degree to change.
    """
    written = layout.model_fields_set
    _check_divisors(layout, world_size)
    product = math.prod(getattr(layout, name) for name in MESH_AXES)
    dp = layout.dp_replicate * layout.dp_shard
    complete = {"tp", "pp"} <= written and not written.isdisjoint(("dp_replicate", "dp_shard"))
    closed = complete or product == world_size or world_size % product != 0
    if closed:
        check_layout(layout, world_size=world_size, global_batch=global_batch)
    else:
        _check_batch(layout, global_batch)
    if layout.zero != "auto" and layout.dp_replicate > 1 and layout.dp_shard * layout.cp == 1:
        raise LayoutError(
            f"zero ({layout.zero}) shares among the ranks of dp_shard, and dp_replicate ({dp}) has one of them each",
            field="zero",
            hint=f"set `dp_shard: {dp}` instead of `dp_replicate`",
        )
    if layout.micro_batch != "auto":
        whose = {} if closed or dp > 1 else {"whose": "of a step"}
        check_micro_batch(layout.micro_batch, global_batch // dp, **whose)
    return closed


def check_layout(layout: Layout, *, world_size: int, global_batch: int) -> None:
    """Check the degrees of a layout, without its micro-batch.

    Raises:
        LayoutError: naming every factor, the limit and the degree to change.
    """
    _check_world(layout, world_size)
    shard_group = layout.dp_shard * layout.cp * layout.tp
    if shard_group % layout.ep:
        raise LayoutError(f"ep ({layout.ep}) does not divide dp_shard * cp * tp = {shard_group}", field="ep")
    _check_batch(layout, global_batch)


def divisors(number: int) -> list[int]:
    """Divisors in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def one_of(values: Sequence[int]) -> str:
    """The choice between numbers, in words.

    >>> one_of([1, 2, 4]), one_of([1])
    ('one of 1, 2, 4', '1')
    """
    return f"{'one of ' if len(values) > 1 else ''}{', '.join(map(str, values))}"


def _check_divisors(layout: Layout, world_size: int) -> None:
    """Check the degrees that no choice of data parallelism can make fit the world size."""
    left, seen = world_size, ""
    for name in ("cp", "tp", "pp"):
        degree = getattr(layout, name)
        if left % degree and (world_size % degree or layout.model_fields_set.isdisjoint(("dp_replicate", "dp_shard"))):
            possible = world_size if world_size % degree else left
            of = "accelerators" if possible == world_size else f"of {world_size} accelerators that {seen} leave"
            raise LayoutError(
                f"{name} ({degree}) does not divide {'the ' if possible != world_size else ''}{possible} {of}",
                field=name,
                hint=f"set `{name}` to {one_of(divisors(possible))}",
            )
        left = left // degree if left % degree == 0 else left
        seen += f"{' and ' if seen else ''}{name} ({degree})" if degree > 1 else ""


def _check_batch(layout: Layout, global_batch: int) -> None:
    dp = layout.dp_replicate * layout.dp_shard
    if global_batch % dp:
        raise LayoutError(
            f"global_batch ({global_batch}) is not a multiple of dp_replicate * dp_shard = {dp}",
            field=_axis_to_blame({"dp_replicate": layout.dp_replicate, "dp_shard": layout.dp_shard}),
            hint=f"set `global_batch: {next_multiple(global_batch, dp)}`",
        )


def _check_world(layout: Layout, world_size: int) -> None:
    axes = {name: getattr(layout, name) for name in MESH_AXES}
    product = math.prod(axes.values())
    if product == world_size:
        return
    axis = _axis_to_blame(axes)
    others = product // axes[axis]
    hint = f"start {next_multiple(world_size, others)} processes, a multiple of {others}"
    if world_size % others == 0:
        hint = f"set `{axis}: {world_size // others}`"
    factors = " * ".join(f"{name} ({degree})" for name, degree in axes.items())
    raise LayoutError(f"{factors} = {product}, world size is {world_size}", field=axis, hint=hint)


def _axis_to_blame(axes: dict[str, int]) -> str:
    return next((name for name in ("dp_shard", "dp_replicate") if axes[name] > 1), "dp_replicate")


def next_multiple(value: int, factor: int) -> int:
    """The smallest multiple of `factor` that is at least `value`."""
    return -(-value // factor) * factor
