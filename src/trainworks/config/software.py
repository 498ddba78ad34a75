"""The `software:` block: the program that trains, as far as a plan depends on it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from trainworks.config.spec import FieldError, Spec

Attention = Literal["unfused", "flash-1", "flash-2", "flash-3", "flash-4", "cudnn"]
"""Kernel of the attention: three products and a softmax through memory, FlashAttention by version, or cuDNN's."""
Fp8Recipe = Literal["tensorwise", "rowwise", "blockwise"]
"""Values of an 8-bit product that share a scale: a tensor, a row, or a block (128 x 128, or the 32 of MXFP8)."""
Family = Literal[
    "trainworks", "automodel", "jax", "torchtitan", "torchtune", "llm-foundry", "megatron-deepspeed", "nemo",
    "megatron", "nanotron", "oneflow", "paddle", "fms", "torch",
]  # fmt: skip
"""Programs that share their kernels, their schedule and what they keep in memory."""

_WORDS: tuple[tuple[Family, str], ...] = (
    ("trainworks", "trainworks"),
    ("automodel", "automodel"),
    ("jax", r"\bjax|maxtext|\bpax|praxis|levanter|easylm|t5x"),
    ("torchtitan", "torch ?titan"),
    ("torchtune", "torch ?tune"),
    ("llm-foundry", r"llm[-_ ]?foundry|mosaic"),
    ("megatron-deepspeed", r"megatron[-_ ]deepspeed|\bmeg-ds\b|bigscience"),
    ("nemo", r"\bnemo\b|megatron[-_ ]bridge"),
    ("megatron", r"megatron|mcore|\bprimus\b|transformer ?engine"),
    ("nanotron", "nanotron"),
    ("oneflow", "oneflow|mindspore"),
    ("paddle", "paddle"),
    (
        "torch",
        r"lightning|lit-?gpt|nanogpt|hugging ?face|transformers|accelerate|\bhf\b"
        r"|easycontext|deepspeed|colossal|xtuner|axolotl|\beager\b",
    ),
    ("fms", r"\bfms|foundation[-_ ]model[-_ ]stack"),
    ("torch", "torch"),
)
_NAMED = "Megatron-LM, NeMo, torchtitan, PyTorch FSDP, DeepSpeed, Nanotron, MaxText, JAX, PaddlePaddle or Trainworks"


def family_of(text: str) -> Family | None:
    """Family of the programs that a text names, the most specific one; None if it names none.

    >>> family_of("NVIDIA/Megatron-LM README"), family_of("our own loop")
    ('megatron', None)
    """
    return next((family for family, words in _WORDS if re.search(words, text, re.IGNORECASE)), None)


def year_of(text: str) -> int | None:
    """Year of a release: `Megatron-LM 2021`, `NeMo 25.09`."""
    year, release = re.search(r"\b(20[12]\d)\b", text), re.search(r"\bv?(2[0-9])\.(?:0[1-9]|1[0-2])\b", text)
    return int(year[1]) if year else 2000 + int(release[1]) if release else None


_SINCE = (
    (2025, r"megatron[-_ ]bridge"),
    (2024, r"torch ?titan|torchtune|nanotron|olmo[-_ ]core|automodel|\bfms[-_]fsdp|pytorch 2\.[2-5]"),
    (2023, r"llm[-_ ]?foundry|mosaic|lit-?gpt|xtuner|axolotl|maxtext|flagperf|flash[-_ ]?attention[-_ ]?2|pytorch 2\."),
)
"""Years of the first releases of programs, and of releases of PyTorch."""
_MODELS = (
    (
        2024,
        r"llama[-_ ]?[234]|mi[sx]tral|qwen|gemma|deepseek|\byi\b|olmo|granite|phi[-_ ]?[34]|smollm|falcon[-_ ]?3|glm",
    ),
    (2023, r"llama"),
)
"""Years of the programs that train a model: one of July 2023 or later, as Llama 2 is, meets FlashAttention-2."""
USUALLY_EAGER = re.compile(r"deepspeed|hugging ?face|transformers|accelerate|\bhf\b|easycontext|axolotl|xtuner", re.I)
"""PyTorch programs that compile nothing unless their users ask, which those rarely do."""
_PUBLISHED = re.compile(r"\barxiv:\s*(\d\d)\d\d\.\d{4,5}", re.IGNORECASE)
_PYTORCH_1 = re.compile(r"\bpytorch 1\.", re.IGNORECASE)


def years_of(text: str) -> tuple[int, int]:
    """First and last year that a program can be of, by what a text names: programs, releases, papers; 0 and 9999.

    >>> years_of("torchtune, main"), years_of("Smith et al., arXiv:2201.11990"), years_of("PyTorch 1.13a")
    ((2024, 9999), (0, 2022), (0, 2022))
    """
    first = next((year for year, words in _SINCE if re.search(words, text, re.IGNORECASE)), 0)
    paper = _PUBLISHED.search(text)
    last = 2000 + int(paper[1]) if paper else year_of(text) or 9999
    return first, max(first, 2022 if _PYTORCH_1.search(text) else last)


def first_year_of_model(name: str, *, is_gated: bool, shares_keys: bool) -> int:
    """First year that a program can be of, by the model that it trains; 0 where nothing is known.

    Args:
        name: of the model.
        is_gated: whether its MLP is gated, as in most since LLaMA (2023).
        shares_keys: whether several heads share keys and values (Ainslie et al., May 2023).
    """
    known = next((year for year, words in _MODELS if re.search(words, name, re.IGNORECASE)), 0)
    return max(known, 2024 if shares_keys else 2023 if is_gated else 0)


def _known(text: str) -> str:
    if family_of(text) is None:
        raise FieldError(f"unknown framework `{text[:60]}`", hint=f"name {_NAMED}, with its year: `MaxText 2025`")
    return text


class TrainingSoftware(Spec):
    """The program that trains, for plans of a described cluster. What is left out is as the framework comes.

    Trainworks trains a workload itself, so a run refuses a block that says otherwise.
    """

    framework: Annotated[str, AfterValidator(_known)] | None = None
    """The program and its year: `Megatron-LM 2024`, `torchtitan 2025`, `MaxText`; this year's by default."""
    compiled: bool | None = None
    """Whether a compiler fuses the blocks; `workload.compile` says the same."""
    attention: Attention | None = None
    """Kernel of the attention."""
    fp8_recipe: Fp8Recipe | None = None
    """Values that share a scale with `precision: fp8`: all of a tensor, a row, or a block; a tensor by default."""


def software_from_text(value: Any) -> Any:
    """Read `software: MaxText 2025` as the framework alone."""
    return {"framework": value} if isinstance(value, str) else value
