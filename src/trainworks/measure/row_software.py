"""Software of a measured run, from what a row's text says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from trainworks.measure.tables import Row, text_of
from trainworks.plan.software import Software

__all__ = ["memory_software"]

_NAMES = ("source_key", "source", "model", "zero_stage", "recompute", "framework")
_NOTES = ("precision", "notes", "software")
_FP32_WEIGHTS: dict[str, Any] = {"weight_bytes": 4, "optimizer_bytes": 8.0}

_NATIVE = Software(
    fused_kernels=False,
    native=True,
    norm_bytes=6,
    loss_bytes=12.0,
    loss_parallel=False,
    selective="every second product",
)
"""PyTorch as it comes: eager kernels, FSDP2 or DDP, `F.cross_entropy` of an fp32 copy of the logits."""
_FRAMEWORKS = tuple(
    (re.compile(words, re.IGNORECASE), software)
    for words, software in (
        (
            r"maxtext|\bjax\b|\bpax|levanter|t5x|easylm|praxis",
            Software(native=True, **_FP32_WEIGHTS),
        ),
        (r"megatron|\bnemo\b|\bmcore\b|transformer ?engine", None),
        (r"nanotron", Software(fused_kernels=False, norm_bytes=6, loss_bytes=8.0, gradient_bytes=6)),
        (r"titan", replace(_NATIVE, loss_parallel=True)),
        (
            r"torchtune|litgpt|lit-gpt|fsdp|lightning|llm[-_ ]?foundry|mosaic|nanogpt|hugging ?face|transformers|"
            r"accelerate|\bhf\b|easycontext|xtuner|axolotl|torch\.compile|eager|pytorch/",
            _NATIVE,
        ),
        (r"paddle", Software(fused_kernels=False, norm_bytes=6, loss_bytes=12.0, gradient_bytes=2)),
    )
)
_FACTS: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = tuple(
    (re.compile(words, re.IGNORECASE), changes)
    for words, changes in (
        (r"flash|sdpa|cudnn attention", {"fused_attention": True}),
        (r"(no|without) flash", {"fused_attention": False}),
        (r"\bamp\b(?! ?o2)|autocast", {**_FP32_WEIGHTS, "autocast": True, "gradient_bytes": 4}),
        (r"(?<!no )\bcompiled?\b|torch\.?compile|thunder|inductor", {"fused_kernels": True, "norm_bytes": 0}),
        (r"(?<!non-)\beager\b", {"fused_kernels": False, "norm_bytes": 6}),
        (r"pure[ -]?(bf|fp)16|(bf|fp)16[ -]true", {"gradient_bytes": 2, "optimizer_bytes": 4.0}),
        (r"8[- ]?bit (adam|optim)|adamw?8bit", {"optimizer_bytes": 2.0}),
        (r"step[a-z ]* in(to|side)? (the )?backward", {"gradient_bytes": 0}),
        (r"chunked|liger|fused linear|cut cross", {"loss_bytes": 3.0}),
        (r"loss parallel", {"loss_parallel": True}),
    )
)
"""What words in a row's notes say, a later one of which overrules an earlier one."""


def memory_software(row: Row, software: Software) -> Software:
    """The software of a row with what memory depends on.

    Args:
        row: its source and options name a framework; its notes a compiler, the precision of the states ...
        software: as layout and precision suggest it, for a row that names none.
    """
    text = " ".join(text_of(row, name) for name in (*_NAMES, *_NOTES))
    named = next((found for words, found in _FRAMEWORKS if words.search(text)), None)
    if named is None and not software.fused_kernels:
        named = _NATIVE
    if named is not None:
        software = replace(named, overlap=software.overlap)
    notes = " ".join(text_of(row, name) for name in _NOTES)
    changes = {key: value for words, each in _FACTS if words.search(notes) for key, value in each.items()}
    return replace(software, **changes)
