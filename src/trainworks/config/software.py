"""The `software:` block: the program that trains, as far as a plan depends on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from trainworks.config.spec import FieldError, Spec

Attention = Literal["unfused", "efficient", "flash-1", "flash-2", "flash-3", "flash-4", "cudnn"]
"""Kernel of the attention: three products and a softmax through memory, PyTorch's memory-efficient one under a mask,
FlashAttention by version, or cuDNN's."""
Kernel = Literal["sdpa", "varlen", "flex", "pieces", "masked"]
"""Kernel of the worker's attention, see `AttentionTask.kernel`."""
PIECE = 128
"""Positions that one call of `pieces` handles at least, where documents are shorter or a window moves: calls of fewer
cost more than what they leave out (measured on a CPU). FlexAttention's blocks are as long."""
Fp8Recipe = Literal["tensorwise", "rowwise", "blockwise"]
"""Values of an 8-bit product that share a scale: a tensor, a row, or a block (128 x 128, or the 32 of MXFP8)."""
Family = Literal[
    "trainworks", "automodel", "jax", "torchtitan", "torchtune", "llm-foundry", "megatron-deepspeed", "nemo",
    "megatron", "nanotron", "oneflow", "paddle", "deepspeed", "fms", "torch",
]  # fmt: skip
"""Programs that share their kernels, their schedule and what they keep in memory."""

_WORDS: tuple[tuple[Family, str], ...] = (
    ("trainworks", "trainworks"),
    ("automodel", "automodel"),
    ("jax", r"\bjax|maxtext|\bpax|praxis|levanter|easylm|t5x"),
    ("torchtitan", "torch ?titan"),
    ("torchtune", "torch ?tune"),
    ("llm-foundry", r"llm[-_ ]?foundry|mosaic"),
    ("megatron-deepspeed", r"megatron[-_ ](?:deepspeed|turing)|mt-nlg|\bmeg-ds\b|bigscience"),
    ("nemo", r"\bnemo\b|megatron[-_ ]bridge"),
    ("megatron", r"megatron|mcore|\bprimus\b|transformer ?engine"),
    ("nanotron", "nanotron"),
    ("oneflow", "oneflow|mindspore"),
    ("paddle", "paddle"),
    ("deepspeed", "deepspeed"),
    (
        "torch",
        r"lightning|lit-?gpt|nanogpt|hugging ?face|transformers|accelerate|\bhf\b"
        r"|easycontext|colossal|xtuner|axolotl|\beager\b",
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
HUGGING_FACE = re.compile(r"hugging ?face|transformers|\bhf\b", re.IGNORECASE)
OFTEN_MASKED = re.compile(
    r"^(?!.*(?:xtuner|axolotl|easycontext)).*(?:deepspeed|hugging ?face|transformers|accelerate|\bhf\b)", re.IGNORECASE
)
"""PyTorch programs of Hugging Face's models that do not bring FlashAttention's own package."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionTask:
    """The causal attention of Trainworks' own decoder on one device."""

    device: str
    """`cuda`, `cpu`, or another type of torch's."""
    capability: tuple[int, int] = (8, 0)
    """Compute capability of an NVIDIA GPU."""
    half: bool
    """Queries, keys and values have 16 bits."""
    head_dim: int
    positions: int
    """Positions of a row, documents of a packed one together."""
    documents: bool = False
    """A row holds several documents, which do not see each other."""
    window: int = 0
    """Positions that a token sees, itself included; 0 is all of them."""
    dropout: bool = False
    deterministic: bool = False
    varlen: bool = True
    """torch has FlashAttention for sequences of several lengths on this device."""
    flex: bool = True
    """torch can compile FlexAttention here."""

    @property
    def has_flash(self) -> bool:
        """Whether FlashAttention runs: 16 bits on Ampere and later, heads of 256 on its servers' chips, of 192 on
        others.
        """
        widest = 256 if self.capability in ((8, 0), (9, 0), (10, 0)) else 192
        return self.device == "cuda" and self.half and self.capability >= (8, 0) and self.head_dim <= widest

    @property
    def repeats_keys(self) -> bool:
        """Whether `sdpa` needs a key head per query head: memory-efficient attention knows no groups, and the kernel
        that does writes [B, heads, T, T] to memory.
        """
        return self.device == "cuda" and not (self.has_flash and self.kernel == "sdpa")

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs fastest without scores in memory, where the device has one.

        sdpa     `scaled_dot_product_attention` under its own causal mask: a window that is as long as the row counts
                 as none
        varlen   `varlen_attn`, FlashAttention of documents and windows: where it runs, without dropout
        flex     `flex_attention` with a mask of blocks: on GPUs where FlashAttention does not run, without dropout
        pieces   one `sdpa` per document, per group of short ones, or per stretch of a window: on CPUs, on other
                 devices, and with dropout
        masked   one `sdpa` with a mask [T, T]: for rows no longer than a piece

        Deterministic runs have no memory-efficient attention: `flex` replaces it, and where that is not there, `sdpa`
        writes scores to memory.
        """
        flexible = self.device == "cuda" and self.flex and not self.dropout and self.head_dim >= _SMALLEST_FLEX_HEAD
        if not (self.documents or 0 < self.window < self.positions):
            needs_other = self.device == "cuda" and self.deterministic and not self.has_flash
            return "flex" if needs_other and flexible else "sdpa"
        if self.has_flash and self.varlen and not self.dropout and self.head_dim % 8 == 0:
            return "varlen"
        if flexible:
            return "flex"
        return "masked" if self.positions <= PIECE else "pieces"

    def copied_heads(self, heads: int, key_heads: int) -> int:
        """Heads of values that each block keeps beside queries, keys, values and output.

        `pieces` joins its outputs in a copy; keys and values that are repeated are `heads` - `key_heads` more each.
        """
        kernel = self.kernel
        repeated = 2 * (heads - key_heads) if self.repeats_keys and kernel not in ("varlen", "flex") else 0
        return repeated + (heads if kernel == "pieces" else 0)

    def mask_bytes(self, rows: float) -> float:
        """Bytes of the mask of `rows` rows, which all blocks share; of documents the most that they can need.

        varlen   4 per token, where a document may begin
        flex     16 (n^2 + n) of the n = T / 128 blocks of a row, and the document of each token, 8
        pieces   e 128 T of documents, twice that with a window w, and e 128 (384 + 2 w) of its stretches
        masked   e T^2
        """
        e, length, documents = (2 if self.half else 4), self.positions, rows if self.documents else 1.0
        window, blocks = (self.window if self.window < length else 0), math.ceil(length / PIECE)
        moves = int(window > 0)
        return {
            "sdpa": 0.0,
            "varlen": 4.0 * rows * (length if self.documents else 1) + 4.0,
            "flex": documents * (16.0 * (blocks**2 + blocks) + 8.0 * length * self.documents),
            "pieces": e * PIECE * (rows * length * self.documents * (1 + moves) + moves * (3 * PIECE + 2 * window)),
            "masked": documents * e * length**2,
        }[self.kernel]

    def describe(self) -> str:
        """The kernel in a few words.

        >>> AttentionTask(device="cuda", half=True, head_dim=128, positions=8192, documents=True).describe()
        'varlen (FlashAttention of each document)'
        """
        parts = "document" if self.documents else "window"
        return {
            "sdpa": "sdpa (causal, without a mask)",
            "varlen": f"varlen (FlashAttention of each {parts})",
            "flex": "flex (FlexAttention with a mask of blocks)",
            "pieces": f"pieces (sdpa of each {parts})",
            "masked": "masked (sdpa with a mask of all positions)",
        }[self.kernel]


_SMALLEST_FLEX_HEAD = 16
"""Least width of a head that FlexAttention's products take."""
