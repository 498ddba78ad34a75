"""Software of a measured run, from what a row's text says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from trainworks.config.software import Attention, Fp8Recipe, family_of
from trainworks.measure.tables import Row, flag_of, text_of
from trainworks.plan.software import Selective, Software

_ATTENTION: tuple[tuple[Attention, str], ...] = (
    ("unfused", r"\bno flash|without flash|unfused|\bxla\b|\beager attention|naive attention"),
    ("flash-4", r"flash[\s_-]*(?:attention|attn)?[\s_-]*4|\bfa-?4\b"),
    ("flash-3", r"flash[\s_-]*(?:attention|attn)?[\s_-]*3|\bfa-?3\b"),
    ("flash-2", r"flash[\s_-]*(?:attention|attn)?[\s_-]*2|\bfa-?2\b|\bsdpa\b"),
    ("cudnn", r"cudnn"),
    ("flash-1", r"triton|flash[\s_-]*(?:attention|attn)?[\s_-]*1|\bfa-?1\b"),
)
_RECIPES: tuple[tuple[Fp8Recipe, str], ...] = (
    ("tensorwise", r"tensor[\s_-]*wise|delayed|\bcs\b"),
    ("rowwise", r"row[\s_-]*wise"),
    ("blockwise", r"block|mx"),
)
_COMPILED = re.compile(r"torch[._]?compile|\bcompiled?\b|thunder|inductor", re.IGNORECASE)
_EAGER = re.compile(r"(?<!non-)\beager\b|no compile|without compile|compile[:= ]*(?:false|off)", re.IGNORECASE)
_PROJECTIONS = re.compile(r"save_(?:qkv|out)|qkv_proj", re.IGNORECASE)
_DOTS = re.compile(r"save_dot|minimal|custom", re.IGNORECASE)
_EVERY_SECOND = re.compile(r"\bop\b", re.IGNORECASE)
_SHARDING = re.compile(r"[\s\d,+/-]*(?:fsdp|hsdp|zero)[\s\d,+/-]*", re.IGNORECASE)
_SAYING = ("precision", "source", "notes", "software", "source_key")
T = TypeVar("T")
_FP32_WEIGHTS: dict[str, Any] = {"weight_bytes": 4, "optimizer_bytes": 8.0}

_FACTS: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = tuple(
    (re.compile(words, re.IGNORECASE), changes)
    for words, changes in (
        (r"\bamp\b(?! ?o2)|autocast", {**_FP32_WEIGHTS, "autocast": True, "gradient_bytes": 4}),
        (r"pure[ -]?(bf|fp)16|(bf|fp)16[ -]true", {"gradient_bytes": 2, "optimizer_bytes": 4.0}),
        (r"8[- ]?bit (adam|optim)|adamw?8bit", {"optimizer_bytes": 2.0}),
        (r"step[a-z ]* in(to|side)? (the )?backward", {"gradient_bytes": 0}),
        (r"chunked|liger|fused linear|cut cross", {"loss_bytes": 3.0}),
        (r"loss parallel", {"loss_parallel": True}),
    )
)
"""What words of a row say, a later one of which overrules an earlier one."""


def read_software(row: Row, precision: str, *, zero: int, tp: int, pp: int, sequence_parallel: bool) -> Software:
    """Software of a row: from `framework`, `attention` and `compiled`, else from words of its source and notes.

    A row that is silent has current software, unless it shows what only older software does: fp16 with loss scaling, or
    tensor parallelism without sequence parallelism, which came in 2022 before fused attention. A word about sharding
    (FSDP, ZeRO, HSDP) names no program, in no column: programs of every family shard. Weights that are sharded in 16
    bits or more without tensor and pipeline parallelism are those of a PyTorch program.
    """
    words = " ".join(text_of(row, name) for name in _SAYING)
    framework = text_of(row, "framework")
    named = "" if _SHARDING.fullmatch(framework) else framework
    old = precision == "fp16" or (tp > 1 and not sequence_parallel and zero < 3)
    native = zero == 3 and tp == pp == 1 and precision in ("bf16", "fp32", "tf32")
    software = Software.of(
        named or family_of(words) or ("torch" if native else "megatron"),
        year=2022 if old and not named else None,
        compiled=_compiled(row, words),
        attention=_written(_ATTENTION, text_of(row, "attention") or words),
        fp8_recipe=_written(_RECIPES, text_of(row, "fp8_recipe") or text_of(row, "precision")),
        gradient_bytes=2 if precision == "fp16" or "pure" in text_of(row, "precision").lower() else None,
        selective=_selective(text_of(row, "recompute")),
    )
    changes = {key: value for said, each in _FACTS if said.search(words) for key, value in each.items()}
    return replace(software, **changes)


def _written(names: Sequence[tuple[T, str]], text: str) -> T | None:
    """The first of these names that the text has; None if it has none."""
    return next((name for name, words in names if re.search(words, text, re.IGNORECASE)), None)


def _compiled(row: Row, words: str) -> bool | None:
    said = flag_of(row, "compiled")
    if said is not None:
        return said
    if _EAGER.search(words):
        return False
    return True if _COMPILED.search(words) else None


def _selective(recompute: str) -> Selective | None:
    if _PROJECTIONS.search(recompute):
        return "projections"
    if _EVERY_SECOND.search(recompute):
        return "every second product"
    return "products" if _DOTS.search(recompute) else None
