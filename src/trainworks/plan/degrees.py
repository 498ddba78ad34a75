"""Layouts of a run file and of the worker as rows of `Layouts`, and back."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.plan.layouts import Compression, Layouts, Recompute

_WRITTEN_ALONE = ("stage_layers", "powersgd_rank", "powersgd_warmup")
"""Fields of a written layout that `Layouts` lacks, or has for PowerSGD alone."""


def fixed_of(layout: Layout) -> dict[str, int]:
    """Decided fields of a written layout, under the names of `Layouts`; `auto` decides nothing.

    `dp_shard` shards everything (zero 3) unless `zero` is lower.
    """
    automatic = 3 if layout.dp_shard > 1 else 0
    alone = layout.dp_shard * layout.cp == 1
    fixed = {
        "dp": layout.dp_replicate * layout.dp_shard,
        "dp_shard": layout.dp_shard,
        "zero": automatic if layout.zero == "auto" or alone else layout.zero,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
        **_compression_of(layout),
    }
    kinds = {kind.name.lower(): int(kind) for kind in Recompute}
    chosen = {
        "micro_batch": layout.micro_batch,
        "interleave": layout.interleave,
        "recompute": kinds.get(layout.recompute, "auto"),
        "sequence_parallel": layout.sequence_parallel,
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }
    return fixed | {name: int(value) for name, value in chosen.items() if value != "auto"}


def _compression_of(layout: Layout | ResolvedLayout) -> dict[str, int]:
    if layout.gradient_compression == "none":
        return {}
    kind = Compression[layout.gradient_compression.upper()]
    return {"gradient_compression": kind, "powersgd_rank": layout.powersgd_rank * (kind == Compression.POWERSGD)}


def to_layout(layouts: Layouts, index: int) -> Layout:
    """One of the layouts as a run file writes it."""
    row = layouts.row(index)
    return Layout(
        dp_replicate=row["dp"] // row["dp_shard"] if row["zero"] else row["dp"],
        dp_shard=row["dp_shard"] if row["zero"] else 1,
        cp=row["cp"],
        tp=row["tp"],
        pp=row["pp"],
        ep=row["ep"],
        micro_batch=row["micro_batch"],
        zero=row["zero"] or "auto",  # type: ignore[arg-type]
        sequence_parallel=bool(row["sequence_parallel"]),
        interleave=row["interleave"],
        zero_bubble=bool(row["zero_bubble"]),
        recompute=Recompute(row["recompute"]).name.lower(),  # type: ignore[arg-type]
        offload_activations=bool(row["offload"]),
        offload_optimizer=bool(row["offload_optimizer"]),
        gradient_compression=Compression(row["gradient_compression"]).name.lower(),  # type: ignore[arg-type]
        powersgd_rank=row["powersgd_rank"] or Layout.model_fields["powersgd_rank"].default,
    )


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
        **_compression_of(layout),
    }


def layouts_of(layouts: Sequence[ResolvedLayout]) -> Layouts:
    """The same layouts as arrays; all of them have one global batch."""
    rows = [{"gradient_compression": 0, "powersgd_rank": 0} | degrees_of(layout) for layout in layouts]
    first = layouts[0]
    batch = first.dp * first.micro_batch * first.grad_accum_steps
    return Layouts.of(global_batch=batch, **{name: [row[name] for row in rows] for name in rows[0]})  # type: ignore[arg-type]


def resolved_of(layouts: Layouts, index: int, written: Layout | None, *, global_batch: int) -> ResolvedLayout:
    """One of the layouts as the worker runs it, with what only a written layout has."""
    world_size = round(float(layouts.world_size[index]))
    return decided(to_layout(layouts, index), written, world_size=world_size, global_batch=global_batch)


def decided(chosen: Layout, written: Layout | None, *, world_size: int, global_batch: int) -> ResolvedLayout:
    """A layout of a search as the worker runs it, with what only a written layout has."""
    kept = {} if written is None else {name: getattr(written, name) for name in _WRITTEN_ALONE}
    return resolve_layout(
        chosen.model_copy(update=kept),
        world_size=world_size,
        global_batch=global_batch,
        micro_batch=int(chosen.micro_batch),
    )
