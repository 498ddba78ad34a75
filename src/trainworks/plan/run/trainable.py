"""Layouts and precisions that the worker can train in; others are refused with a reason and an alternative.

Each rule on layouts is written once, for many: a search drops those that it refuses, a written layout gets its words.
Some of these PyTorch accepts and computes wrongly without an error; a comment marks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainworks.config.layout import (
    ANY_LAYOUT,
    NEEDS_RECOMPUTATION,
    ModelSupport,
    ResolvedLayout,
    divisors,
    next_multiple,
    one_of,
)
from trainworks.config.run_file import Workload
from trainworks.config.source import Source
from trainworks.errors import LayoutError, MissingExtraError, UsageError
from trainworks.plan.degrees import layouts_of
from trainworks.plan.layouts import Compression, Layouts, Recompute
from trainworks.record.environment import HostFacts
from trainworks.record.model_shape import ModelShape

_Mask = NDArray[np.bool_]
_Words = Callable[[ResolvedLayout], tuple[str, str]]
"""Message and hint for a layout that a rule refuses."""
_Rule = tuple[str, _Mask, _Words]
"""Field at fault, the layouts that the rule refuses, its words."""


def trainable(layouts: Layouts, workload: Workload, shape: ModelShape, support: ModelSupport = ANY_LAYOUT) -> _Mask:
    """True where the worker can train with a layout that fits the world size and the batch; shape [n]."""
    refused: _Mask = (layouts.zero == 0) & (layouts.cp > 1)  # context parallelism always shards
    refused |= (layouts.dp_shard * layouts.cp * layouts.tp) % layouts.ep != 0
    for _, mask, _ in _rules(layouts, workload, shape, support):
        refused |= mask
    return ~refused


def check_trainable(
    layout: ResolvedLayout, workload: Workload, shape: ModelShape, support: ModelSupport = ANY_LAYOUT
) -> None:
    """Check a layout that fits the world size and the batch against the model, and what the worker can do with it.

    Raises:
        LayoutError: the first thing that is wrong.
    """
    layouts = layouts_of([layout])
    _check_written(layout, shape)
    for field, mask, words in _rules(layouts, workload, shape, support):
        if mask.any():
            message, hint = words(layout)
            raise LayoutError(message, field=field, hint=hint)


def check_cut(layout: ResolvedLayout, workload: Workload, support: ModelSupport) -> None:
    """Check a layout of a causal model that has no formula, of which its number of layers is known.

    Raises:
        LayoutError: the first thing that is wrong.
    """
    layouts, shape = layouts_of([layout]), ModelShape.of_size(0).model_copy(update={"layers": support.layers})
    _check_written(layout, shape)
    rules = (rule(layouts, workload, shape) for rule in (_options, _optimizer, _pipeline, _fine_tuning))
    for field, mask, words in (*_support(layouts, support), *(each for those in rules for each in those)):
        if mask.any():
            message, hint = words(layout)
            raise LayoutError(message, field=field, hint=hint)


def _check_written(layout: ResolvedLayout, shape: ModelShape) -> None:
    """Check what only a written layout has: stages of given lengths."""
    if layout.stage_layers is None:
        return
    if layout.pp == 1:
        text = "stage_layers are those of pipeline stages, and pp is 1"
        raise LayoutError(text, field="stage_layers", hint="set `pp`, or leave it out")
    stages = layout.pp * layout.interleave
    if len(layout.stage_layers) != stages or sum(layout.stage_layers) != shape.layers:
        given = f"stage_layers names {len(layout.stage_layers)} stages with {sum(layout.stage_layers)} layers"
        text = f"{given}; there are {stages} with {shape.layers}"
        raise LayoutError(text, field="stage_layers", hint="leave it out for an even cut")


def _options(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    plain = (layouts.dp > 1) & (layouts.dp_shard * layouts.cp * layouts.tp * layouts.pp == 1)
    yield (
        "gradient_compression",
        (layouts.gradient_compression > Compression.NONE) & ~(plain & (layouts.offload_optimizer == 0)),
        lambda one: (
            f"gradient_compression ({one.gradient_compression}) is for plain replicas, which DDP keeps equal",
            "leave it out, or set `dp_replicate` alone",
        ),
    )
    for name, axis, text in (
        ("sequence_parallel", "tp", "sequence_parallel splits over tp, and tp is 1"),
        ("zero_bubble", "pp", "zero_bubble is a pipeline schedule, and pp is 1"),
        ("interleave", "pp", "interleave cuts pipeline stages into chunks, and pp is 1"),
    ):
        alone = (getattr(layouts, name) > (name == "interleave")) & (getattr(layouts, axis) == 1)
        yield name, alone, lambda one, text=text, axis=axis: (text, f"set `{axis}`, or leave it out")  # type: ignore[misc]
    if workload.precision == "fp8":
        text = "fp8 scales whole matrices, and {} cuts them: ranks would round by scales of their own"
        yield from _uncut(layouts, ("tp",), text, "set `dp_shard` instead, or train in bf16")
    sharded = (layouts.zero == 3) & (layouts.dp_shard * layouts.cp > 1)
    yield (
        "fp8_all_gather",
        (layouts.fp8_all_gather > 0) & (~sharded | (workload.precision != "fp8") | (layouts.offload_optimizer > 0)),
        lambda one: (
            "fp8_all_gather sends shards as they are multiplied: it needs `precision: fp8` and shards with `zero: 3` "
            "on the accelerator",
            "set `dp_shard` and `precision: fp8` without `offload_optimizer`, or leave it out",
        ),
    )
    yield (
        "offload_activations",
        (layouts.recompute == Recompute.SELECTIVE) & (layouts.offload > 0),
        lambda one: (
            "offload_activations moves what recompute: selective keeps only where the recomputation begins",
            "set `recompute: none` or `recompute: full`",
        ),
    )
    yield (
        "recompute_layers",
        (layouts.recompute_layers > 0) & ((layouts.recompute == Recompute.NONE) | (layouts.offload > 0)),
        lambda one: (NEEDS_RECOMPUTATION, "set `recompute: full`, or leave it out"),
    )


def _optimizer(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    if workload.optimizer.name == "adamw-8bit":
        text = "`optimizer.name: adamw-8bit` scales whole rows, and {} cuts them"
        yield from _uncut(layouts, ("tp",), text, "use `dp_shard`, or another optimizer")


def compiled_in_tests(layouts: Layouts) -> _Mask:
    """True for replicas, shards and tensor parallelism: layouts under which tests compile blocks; shape [n]."""
    mask: _Mask = (layouts.recompute == Recompute.NONE) & (layouts.offload + layouts.offload_optimizer == 0)
    mask &= layouts.pp * layouts.cp * layouts.ep == 1
    return mask


def _uncut(layouts: Layouts, axes: Sequence[str], text: str, hint: str) -> Iterator[_Rule]:
    """Refuse to cut over these axes; the text names the axis and its degree at `{}`."""
    for axis in axes:
        yield (
            axis,
            getattr(layouts, axis) > 1,
            lambda one, axis=axis: (text.format(f"{axis} ({getattr(one, axis)})"), hint),  # type: ignore[misc]
        )


def _tensor(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    widths = {"heads": shape.heads}
    widths |= {} if shape.experts else {"columns of the MLP": shape.feed_forward}
    for name, width in widths.items():
        yield "tp", width % layouts.tp != 0, _uneven(name, width)
    heads = shape.kv_heads
    yield "tp", (heads % layouts.tp != 0) & (layouts.tp % heads != 0), _uneven("key/value heads", heads)
    rows = -(-shape.vocabulary // layouts.tp)
    yield (
        "tp",
        rows * (layouts.tp - 1) >= shape.vocabulary,
        lambda one: (
            f"tp ({one.tp}) leaves a rank without any of the {shape.vocabulary} vocabulary entries",
            "lower `tp`",
        ),
    )
    shards = layouts.dp_shard * layouts.cp
    yield (  # rows that tp cuts unevenly are sharded by columns
        "dp_shard",
        (shape.vocabulary % layouts.tp != 0) & (shape.hidden % shards != 0),
        lambda one: (
            f"{one.dp_shard * one.cp} shards do not divide the {shape.hidden} columns of a vocabulary of "
            f"{shape.vocabulary} entries, which tp ({one.tp}) does not divide",
            f"set `dp_shard` to {one_of(divisors(shape.hidden)[:6])}",
        ),
    )
    length, cut = workload.data.sequence_length, layouts.tp > 1
    split = layouts.sequence_parallel > 0
    yield (
        "tp",
        cut & split & (length // layouts.cp % layouts.tp != 0),
        lambda one: (
            f"tp ({one.tp}) does not divide the {length // one.cp} positions that a rank has",
            f"set `data.sequence_length: {next_multiple(length // one.cp, one.tp) * one.cp}`",
        ),
    )
    # Every rank would route, or drop, the same positions in its own way, and their copies would part.
    what = "experts" if shape.experts else "dropout"
    yield (
        "sequence_parallel",
        cut & ~split & bool(shape.experts or workload.model.dropout),
        lambda one: (
            f"{what} over tp need sequence_parallel, so that each rank has positions of its own",
            "leave it out, or set `sequence_parallel: true`",
        ),
    )


def _uneven(name: str, width: int) -> _Words:
    def words(one: ResolvedLayout) -> tuple[str, str]:
        return f"tp ({one.tp}) does not divide the {width} {name}", f"set `tp` to {one_of(divisors(width)[:6])}"

    return words


def _context(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    length, heads = workload.data.sequence_length, shape.heads
    yield (
        "cp",
        length % layouts.cp != 0,
        lambda one: (
            f"cp ({one.cp}) does not divide the {length} positions of a sequence",
            f"set `data.sequence_length: {next_multiple(length, one.cp)}`",
        ),
    )
    yield (
        "cp",
        heads // layouts.tp % layouts.cp != 0,
        lambda one: (
            f"cp ({one.cp}) does not divide the {heads // one.tp} heads that a rank has",
            f"set `cp` to {one_of(divisors(gcd(heads // one.tp, length)))}",
        ),
    )


def _pipeline(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    cut, chunked, bubbleless = layouts.pp > 1, layouts.interleave > 1, layouts.zero_bubble > 0
    yield (
        "pp",
        cut & (layouts.pp * layouts.interleave > shape.layers),
        lambda one: (
            f"{one.pp * one.interleave} pipeline stages are more than the {shape.layers} layers",
            f"at most {shape.layers} stages",
        ),
    )
    yield (
        "pp",
        cut & ((layouts.accum < layouts.pp) | (chunked & (layouts.accum % layouts.pp != 0))),
        lambda one: (
            f"a pipeline of {one.pp} stages needs {'a multiple of' if one.interleave > 1 else 'at least'} {one.pp} "
            f"micro-batches per step, there are {one.grad_accum_steps}",
            "lower `micro_batch`, or raise `global_batch`",
        ),
    )
    # Its backward in two halves finds the weights gone: gradients are missing or wrong, without an error.
    yield (
        "zero",
        bubbleless & (layouts.zero == 3) & (layouts.dp_shard * layouts.cp * (layouts.tp if shape.experts else 1) > 1),
        lambda one: (
            "zero_bubble computes backward in two halves, and zero: 3 takes the weights away after the first",
            "set `zero: 2`",
        ),
    )
    yield (
        "zero_bubble",
        bubbleless & (workload.compile is True),
        lambda one: ("zero_bubble cannot split the backward of compiled blocks", "set `compile: false`"),
    )
    yield (
        "recompute",
        bubbleless & (layouts.recompute != Recompute.NONE),
        lambda one: (
            f"zero_bubble would compute forward twice again with recompute: {one.recompute}, once per half",
            "set `recompute: none`",
        ),
    )


def _experts(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    spread = layouts.ep > 1
    yield (
        "ep",
        spread & (shape.experts == 0),
        lambda one: (f"ep ({one.ep}) spreads experts, and this model has none", "leave it out"),
    )
    yield (
        "expert_capacity",
        ~spread & (layouts.expert_capacity > 0),
        lambda one: (
            "expert_capacity sizes the exchange between ranks of ep, and ep is 1",
            "set `ep`, or leave it out",
        ),
    )
    yield (
        "ep",
        spread & (shape.experts % layouts.ep != 0),
        lambda one: (
            f"ep ({one.ep}) does not divide the {shape.experts} experts",
            f"set `ep` to {one_of(divisors(shape.experts)[:6])}",
        ),
    )


def _fine_tuning(layouts: Layouts, workload: Workload, shape: ModelShape) -> Iterator[_Rule]:
    if not workload.is_fine_tuned:
        return
    adapter, hint = workload.adapter, "use `dp_shard` or `tp` to spread the model, `dp_replicate` to copy it"
    preference = workload.preference
    what = "an adapter" if preference is None else "a model that trains on preferences (`preference`)"
    axes = ("cp", "ep") if preference is None else ("pp", "cp", "ep")
    yield from _uncut(layouts, axes, f"{what} is not cut over {{}}", hint)
    yield (
        "micro_batch",
        (layouts.micro_batch == 1) & (preference is not None and preference.method == "kto"),
        lambda one: (
            "KTO joins each prompt with another answer of its micro-batch, and micro_batch is 1",
            "set `micro_batch: 2` or more",
        ),
    )
    if adapter and adapter.base == "nf4":
        yield from _uncut(layouts, ("tp",), "blocks of 4-bit weights are not cut over {}", "set `adapter.base: bf16`")
    if adapter and adapter.dropout:
        text = "each rank of {} would drop other inputs of the adapters"
        yield from _uncut(layouts, ("tp",), text, "set `adapter.dropout: 0`")


def _support(layouts: Layouts, support: ModelSupport) -> Iterator[_Rule]:
    """See `ModelSupport.check`, for many layouts."""
    for axis in support.uncut:
        yield axis, getattr(layouts, axis) > 1, lambda one, axis=axis: support.uncut_words(axis)  # type: ignore[misc]
    is_split = layouts.sequence_parallel > 0
    yield (
        "sequence_parallel",
        is_split & (not support.splits_sequence),
        lambda one: (
            f"`{support.model_type}` is trained as `transformers` computes it: ranks of tp share all positions",
            "leave `sequence_parallel` out",
        ),
    )
    shared = (layouts.tp > 1) & ~is_split
    yield "sequence_parallel", shared & bool(support.dropout), lambda one: support.dropout_words


def _rules(layouts: Layouts, workload: Workload, shape: ModelShape, support: ModelSupport) -> Iterator[_Rule]:
    yield from _support(layouts, support)
    for rules in (_options, _optimizer, _tensor, _context, _pipeline, _experts, _fine_tuning):
        yield from rules(layouts, workload, shape)


_NEEDS = {"tf32": ((8, 0), "Ampere"), "fp8": ((8, 9), "Ada or Hopper")}
"""Least compute capability whose tensor cores have the format (NVIDIA, CUDA C++ Programming Guide, "Compute
Capabilities"), and what it is called."""


def default_precision(host: HostFacts, device: str) -> Literal["bf16", "fp32"]:
    """bf16, or fp32 on a processor that only emulates it."""
    return "bf16" if device != "cpu" or "bf16" in host.processor_formats else "fp32"


def check_precision(precision: str, host: HostFacts, source: Source | None) -> None:
    """Refuse a precision that the accelerators here have no arithmetic for.

    Raises:
        UsageError: with the run file's line.
        MissingExtraError: fp8 without torchao.
    """
    text = _problem(precision, host)
    if text is not None:
        place = source.place(("workload", "precision")) if source else None
        raise UsageError(text, place=place, hint=f"train in {'fp32' if precision == 'tf32' else 'bf16'}")
    if precision == "fp8" and "torchao" not in host.packages:
        raise MissingExtraError("torchao", "fp8")


def _problem(precision: str, host: HostFacts) -> str | None:
    if precision == "fp4":
        return "precision fp4 can be planned, not trained, by this version"
    if precision not in _NEEDS:
        return None
    (major, minor), name = _NEEDS[precision]
    what = (
        f"precision {precision} is arithmetic of NVIDIA tensor cores from compute capability {major}.{minor} ({name})"
    )
    if not host.accelerators:
        return f"{what}, and this machine has no accelerator"
    weakest = min(host.accelerators, key=lambda facts: facts.compute_capability or (0, 0))
    if (weakest.compute_capability or (0, 0)) >= (major, minor):
        return None
    has = ".".join(map(str, weakest.compute_capability)) if weakest.compute_capability else "an unknown one"
    return f"{what}; accelerator {weakest.index} ({weakest.name}) has {has}"
