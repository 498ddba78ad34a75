"""A layout as a person writes it, for a described cluster: what it decides, and why nothing has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from trainworks.config.layout import (
    NEEDS_RECOMPUTATION,
    Layout,
    check_micro_batch,
    check_written,
    divisors,
    next_multiple,
    one_of,
)
from trainworks.config.limits import above_limit
from trainworks.errors import LayoutError, UsageError, suggest
from trainworks.plan.degrees import fixed_of
from trainworks.plan.job import AnyJob
from trainworks.plan.layouts import Compression, Recompute
from trainworks.plan.parameters import chunk_counts
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.software import LARGEST_INTERLEAVE, Software
from trainworks.plan.space import NEVER_SEARCHED, Fixed, recomputations

_NUMBER = re.compile(r"[0-9]{1,30}")
_FIELDS = {"offload": "offload_activations", "dp": "dp_shard"}
"""Fields of the search that a run file calls otherwise."""
_SWITCHES = ("sequence_parallel", "zero_bubble", "offload", "offload_optimizer")


def parse_layout(text: str) -> Layout:
    """`tp=8,pp=4,recompute=full`; what is not named stays open.

    Raises:
        UsageError: a name that no layout has or that is given twice, or a value that it cannot have.
    """
    pairs = [pair.partition("=")[::2] for pair in text.replace(" ", "").split(",") if pair]
    named = dict(pairs)
    if len(named) < len(pairs):
        twice = next(name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1)
        raise UsageError(f"`{text}` gives `{twice}` twice", hint=f"keep one `{twice}=`")
    if unknown := sorted(named.keys() - Layout.model_fields.keys()):
        known = f"there are {', '.join(Layout.model_fields)}"
        raise UsageError(
            f"no layout has `{unknown[0]}`", hint=suggest(unknown[0], Layout.model_fields, otherwise=known)
        )
    try:
        return Layout.model_validate({name: int(v) if _NUMBER.fullmatch(v) else v for name, v in named.items()})
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] == "less_than_equal" and (problem := above_limit(str(detail["loc"][0]), detail["input"])):
            raise UsageError(problem, hint="check the number of digits") from None
        raise UsageError(f"{detail['loc'][0]} `{detail['input']}`: {detail['msg'].lower()}") from None


def as_option(layout: Layout) -> str:
    """A planned layout as `--layout` and `--explain` take it; `parse_layout` of it leaves nothing open."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in as_fields(layout).items())


def as_fields(layout: Layout) -> dict[str, Any]:
    """A planned layout as `layout:` of a run file has it: nothing that matters is left open."""
    axes = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
    named: dict[str, Any] = {name: getattr(layout, name) for name in axes if getattr(layout, name) > 1}
    if layout.expert_capacity is not None:
        named["expert_capacity"] = layout.expert_capacity
    if layout.zero != "auto":
        named["zero"] = layout.zero
    named["micro_batch"] = layout.micro_batch
    if layout.tp > 1:
        named["sequence_parallel"] = layout.sequence_parallel
    if layout.pp > 1:
        named |= {"interleave": layout.interleave, "zero_bubble": layout.zero_bubble}
    named["recompute"] = layout.recompute
    if layout.recompute_layers != "auto":
        named["recompute_layers"] = layout.recompute_layers
    if layout.gradient_compression != "none":
        named["gradient_compression"] = layout.gradient_compression
    if layout.gradient_compression == "powersgd":
        named["powersgd_rank"] = layout.powersgd_rank
    return named | {
        name: True
        for name in ("offload_activations", "offload_optimizer", "fp8_all_gather")
        if getattr(layout, name) is True
    }


def fixed_by(layout: Layout) -> dict[str, int]:
    """What the written fields of a layout decide, in the fields of the search; the rest stays open.

    `dp_shard` alone leaves the replicas open; `dp_replicate` alone is plain data parallelism.
    """
    named = {name for name in layout.model_fields_set if getattr(layout, name) != "auto"}
    fixed = fixed_of(layout) | ({} if layout.zero == "auto" else {"zero": layout.zero})
    searched = {"offload_activations": "offload", "dp_replicate": "dp"}
    chosen = {searched.get(name, name) for name in named}
    if "dp_shard" in named:
        chosen |= {"zero"} | ({"dp"} if "dp_replicate" in named else set())
    elif "dp_replicate" in named:
        chosen |= {"zero", "dp_shard"}
    if "gradient_compression" in named:
        chosen.add("powersgd_rank")
    return {name: value for name, value in fixed.items() if name in chosen}


def check_against(layout: Layout, *, world_size: int, global_batch: int) -> dict[str, int]:
    """What a written layout decides on so many accelerators.

    Where its degrees multiply to the accelerators, those that it leaves out are 1.

    Raises:
        LayoutError: it does not fit the accelerators or the batch.
    """
    closed = check_written(layout, world_size=world_size, global_batch=global_batch)
    fixed = fixed_by(layout)
    if not closed:
        return fixed
    degrees = ("dp", "dp_shard", "zero", "tp", "pp", "cp")
    whole = {name: value for name, value in fixed_of(layout).items() if name in degrees}
    return whole | {name: value for name, value in fixed.items() if name not in degrees}


def fixed_at(fixed: Fixed, world_size: int) -> dict[str, int] | None:
    """The same decisions on another number of accelerators, which data parallelism follows; None where it cannot.

    A group that shares all of `dp` still does; a group with replicas keeps its size; their number changes.
    """
    inner = fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("cp", 1)
    if world_size % inner:
        return None
    if fixed.get("dp") == 1:
        return {name: value for name, value in fixed.items() if name not in ("dp", "dp_shard", "zero")}
    rest = {name: value for name, value in fixed.items() if name != "dp"}
    if "dp" not in fixed or fixed["dp_shard"] == 1:
        return rest
    dp = world_size // inner
    if fixed["dp"] != fixed["dp_shard"]:
        return rest if dp % fixed["dp_shard"] == 0 else None
    return rest | ({"dp": dp, "dp_shard": dp} if dp > 1 else {"dp": 1, "dp_shard": 1, "zero": 0})


def roomier_batch(world_size: int, global_batch: int) -> int | None:
    """The next batch that data parallelism can share well; None where this one is.

    A batch is badly shared where an odd factor of the accelerators, or more than half of what the smaller of the two
    would allow, is left to the other kinds of parallelism.

    >>> roomier_batch(24, 64), roomier_batch(32, 60), roomier_batch(256, 64)
    (72, 64, None)
    """
    odd = world_size // (world_size & -world_size)
    shared = int(np.gcd(world_size, global_batch))
    if global_batch % odd == 0 and 2 * shared >= min(world_size, global_batch):
        return None
    shares = [share for share in divisors(world_size) if share % odd == 0 and global_batch % share]
    near = [share for share in shares if 4 * share <= global_batch]
    return next_multiple(global_batch, near[-1] if near else shares[0])


def why_nothing(job: AnyJob, fixed: Fixed, rejected: Sequence[str], *, global_batch: int) -> LayoutError:
    """The error of a search that found no layout to price, with the decision to change; `rejected` are its reasons."""
    world_size = job.cluster.num_accelerators
    for blamed in (*_check_compression(fixed), *_check_mesh(job, fixed, global_batch), *_check_options(job, fixed)):
        return blamed
    degrees = {name: fixed[name] for name in ("tp", "pp", "cp") if name in fixed}
    inner = int(np.prod(list(degrees.values()) or [1]))
    if "micro_batch" in fixed and ("dp" in fixed or len(degrees) == 3):
        try:
            check_micro_batch(fixed["micro_batch"], global_batch // fixed.get("dp", world_size // inner))
        except LayoutError as error:
            return error
    written = ", ".join(f"{name} {value}" for name, value in fixed.items() if name not in NEVER_SEARCHED)
    reasons = "".join(f"\n  {reason}" for reason in rejected)
    batch = roomier_batch(world_size, global_batch)
    hint = (
        f"set `global_batch: {batch}`"
        if batch and any(reason.startswith("dp does not") for reason in rejected)
        else "degrees multiply to the accelerators, `micro_batch` divides a rank's share of the batch, "
        "`interleave` the layers of a stage"
    )
    has = f" has {written}" if written else " divides the batch and the model"
    return LayoutError(f"no layout of {world_size} accelerators{has}{reasons}", field="", hint=hint)


def _check_mesh(job: AnyJob, fixed: Fixed, global_batch: int) -> Iterator[LayoutError]:
    world_size = job.cluster.num_accelerators
    whole = divisors(world_size)
    if isinstance(job.shape, ConvNetShape):
        for name in ("tp", "pp", "cp"):
            if fixed.get(name, 1) > 1:
                yield _blame(name, fixed, "cannot split a convolutional network: only data parallelism can", "1")
        legal: Mapping[str, tuple[list[int], str]] = {}
    else:
        legal = _legal(job, whole)
    for name, (values, text) in legal.items():
        if fixed.get(name, 1) not in values:
            yield LayoutError(f"{name} ({fixed[name]}) {text}", field=name, hint=f"set `{name}` to {one_of(values)}")
    if not {"tp", "pp", "cp"} <= fixed.keys():
        return
    dp = world_size // (fixed["tp"] * fixed["pp"] * fixed["cp"])
    if dp and global_batch % dp:
        hint = f"set `global_batch: {next_multiple(global_batch, dp)}`"
        yield LayoutError(f"dp ({dp}) does not divide {global_batch} sequences", field="tp", hint=hint)


def _check_compression(fixed: Fixed) -> Iterator[LayoutError]:
    if fixed.get("gradient_compression") == Compression.POWERSGD:
        cut = [f"{name} {fixed[name]}" for name in ("tp", "pp", "cp", "zero") if fixed.get(name, 0) > (name != "zero")]
        if cut:
            text = f"gradient_compression (powersgd) is for plain replicas, and the layout has {', '.join(cut)}"
            yield LayoutError(text, field="gradient_compression", hint="set `dp_replicate` alone, or `bf16`")


def _legal(job: AnyJob, whole: list[int]) -> dict[str, tuple[list[int], str]]:
    """What the model allows of each degree, and what to say of any other."""
    assert not isinstance(job.shape, ConvNetShape)
    shape, length = job.shape, job.sequence_length
    widths = [width for width in (shape.heads, shape.feed_forward) if width]
    mlp = f" and {shape.feed_forward} columns of the MLP" if shape.feed_forward else ""
    is_cut, pieces = shape.causal or shape.diffusion is not None, 2 if shape.causal else 1
    contexts = [cp for cp in whole if cp == 1 or (is_cut and length % (pieces * cp) == 0)]
    chunks = " into pairs of chunks" if shape.causal else ""
    not_causal = "" if is_cut else "; context parallelism is for causal attention and diffusion transformers"
    return {
        "tp": (
            [tp for tp in whole if not any(width % tp for width in widths)],
            f"does not divide {shape.heads} heads{mlp}",
        ),
        "pp": ([pp for pp in whole if pp <= shape.layers], f"is more stages than the {shape.layers} layers"),
        "cp": (contexts, f"does not divide {length} tokens{chunks}{not_causal}"),
        "ep": (
            divisors(int(np.gcd(shape.experts, whole[-1]))) if shape.experts else [1],
            f"does not divide {shape.experts} experts and the accelerators" if shape.experts else "needs experts",
        ),
    }


def _check_options(job: AnyJob, fixed: Fixed) -> Iterator[LayoutError]:
    if fixed.get("micro_batch", 1) > (largest := job.largest_micro_batch):
        yield _blame("micro_batch", fixed, f"is more than {largest}, the largest that is searched", "less")
    yield from _check_recomputation(job, fixed)
    yield from _check_program(job.software, fixed)
    alone = [name for name in ("interleave", "zero_bubble") if fixed.get(name, 0) > (name == "interleave")]
    if len(alone) == 2:
        yield _blame("interleave", fixed, "excludes zero_bubble, which is a plain schedule", "1")
    if alone and fixed.get("pp") == 1:
        yield _blame(alone[0], fixed, "needs a pipeline, and pp is 1", "auto")
    if fixed.get("sequence_parallel") and fixed.get("tp") == 1:
        yield _blame("sequence_parallel", fixed, "splits over the ranks of tp, which is 1", "auto")
    if fixed.get("interleave", 1) > 1 and not isinstance(job.shape, ConvNetShape):
        yield from _check_chunks(job.shape.layers, fixed, divisors(job.cluster.num_accelerators))


def _check_recomputation(job: AnyJob, fixed: Fixed) -> Iterator[LayoutError]:
    if fixed.get("recompute") == Recompute.SELECTIVE and Recompute.SELECTIVE not in recomputations(job):
        why = "saves nothing: fused attention keeps no scores"
        if not job.software.sequence_parallel:
            why = f"is later than {job.software.name}"
        yield LayoutError(f"recompute (selective) {why}", field="recompute", hint="set `recompute` to none or full")
    if fixed.get("recompute_layers") and (fixed.get("recompute") == Recompute.NONE or fixed.get("offload")):
        yield LayoutError(NEEDS_RECOMPUTATION, field="recompute_layers", hint="set `recompute: full`, or leave it out")


def _check_program(software: Software, fixed: Fixed) -> Iterator[LayoutError]:
    most = software.limits(fixed.get("pp", 1))
    if not most["zero"]:
        most["dp_shard"] = 1
    for name, limit in most.items():
        if fixed.get(name, limit) > limit:
            where = " in a pipeline" if fixed.get("pp", 1) > 1 else ""
            instead = "false" if name in _SWITCHES else str(limit)
            yield _blame(name, fixed, f"does not work with {software.name}{where}", instead)


def _check_chunks(layers: int, fixed: Fixed, whole: list[int]) -> Iterator[LayoutError]:
    chunks, stages = fixed["interleave"], [fixed["pp"]] if "pp" in fixed else whole
    possible = {size for pp in stages if pp > 1 for size in chunk_counts(layers, pp, layers)}
    if chunks in possible:
        return
    sizes = sorted(size for size in possible | {1} if size <= LARGEST_INTERLEAVE)
    of = f"the {layers // stages[0]} of a stage" if possible and "pp" in fixed else f"any stage of {layers} layers"
    yield _blame("interleave", fixed, f"does not divide {of}", one_of(sizes))


def _blame(name: str, fixed: Fixed, text: str, instead: str) -> LayoutError:
    field = _FIELDS.get(name, name)
    value = str(bool(fixed[name])).lower() if name in _SWITCHES else fixed[name]
    return LayoutError(f"{field} ({value}) {text}", field=field, hint=f"set `{field}` to {instead}")
