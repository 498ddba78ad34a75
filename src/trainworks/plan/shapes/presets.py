"""Published models: their shape, the dimensions by which they train from random weights, and their vocabulary.

A model given by dimensions takes the vocabulary of one of them, by one rule for plans, sizes, prices and runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast, get_args

from pydantic import ValidationError

from trainworks.catalog.models import known_model, preset, preset_names
from trainworks.config.data import TRAINED_VOCABULARY
from trainworks.config.model import Architecture, Model
from trainworks.config.run_file import Workload
from trainworks.config.source import Source
from trainworks.errors import UsageError
from trainworks.plan.shapes.conv_net import ConvNetShape, conv_net_of_hf_config
from trainworks.plan.shapes.transformer import shape_of_hf_config, shape_of_model
from trainworks.record.model_shape import ModelShape


def with_dimensions(workload: Workload, source: Source | None) -> Workload:
    """The workload with the published dimensions of its preset, which trains from random weights.

    Raises:
        UsageError: the preset is unknown, or dimensions alone do not describe it.
    """
    name, data, model = str(workload.model.preset), workload.data, workload.model
    place = source.place(("workload", "model", "preset")) if source else None
    shape, _ = published_shape(workload, name, source)
    kind = preset(name).get("model_type", "")
    trained = _dimensions(kind, shape, data.sequence_length)
    if trained is None and not isinstance(shape, ConvNetShape) and shape.learned_positions:
        length = shape.max_sequence_length
        if _dimensions(kind, shape, length) is not None:
            raise UsageError(
                f"preset `{name}` trains with its {length:,} positions, and `data.sequence_length` is "
                f"{data.sequence_length:,}",
                place=source.place(("workload", "data", "sequence_length")) if source else None,
                hint=f"set `data.sequence_length: {length}`, or give dimensions",
            )
    if isinstance(shape, ConvNetShape) or trained is None:
        raise UsageError(
            f"preset `{name}` can be planned, not trained: dimensions alone do not describe it",
            place=place,
            hint="name a checkpoint folder or hub id in `hf`, or give dimensions",
        )
    if data.vocabulary not in (None, shape.vocabulary):
        raise UsageError(
            f"`{name}` has {shape.vocabulary:,} entries, not {data.vocabulary:,}",
            place=source.place(("workload", "data", "vocabulary")) if source else None,
            hint=f"remove `data.vocabulary`, or set it to {shape.vocabulary}",
        )
    kept = {"balance_loss": model.balance_loss, "dropout": model.dropout}
    changed = {
        "model": trained.model_dump(exclude_none=True) | {key: value for key, value in kept.items() if value},
        "data": data.model_dump(exclude_unset=True) | {"vocabulary": shape.vocabulary},
    }
    try:
        return Workload.model_validate(workload.model_dump(exclude_unset=True) | changed)
    except ValidationError as error:
        detail = error.errors()[0]
        reason = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".lstrip(": ")
        hint = "name a checkpoint folder or hub id in `hf`"
        raise UsageError(f"preset `{name}` can be planned, not trained: {reason}", place=place, hint=hint) from None


def _dimensions(kind: str, shape: ModelShape | ConvNetShape, sequence_length: int) -> Model | None:
    """A published model as a run file gives it by dimensions; None if they make another model."""
    if isinstance(shape, ConvNetShape) or kind not in get_args(Architecture):
        return None
    model = Model(
        architecture=cast("Architecture", kind),
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        feed_forward=shape.expert_feed_forward if shape.experts else shape.feed_forward,
        experts=shape.experts or None,
        experts_per_token=shape.experts_per_token or None,
        tie_embeddings=shape.tie_embeddings,
    )
    length = sequence_length if shape.learned_positions else shape.max_sequence_length
    return model if shape_of_model(model, vocabulary=shape.vocabulary, sequence_length=length) == shape else None


def published_shape(workload: Workload, name: str, source: Source | None) -> tuple[ModelShape | ConvNetShape, int]:
    """Shape and sequence length of a published model.

    Raises:
        UsageError: the catalogue does not have it, or a sequence is longer than it has positions for.
    """
    try:
        config = preset(name)
    except UsageError as error:
        place = source.place(("workload", "model", "preset")) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None
    is_resnet = config.get("model_type") == "resnet"
    shape = (conv_net_of_hf_config if is_resnet else shape_of_hf_config)(config | workload.data.sizes)
    check_task(workload, shape, source)
    if isinstance(shape, ConvNetShape):
        return shape, 1
    length = shape.max_sequence_length if shape.patch_values else workload.data.sequence_length
    if shape.learned_positions and length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of `{name}`",
            place=source.place(("workload", "data", "sequence_length")) if source else None,
        )
    return shape, length


def check_task(workload: Workload, shape: ModelShape | ConvNetShape, source: Source | None = None) -> None:
    """Check that a diffusion transformer, and no other model, is planned for its task.

    Raises:
        UsageError: it is not.
    """
    denoises = isinstance(shape, ModelShape) and shape.diffusion is not None
    if denoises == (workload.task == "diffusion"):
        return
    raise UsageError(
        f"`{workload.model.title}` {'denoises' if denoises else 'does not denoise'} latents, and `task` is "
        f"{workload.task}",
        place=source.place(("workload", "task")) if source else None,
        hint="set `task: diffusion`" if denoises else "name a diffusion transformer, such as `preset: flux-dev`",
    )


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
        kind = known_model(name).config.get("model_type")
        if kind in _REFERENCES:
            shape = shape_of_hf_config(known_model(name).config)
            models.setdefault((kind, shape.layers, shape.hidden, shape.heads, shape.kv_heads), name)
    return models
