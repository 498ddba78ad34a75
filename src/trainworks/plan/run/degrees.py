"""Layouts of the worker as rows of `Layouts`, and back."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.plan.layouts import Layouts, Recompute, to_layout


def degrees_of(layout: ResolvedLayout) -> dict[str, int]:
    """Fields of `Layouts`; zero is 0 where data-parallel ranks share nothing."""
    return {
        "dp": layout.dp,
        "dp_shard": layout.dp_shard,
        "zero": layout.zero if layout.dp_shard * layout.cp > 1 else 0,
        "tp": layout.tp,
        "sequence_parallel": layout.sequence_parallel,
        "pp": layout.pp,
        "interleave": layout.interleave,
        "cp": layout.cp,
        "ep": layout.ep,
        "micro_batch": layout.micro_batch,
        "recompute": Recompute[layout.recompute.upper()],
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }


def layouts_of(layouts: Sequence[ResolvedLayout]) -> Layouts:
    """The same layouts as arrays; all of them have one global batch."""
    rows = [degrees_of(layout) for layout in layouts]
    first = layouts[0]
    batch = first.dp * first.micro_batch * first.grad_accum_steps
    return Layouts.of(global_batch=batch, **{name: [row[name] for row in rows] for name in rows[0]})  # type: ignore[arg-type]


def resolved_of(layouts: Layouts, index: int, written: Layout | None, *, global_batch: int) -> ResolvedLayout:
    """One of the layouts as the worker runs it, with what only a written layout has."""
    kept = {} if written is None else {name: getattr(written, name) for name in _WRITTEN_ALONE}
    layout = to_layout(layouts, index).model_copy(update=kept)
    return resolve_layout(
        layout,
        world_size=round(float(layouts.world_size[index])),
        global_batch=global_batch,
        micro_batch=round(float(layouts.micro_batch[index])),
    )


_WRITTEN_ALONE = ("stage_layers", "gradient_compression", "powersgd_rank", "powersgd_warmup")
