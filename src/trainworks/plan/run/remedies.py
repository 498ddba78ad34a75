"""Remedies after running out of memory: neighbouring layouts, with the memory each saves and the time it costs.

A neighbour moves a factor from one axis to another, takes a smaller micro-batch, or switches on an option that saves
memory. Every layout that passes validation is a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from trainworks.config.layout import (
    ANY_LAYOUT,
    MESH_AXES,
    Layout,
    ModelSupport,
    ResolvedLayout,
    divisors,
    resolve_layout,
)
from trainworks.config.run_file import Workload
from trainworks.errors import TrainworksError
from trainworks.plan.run.pricing import Pricing
from trainworks.plan.run.trainable import check_trainable
from trainworks.record.model_shape import ModelShape

_SAVING_OPTIONS: Mapping[str, tuple[int | str, ...]] = {
    "zero": (2, 3),
    "sequence_parallel": (True,),
    "recompute": ("selective", "full"),
    "offload_optimizer": (True,),
    "offload_activations": (True,),
}
"""Options of a layout that save memory, and their values from the lightest to the strongest."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to need less."""

    changes: dict[str, int | str]
    """Fields of the layout that are other than they were."""
    layout: ResolvedLayout
    saves_bytes: int
    step_time_ratio: float
    """Predicted step time relative to the current layout; below 1 it is faster."""
    is_enough: bool
    """True if it saves as much as is needed."""


def cheapest_remedies(
    workload: Workload,
    shape: ModelShape,
    layout: ResolvedLayout,
    price: Pricing,
    *,
    needed_bytes: int,
    count: int = 3,
    support: ModelSupport = ANY_LAYOUT,
) -> tuple[Remedy, ...]:
    """The cheapest neighbours that save at least `needed_bytes`, then those that save most.

    Only the best of the remedies that change the same fields is returned. Remedies that change more than a sufficient
    one come last.
    """
    now = price(layout)
    remedies = []
    for changes, other in neighbours(workload, shape, layout, price, support):
        after = price(other)
        saves_bytes = now.memory.total_bytes - after.memory.total_bytes
        ratio = after.step_time.total_s / now.step_time.total_s
        remedies.append(Remedy(changes, other, saves_bytes, ratio, is_enough=saves_bytes >= needed_bytes))
    best: dict[frozenset[str], Remedy] = {}
    for remedy in sorted((remedy for remedy in remedies if remedy.saves_bytes > 0), key=_preference):
        best.setdefault(frozenset(remedy.changes), remedy)
    enough = [fields for fields, remedy in best.items() if remedy.is_enough]
    ordered = sorted(best.items(), key=lambda item: (not item[1].is_enough, any(fields < item[0] for fields in enough)))
    return tuple(remedy for _, remedy in ordered[:count])


def _preference(remedy: Remedy) -> tuple[float, ...]:
    """Enough ones first, by cost to a percent, then by how little they change; the others by what they save."""
    if remedy.is_enough:
        return 0, round(remedy.step_time_ratio, 2), len(remedy.changes), -remedy.saves_bytes
    return 1, -remedy.saves_bytes, len(remedy.changes), remedy.step_time_ratio


def neighbours(
    workload: Workload,
    shape: ModelShape,
    layout: ResolvedLayout,
    price: Pricing,
    support: ModelSupport = ANY_LAYOUT,
) -> Iterator[tuple[dict[str, int | str], ResolvedLayout]]:
    """Layouts that differ in the degrees of two axes, the micro-batch, one option, or one of each of these.

    Each of the changes saves memory by itself.
    """
    now = price(layout).memory.total_bytes

    def saves(changes: Mapping[str, int | str]) -> bool:
        accepted = changed_layout(workload, shape, layout, changes, support)
        return accepted is not None and price(accepted).memory.total_bytes < now

    per_rank = layout.micro_batch * layout.grad_accum_steps
    smaller = ({"micro_batch": size} for size in divisors(per_rank) if size < layout.micro_batch)
    kinds = (_moved_axes(layout), smaller, _switched_options(layout))
    for parts in product(*([{}, *filter(saves, kind)] for kind in kinds)):
        changes = {name: value for part in parts for name, value in part.items()}
        if changes and (accepted := changed_layout(workload, shape, layout, changes, support)) is not None:
            yield changes, accepted


def _moved_axes(layout: ResolvedLayout) -> Iterator[dict[str, int | str]]:
    for source, target in product(MESH_AXES, MESH_AXES):
        for factor in divisors(getattr(layout, source))[1:] if source != target else ():
            yield {
                source: getattr(layout, source) // factor,
                target: getattr(layout, target) * factor,
            }


def _switched_options(layout: ResolvedLayout) -> Iterator[dict[str, int | str]]:
    for option, values in _SAVING_OPTIONS.items():
        present = getattr(layout, option)
        stronger = values[values.index(present) + 1 :] if present in values else values
        yield from ({option: value} for value in stronger)


def changed_layout(
    workload: Workload,
    shape: ModelShape,
    layout: ResolvedLayout,
    changes: Mapping[str, int | str],
    support: ModelSupport = ANY_LAYOUT,
) -> ResolvedLayout | None:
    """The changed layout as it would be trained; None if it would be refused."""
    try:
        written = Layout.model_validate({**as_written(layout), **changes})
        size = int(changes.get("micro_batch", layout.micro_batch))
        batch = workload.global_batch
        accepted = resolve_layout(
            written, world_size=layout.world_size, global_batch=batch, micro_batch=size, support=support
        )
        check_trainable(accepted, workload, shape, support)
    except (TrainworksError, ValueError):
        return None
    return accepted


def as_written(layout: ResolvedLayout) -> dict[str, object]:
    """A resolved layout as a run file has it: without degrees of 1, and without options at their defaults, which may
    follow other ones.
    """
    fields = ResolvedLayout.model_fields
    values = {name: getattr(layout, name) for name in Layout.model_fields if name in fields}
    return {
        name: value
        for name, value in values.items()
        if value != (Layout.model_fields[name].default if fields[name].is_required() else fields[name].default)
    }


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
