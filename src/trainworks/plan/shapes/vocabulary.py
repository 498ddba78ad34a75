"""Vocabulary of a model given by dimensions: one rule for plans, sizes, prices and the run itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainworks.catalog.models import known_model, preset_names
from trainworks.config.data import TRAINED_VOCABULARY
from trainworks.config.model import Architecture
from trainworks.config.run_file import Workload
from trainworks.plan.shapes.transformer import shape_of_hf_config

_REFERENCES: dict[Architecture, str] = {
    "llama": "llama3.1-8b",
    "mistral": "mistral-7b",
    "qwen2": "qwen2.5-7b",
    "qwen3": "qwen3-8b",
    "mixtral": "mixtral-8x7b",
    "gpt2": "gpt2",
    "bert": "bert-base",
}
"""The published model whose vocabulary a model of the architecture takes, where none has its dimensions."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows of an embedding, and why so many."""

    entries: int
    whose: str
    """The model or tokenizer that has so many, why that one, and the source."""

    def __str__(self) -> str:
        return f"{self.entries:,} of {self.whose}; `data.vocabulary: N` replaces it"

    @property
    def note(self) -> str:
        """What was taken and why, in a sentence."""
        return f"vocabulary {self}"


def default_vocabulary(workload: Workload) -> Vocabulary | None:
    """What a run or a plan takes of a model given by dimensions; None where the run file or its tokenizer says it.

    A run with data trains a tokenizer of its own. Without data there is only a plan, which takes the vocabulary of the
    published model with these dimensions, else that of the architecture's reference.
    """
    data = workload.data
    if workload.model.layers is None or data.vocabulary is not None or data.tokenizer != "bpe":
        return None
    if data.source and not workload.lacks_weights:
        return Vocabulary(TRAINED_VOCABULARY, "the tokenizer that the run trains on its text")
    model = workload.model
    twin = published_twin(
        model.architecture, layers=model.layers, hidden=model.hidden, heads=model.heads, kv_heads=model.kv_heads
    )
    name = twin or _REFERENCES[model.architecture]
    why = "which has these dimensions" if twin else "the reference of its architecture"
    published = known_model(name)
    return Vocabulary(shape_of_hf_config(published.config).vocabulary, f"{name}, {why} ({published.source})")


def published_twin(
    architecture: str, *, layers: int | None, hidden: int | None, heads: int | None, kv_heads: int | None
) -> str | None:
    """Name of the first published model of an architecture with these layers, width and heads.

    >>> published_twin("llama", layers=32, hidden=4096, heads=32, kv_heads=8)
    'llama3-8b'
    """
    return _published().get((architecture, layers, hidden, heads, kv_heads or heads))


@cache
def _published() -> dict[tuple[object, ...], str]:
    models: dict[tuple[object, ...], str] = {}
    for name in preset_names():
        kind = known_model(name).config["model_type"]
        if kind in _REFERENCES:
            shape = shape_of_hf_config(known_model(name).config)
            models.setdefault((kind, shape.layers, shape.hidden, shape.heads, shape.kv_heads), name)
    return models
