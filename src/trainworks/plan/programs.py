"""The program that trains where its name is not known: a distribution over families, years and compilers.

    P(program) = P(family | layout, precision) P(year | accelerator, precision, layout) P(compiled | family, year)

What the run file or the row says is certain. The shares are those of published runs that show as much, rounded, so
that none is zero that could be (`benchmarks/data/step_times.csv` with its labels). A job of several programs takes,
with T_h the step time under program h and w_h its share,

    F(x) = sum_h w_h / (1 + exp((log T_h - x) / s))        T = exp(x) with F(x) = 1/2

The median is not moved by a program that is unlikely and slow, as a mean would be. What lies between the tenth and the
ninetieth percentile is part of the interval. All runs of one program share it, so that measurements take it away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from trainworks.catalog.facts import Accelerator
from trainworks.config.software import (
    OFTEN_MASKED,
    USUALLY_EAGER,
    Attention,
    Family,
    family_of,
    first_year_of_model,
    year_of,
    years_of,
)
from trainworks.plan.layouts import Array, Values
from trainworks.plan.software import PRESENT, Software
from trainworks.record.model_shape import ModelShape

Programs = tuple[tuple[Software, float], ...]
"""Programs with their shares, which add up to 1."""
_SMOOTH = 0.06
"""Scale s of the logistic distribution of one program's time: programs that differ by less are one. Assumed:
as much as two programs differ on the same hardware (`uncertainty.SOFTWARE`)."""
_PRECISION, _MOST_STEPS = 1e-12, 60
"""Last step of the search for a quantile, of natural logarithms, and most steps; 10 do within a factor of ten."""
_LEAST = 0.04
"""Share below which a program is left out."""
_MOST_PLANNED = 4
"""Programs under which a search prices each layout, the likeliest: each takes half as long as all else of a layout.
Assumed: the others hold a tenth of the share at most."""
_COMPILED_SHARES = {False: 0.5, True: 0.1}
"""Compiled share of the PyTorch programs since 2024, by whether they come eager. Set to: labels of step_times.csv."""
_MASKED_SHARE = 0.5
"""Share of the programs with Hugging Face's models since 2024 whose attention gets its mask as an array, which
FlashAttention does not take: of Llama in transformers 4.38 to 4.40, of any padded batch. Assumed."""
_UNFUSED, _FIRST_FUSED = 2021, 2023
"""Years that stand for attention in several kernels, and for the first fused one (`software._FUSED_SINCE`)."""
_DIFFUSED, _FILMED = 2023, 2024
"""First years of diffusion transformers, and of those of videos. Source: Peebles and Xie, arXiv:2212.09748, of December
2022; OpenAI, "Video generation models as world simulators", February 2024."""
_NAMES: dict[Family, str] = {"megatron": "Megatron-LM", "torch": "PyTorch", "jax": "JAX", "paddle": "PaddlePaddle"}
_ALIKE = {"fp4": "fp8", "fp8": "fp8", "fp16": "fp16"}
"""Precisions that say most about a program; any other one is as bf16."""
_FAMILIES: dict[tuple[str, str], dict[Family, float]] = {
    ("fp8", "split"): {"megatron": 0.9, "torch": 0.1},
    ("fp8", "sharded"): {"jax": 0.4, "torch": 0.3, "megatron": 0.3},
    ("fp8", "replicated"): {"megatron": 0.9, "torch": 0.1},
    ("fp16", "split"): {"megatron": 0.7, "paddle": 0.2, "torch": 0.1},
    ("fp16", "sharded"): {"megatron": 0.5, "torch": 0.3, "paddle": 0.2},
    ("fp16", "replicated"): {"megatron": 0.5, "torch": 0.3, "paddle": 0.2},
    ("bf16", "split"): {"megatron": 0.65, "torch": 0.35},
    ("bf16", "sharded"): {"torch": 0.75, "jax": 0.25},
    ("bf16", "replicated"): {"megatron": 0.5, "torch": 0.5},
}
"""Families by precision, and by whether tensor and pipeline parallelism split the model or ZeRO 3 shards it.
Set to: labels of step_times.csv, rounded."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a run shows of its program without naming it."""

    precision: str
    accelerator: Accelerator
    is_split: bool
    """Whether tensor or pipeline parallelism splits the model."""
    is_sharded: bool
    """Whether weights are sharded over the replicas (ZeRO 3, FSDP)."""
    first_year: int = 0
    last_year: int = 9999
    """What the program can be of."""
    is_usually_eager: bool = False
    """Whether the program is one of those that come eager."""
    is_often_masked: bool = False
    """Whether the program may pass the mask of the attention as an array."""
    is_of_2021: bool = False
    """Whether the run does what later programs gave up: tensor parallelism without sequence parallelism."""

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        precision: str,
        accelerator: Accelerator,
        degrees: Mapping[str, int],
        *,
        model: str = "",
        program: str = "",
        words: str = "",
    ) -> Shown:
        """What a plan or a published row shows.

        Args:
            shape: of the model. Gated MLPs and shared keys date its programs.
            precision: of the products.
            accelerator: its year dates programs too.
            degrees: fields of `Layouts` that are fixed; one that is open shows nothing.
            model: its name.
            program: its name, as far as it is said.
            words: what else is said, such as a source with its year.
        """
        tp, zero = degrees.get("tp", 1), degrees.get("zero", 0)
        first, last = years_of(words)
        of_model = first_year_of_model(model, is_gated=shape.gated_mlp, shares_keys=shape.kv_heads < shape.heads)
        if shape.diffusion is not None:
            of_model = max(of_model, _FILMED if shape.diffusion.frames > 1 else _DIFFUSED)
        return cls(
            precision,
            accelerator,
            is_split=tp * degrees.get("pp", 1) > 1,
            is_sharded=zero == 3,
            first_year=max(first, of_model),
            last_year=max(last, of_model),
            is_usually_eager=bool(USUALLY_EAGER.search(f"{program} {words}")),
            is_often_masked=bool(OFTEN_MASKED.search(f"{program} {words}")),
            is_of_2021=tp > 1 and not degrees.get("sequence_parallel", 1) and zero < 3,
        )


def programs(
    shown: Shown,
    framework: str = "",
    *,
    year: int | None = None,
    compiled: bool | None = None,
    attention: Attention | None = None,
    **more: Any,
) -> Programs:
    """Programs that may train, with their shares, which add up to 1; the likeliest first.

    Args:
        shown: what the run shows.
        framework: the program, with or without its year; empty where it is not known.
        year: of its release, where the name has none.
        compiled: whether its blocks are compiled, if that is said.
        attention: its kernel of the attention, if that is said.
        **more: further arguments of `Software.of`.
    """
    unnamed = {_NAMES[family]: share for family, share in _families(shown).items()}
    found: dict[Software, float] = {}
    for name, of_family in ({framework: 1.0} if family_of(framework) else unnamed).items():
        known = year or year_of(name)
        for at, of_year in {known: 1.0}.items() if known else _years(shown).items():
            of = {"year": at, "attention": attention, "precision": shown.precision, **more}
            named = name if known or at == PRESENT else f"{name} {at}"
            usual = Software.of(named, compiled=compiled, **of)
            is_open = compiled is None and usual.framework == "torch" and at > _FIRST_FUSED and not usual.fused_kernels
            share = _COMPILED_SHARES[shown.is_usually_eager] if is_open else 0.0
            kinds = [(usual, 1 - share)] + ([(Software.of(named, compiled=True, **of), share)] if is_open else [])
            if attention is None and shown.is_often_masked and usual.native and at > _FIRST_FUSED:
                kinds = [
                    (replace(one, attention=kernel), part * share)
                    for one, part in kinds
                    for kernel, share in ((one.attention, 1 - _MASKED_SHARE), ("efficient", _MASKED_SHARE))
                ]
            for software, of_kind in kinds:
                found[software] = found.get(software, 0.0) + of_family * of_year * of_kind
    return normalised([each for each in sorted(found.items(), key=lambda each: -each[1]) if each[1] >= _LEAST])


def planned_programs(software: Software, shown: Shown) -> Programs:
    """What may train a plan whose software is not named, or named without its compiler; empty if it is known.

    Args:
        software: of the plan, with what is said of it. Without a year it is of the present, in which the plan is made.
        shown: what the run file shows.
    """
    name, said = software.name, software.said
    found = programs(
        shown,
        name,
        year=None if year_of(name) else PRESENT,
        compiled=software.fused_kernels if "compiled" in said else None,
        attention=software.attention if "attention" in said else None,
        fp8_recipe=software.fp8_recipe,
    )
    return normalised(found[:_MOST_PLANNED]) if len(found) > 1 else ()


def describe_programs(found: Programs) -> str:
    """Programs by name with their shares, as one line."""
    names = (
        f"{one.name}{' compiled' * (one.framework == 'torch' and one.fused_kernels)} {100 * share:.0f} %"
        for one, share in found
    )
    return f"assumed: {', '.join(names)}"


def normalised(found: Sequence[tuple[Software, float]]) -> Programs:
    """The programs with shares that add up to 1."""
    whole = sum(share for _, share in found)
    return tuple((software, share / whole) for software, share in found)


def _families(shown: Shown) -> dict[Family, float]:
    if (shown.accelerator.architecture or "").startswith("TPU"):
        return {"jax": 1.0}
    mesh = "split" if shown.is_split else "sharded" if shown.is_sharded else "replicated"
    return _FAMILIES[_ALIKE.get(shown.precision, "bf16"), mesh]


def _years(shown: Shown) -> dict[int, float]:
    """Shares of the years that stand for an era, of those that are possible."""
    if shown.precision in ("fp8", "fp4") or shown.accelerator.launched > _FIRST_FUSED:
        return {PRESENT: 1.0}
    if shown.is_of_2021 or shown.precision == "fp16":
        shares = {_UNFUSED: 0.75, _FIRST_FUSED: 0.25}
    elif shown.accelerator.launched < _FIRST_FUSED - 1:
        shares = {_UNFUSED: 0.25, _FIRST_FUSED: 0.35, PRESENT: 0.4}
    else:
        shares = {_FIRST_FUSED: 0.1, PRESENT: 0.9}
    first, last = _era(shown.first_year), _era(shown.last_year)
    return {year: share for year, share in shares.items() if first <= year <= last} or {last: 1.0}


def _era(year: int) -> int:
    return _UNFUSED if year < _FIRST_FUSED else _FIRST_FUSED if year == _FIRST_FUSED else PRESENT


def mixture_quantile(logs: Array, shares: Sequence[float] | Array, part: Values) -> Array:
    """Quantile of a mixture of logistic distributions, shape [n].

    It lies between the least and the largest quantile of one of them. Newton's method narrows these bounds, and halves
    them where it would leave them or does not halve its last step. No quantile depends on others of the same call.

    Args:
        logs: their centres, shape [programs, n].
        shares: of the programs.
        part: 0.5 for the median; shape [n] for different quantiles.
    """
    weights, own = np.asarray(shares)[:, None], _SMOOTH * np.log(part / (1 - part))
    low, high = logs.min(axis=0) + own, logs.max(axis=0) + own
    at: Array = (low + high) / 2
    step = high - low
    for _ in range(_MOST_STEPS):
        below = _below(logs, at)
        missed = (weights * below).sum(axis=0) - part
        low, high = np.where(missed < 0, at, low), np.where(missed < 0, high, at)
        newton = _SMOOTH * missed / np.maximum((weights * below * (1 - below)).sum(axis=0), 1e-99)
        is_good = (low < at - newton) & (at - newton < high) & (2 * np.abs(newton) < np.abs(step))
        step = np.where(is_good, newton, at - (low + high) / 2)
        moves = np.minimum(np.abs(newton), np.abs(step)) > _PRECISION
        if not moves.any():
            break
        at = np.where(moves, at - step, at)
    return at


def mixture_nearness(logs: Array, shares: Sequence[float] | Array, at: Array) -> Array:
    """Share of each program in the density of the mixture, shape [programs, n]; adds up to 1."""
    below = _below(logs, at)
    density = np.asarray(shares)[:, None] * below * (1 - below)
    near: Array = density / density.sum(axis=0)
    return near


def mixture_spread(logs: Array, shares: Sequence[float] | Array) -> Array:
    """Standard deviation of the normal distribution that is as wide as the programs differ, shape [n]; 0 for one."""
    ends = mixture_quantile(np.hstack([logs, logs]), shares, np.repeat([0.1, 0.9], logs.shape[1]))
    width, own = np.subtract(*reversed(np.split(ends, 2))), 2 * _SMOOTH * math.log(9)
    return np.sqrt(np.maximum(0.0, width**2 - own**2)) / (2 * NormalDist().inv_cdf(0.9))


def narrowing(found: Programs, logs: Sequence[float]) -> tuple[str, float, float]:
    """The key of the `software:` block whose answer narrows a time most; the spread without it, and what is left of it.

    Args:
        found: the programs.
        logs: logarithms of the times that they take.
    """
    centres, shares = np.array(logs)[:, None], np.array([share for _, share in found])
    answers = {
        "framework": [software.name.split()[0] for software, _ in found],
        "compiled": [str(software.fused_kernels) for software, _ in found],
        "attention": [str(software.attention) for software, _ in found],
    }

    def left(key: str) -> float:
        alike = [
            [at for at, each in enumerate(answers[key]) if each == answer] for answer in dict.fromkeys(answers[key])
        ]
        weights = [float(shares[group].sum()) for group in alike]
        spreads = [mixture_spread(centres[group], shares[group] / shares[group].sum())[0] for group in alike]
        return math.sqrt(float(np.average(np.square(spreads), weights=weights)))

    key, least = min(((key, left(key)) for key in answers), key=lambda each: each[1])
    return key, float(mixture_spread(centres, shares)[0]), least


def _below(logs: Array, at: Array) -> Array:
    return 1 / (1 + np.exp((logs - at) / _SMOOTH))
