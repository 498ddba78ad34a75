"""Tensor of a step with the size of a given allocation."""

from __future__ import annotations

from trainworks.config.layout import ResolvedLayout
from trainworks.record.model_shape import ModelShape


def piece_of(num_bytes: int, shape: ModelShape, layout: ResolvedLayout, *, sequence_length: int) -> str | None:
    """The tensor of one micro-batch, or of the model, that takes exactly so many bytes; None if none does.

    b T V for logits, b T f inside an MLP, b T h for a hidden state, b heads T^2 for attention scores, V h for the
    embeddings; in 4 or 2 bytes each.

    >>> from trainworks.plan.shapes.transformer import shape_of_model
    >>> from trainworks.config.run_file import Model
    >>> shape = shape_of_model(Model(layers=2, hidden=64, heads=4), vocabulary=1000, sequence_length=128)
    >>> layout = ResolvedLayout(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=8, grad_accum_steps=1)
    >>> piece_of(4 * 8 * 128 * 1000, shape, layout, sequence_length=128)
    'the logits of a micro-batch'
    """
    tokens = layout.micro_batch * sequence_length
    values = {
        "the logits of a micro-batch": tokens * shape.vocabulary,
        "an MLP's inner activations of a micro-batch": tokens * shape.feed_forward,
        "a hidden state of a micro-batch": tokens * shape.hidden,
        "the attention scores of a micro-batch": tokens * sequence_length * shape.heads,
        "the embeddings": shape.vocabulary * shape.hidden,
        "all gradients": shape.num_parameters,
    }
    return next((name for name, count in values.items() if num_bytes in (4 * count, 2 * count)), None)
