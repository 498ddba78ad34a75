"""Published models: their shape, and the dimensions by which they train from random weights."""

from __future__ import annotations

from typing import cast, get_args

from pydantic import ValidationError

from trainworks.catalog.models import preset
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
    trained = _dimensions(preset(name)["model_type"], shape, data.sequence_length)
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
    same = shape_of_model(model, vocabulary=shape.vocabulary, sequence_length=length)
    return model if same == shape else None


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
    image_size = {} if workload.data.image_size is None else {"image_size": workload.data.image_size}
    if config.get("model_type") == "resnet":
        return conv_net_of_hf_config(config | image_size), 1
    shape = shape_of_hf_config(config | image_size)
    length = shape.max_sequence_length if shape.patch_values else workload.data.sequence_length
    if shape.learned_positions and length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of `{name}`",
            place=source.place(("workload", "data", "sequence_length")) if source else None,
        )
    return shape, length
