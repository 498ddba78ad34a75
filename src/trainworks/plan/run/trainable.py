"""Layouts the worker can train a model with; others are refused with a reason and an alternative.

Some of these PyTorch accepts and computes wrongly without an error; a comment marks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from trainworks.config.layout import ResolvedLayout, divisors, next_multiple, one_of
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError
from trainworks.record.model_shape import ModelShape

_Refusal = tuple[str, str, str]
"""Field, message, hint."""


def check_trainable(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> None:
    """Check a layout that fits the world size and the batch against the model.

    Raises:
        LayoutError: the first thing that is wrong.
    """
    for rules in (_options, _tensor, _context, _pipeline, _experts):
        for field, message, hint in rules(layout, workload, shape):
            raise LayoutError(message, field=field, hint=hint)


def _options(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> Iterator[_Refusal]:
    if layout.sequence_parallel and layout.tp == 1:
        yield "sequence_parallel", "sequence_parallel splits over tp, and tp is 1", "set `tp`, or leave it out"
    if workload.precision == "fp8" and layout.tp > 1:
        text = f"fp8 scales whole matrices, and tp ({layout.tp}) cuts them: ranks would round by scales of their own"
        yield "tp", text, "set `dp_shard` instead, or train in bf16"
    if layout.interleave > 1 and layout.pp == 1:
        yield "interleave", "interleave cuts pipeline stages into chunks, and pp is 1", "set `pp`, or leave it out"
    if layout.zero_bubble and layout.pp == 1:
        yield "zero_bubble", "zero_bubble is a pipeline schedule, and pp is 1", "set `pp`, or leave it out"
    if layout.stage_layers is not None and layout.pp == 1:
        yield "stage_layers", "stage_layers are those of pipeline stages, and pp is 1", "set `pp`, or leave it out"
    alone = layout.dp_replicate > 1 and layout.dp_shard * layout.cp * layout.tp * layout.pp == 1
    if layout.gradient_compression != "none" and (not alone or layout.offload_optimizer):
        text = f"gradient_compression ({layout.gradient_compression}) is for plain replicas, which DDP keeps equal"
        yield "gradient_compression", text, "leave it out, or set `dp_replicate` alone"
    if layout.recompute == "selective" and layout.offload_activations:
        yield (
            "offload_activations",
            "offload_activations moves what recompute: selective keeps only where the recomputation begins",
            "set `recompute: none` or `recompute: full`",
        )


def _tensor(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> Iterator[_Refusal]:
    if layout.tp == 1:
        return
    widths = {"heads": shape.heads, "key/value heads": shape.kv_heads, "vocabulary entries": shape.vocabulary}
    widths |= {} if shape.experts else {"columns of the MLP": shape.feed_forward}
    for name, width in widths.items():
        if width % layout.tp:
            yield "tp", f"tp ({layout.tp}) does not divide the {width} {name}", _among(width, workload, name, layout.tp)
    positions = workload.data.sequence_length // layout.cp
    if layout.sequence_parallel and positions % layout.tp:
        text = f"tp ({layout.tp}) does not divide the {positions} positions that a rank has"
        yield "tp", text, f"set `data.sequence_length: {next_multiple(positions, layout.tp) * layout.cp}`"
    if not layout.sequence_parallel and (shape.experts or workload.model.dropout):
        # Every rank would route, or drop, the same positions in its own way, and their copies would part.
        what = "experts" if shape.experts else "dropout"
        text = f"{what} over tp need sequence_parallel, so that each rank has positions of its own"
        yield "sequence_parallel", text, "leave it out, or set `sequence_parallel: true`"


def _among(width: int, workload: Workload, name: str, tp: int) -> str:
    if name == "vocabulary entries" and workload.model.hf is None:
        return f"set `data.vocabulary: {next_multiple(width, tp)}`"
    return f"set `tp` to {one_of(divisors(width)[:6])}"


def _context(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> Iterator[_Refusal]:
    if layout.cp == 1:
        return
    length, heads = workload.data.sequence_length, shape.heads // layout.tp
    if length % layout.cp:
        text = f"cp ({layout.cp}) does not divide the {length} positions of a sequence"
        yield "cp", text, f"set `data.sequence_length: {next_multiple(length, layout.cp)}`"
    if heads % layout.cp:
        text = f"cp ({layout.cp}) does not divide the {heads} heads that a rank has"
        yield "cp", text, f"set `cp` to {one_of(divisors(gcd(heads, length)))}"


def _pipeline(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> Iterator[_Refusal]:
    if layout.pp == 1:
        return
    stages, micro_batches = layout.pp * layout.interleave, layout.grad_accum_steps
    if stages > shape.layers:
        yield (
            "pp",
            f"{stages} pipeline stages are more than the {shape.layers} layers",
            f"at most {shape.layers} stages",
        )
    if layout.stage_layers and (len(layout.stage_layers) != stages or sum(layout.stage_layers) != shape.layers):
        given = f"stage_layers names {len(layout.stage_layers)} stages with {sum(layout.stage_layers)} layers"
        yield "stage_layers", f"{given}; there are {stages} with {shape.layers}", "leave it out for an even cut"
    if micro_batches < layout.pp or (layout.interleave > 1 and micro_batches % layout.pp):
        need = "a multiple of" if layout.interleave > 1 else "at least"
        text = f"a pipeline of {layout.pp} stages needs {need} {layout.pp} micro-batches per step, there are"
        yield "pp", f"{text} {micro_batches}", "lower `micro_batch`, or raise `global_batch`"
    if layout.zero_bubble and layout.zero == 3 and layout.dp_shard * layout.cp > 1:
        # Its backward in two halves finds the weights gone: gradients are missing or wrong, without an error.
        text = "zero_bubble computes backward in two halves, and zero: 3 takes the weights away after the first"
        yield "zero", text, "set `zero: 2`"
    if layout.zero_bubble and workload.compile:
        yield "zero_bubble", "zero_bubble cannot split the backward of compiled blocks", "set `compile: false`"
    if layout.zero_bubble and layout.recompute != "none":
        text = f"zero_bubble would compute forward twice again with recompute: {layout.recompute}, once per half"
        yield "recompute", text, "set `recompute: none`"


def _experts(layout: ResolvedLayout, workload: Workload, shape: ModelShape) -> Iterator[_Refusal]:
    if layout.ep == 1:
        return
    if not shape.experts:
        yield "ep", f"ep ({layout.ep}) spreads experts, and this model has none", "leave it out"
    elif shape.experts % layout.ep:
        text = f"ep ({layout.ep}) does not divide the {shape.experts} experts"
        yield "ep", text, f"set `ep` to {one_of(divisors(shape.experts)[:6])}"
