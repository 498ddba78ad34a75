"""Layouts of a run file and of the worker as rows of `Layouts`, and back."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.config.layout import Layout, ResolvedLayout
from trainworks.plan.layouts import Compression, Layouts, Recompute

_WRITTEN_ALONE = ("stage_layers", "powersgd_rank", "powersgd_warmup", "expert_capacity")
"""Fields of a written layout that `Layouts` lacks, has for PowerSGD alone, or rounds."""
_SELDOM = ("gradient_compression", "powersgd_rank", "expert_capacity", "fp8_all_gather")
"""Fields of `Layouts` that few layouts have, and that are 0 in the others."""


def fixed_of(layout: Layout) -> dict[str, int]:
    """Decided fields of a written layout, under the names of `Layouts`; `auto` decides nothing.

    `dp_shard` shards everything (zero 3) unless `zero` is lower.
    """
    automatic = 3 if layout.dp_shard > 1 else 0
    alone = layout.dp_shard * layout.cp == 1
    fixed = _mesh_of(layout, zero=automatic if layout.zero == "auto" or alone else layout.zero)
    chosen = {
        "micro_batch": layout.micro_batch,
        "interleave": layout.interleave,
        "recompute": {kind.name.lower(): int(kind) for kind in Recompute}.get(layout.recompute, "auto"),
        "recompute_layers": layout.recompute_layers,
        "sequence_parallel": layout.sequence_parallel,
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }
    return fixed | {name: int(value) for name, value in chosen.items() if value != "auto"}


def _mesh_of(layout: Layout | ResolvedLayout, *, zero: int) -> dict[str, int]:
    mesh = {"dp": layout.dp_replicate * layout.dp_shard, "dp_shard": layout.dp_shard, "zero": zero}
    mesh |= {axis: getattr(layout, axis) for axis in ("tp", "pp", "cp", "ep")}
    mesh |= {"fp8_all_gather": 1} if layout.fp8_all_gather else {}
    mesh |= {} if layout.expert_capacity is None else {"expert_capacity": round(100 * layout.expert_capacity)}
    if layout.gradient_compression == "none":
        return mesh
    kind = Compression[layout.gradient_compression.upper()]
    rank = layout.powersgd_rank * (kind == Compression.POWERSGD)
    return mesh | {"gradient_compression": kind, "powersgd_rank": rank}


def planned_layout(layouts: Layouts, index: int) -> ResolvedLayout:
    """One of the layouts; data-parallel ranks that share nothing are replicas."""
    row = layouts.row(index)
    shard = row["dp_shard"] if row["zero"] else 1
    return ResolvedLayout(
        dp_replicate=row["dp"] // shard,
        dp_shard=shard,
        cp=row["cp"],
        tp=row["tp"],
        pp=row["pp"],
        ep=row["ep"],
        expert_capacity=row["expert_capacity"] / 100 or None,
        micro_batch=row["micro_batch"],
        grad_accum_steps=round(float(layouts.accum[index])),
        zero=row["zero"],  # type: ignore[arg-type]
        sequence_parallel=bool(row["sequence_parallel"]),
        interleave=row["interleave"],
        zero_bubble=bool(row["zero_bubble"]),
        recompute=Recompute(row["recompute"]).name.lower(),  # type: ignore[arg-type]
        recompute_layers=row["recompute_layers"],
        offload_activations=bool(row["offload"]),
        offload_optimizer=bool(row["offload_optimizer"]),
        fp8_all_gather=bool(row["fp8_all_gather"]),
        gradient_compression=Compression(row["gradient_compression"]).name.lower(),  # type: ignore[arg-type]
        powersgd_rank=row["powersgd_rank"] or ResolvedLayout.model_fields["powersgd_rank"].default,
    )


def written_layout(layout: ResolvedLayout, *, selection: float = 0.0) -> Layout:
    """A decided layout as a run file writes it; `zero` stays open where the ranks share nothing."""
    decided = {name: getattr(layout, name) for name in Layout.model_fields if name != "selection"}
    opened = {"zero": layout.zero or "auto", "recompute_layers": layout.recompute_layers or "auto"}
    return Layout(**decided | opened | {"selection": selection})


def degrees_of(layout: ResolvedLayout) -> dict[str, int]:
    """Fields of `Layouts`; zero is 0 where data-parallel ranks share nothing."""
    return _mesh_of(layout, zero=layout.zero if layout.dp_shard * layout.cp > 1 else 0) | {
        "sequence_parallel": layout.sequence_parallel,
        "interleave": layout.interleave,
        "micro_batch": layout.micro_batch,
        "recompute": Recompute[layout.recompute.upper()],
        "recompute_layers": layout.recompute_layers,
        "zero_bubble": layout.zero_bubble,
        "offload": layout.offload_activations,
        "offload_optimizer": layout.offload_optimizer,
    }


def layouts_of(layouts: Sequence[ResolvedLayout]) -> Layouts:
    """The same layouts as arrays; all of them have one global batch."""
    rows = [dict.fromkeys(_SELDOM, 0) | degrees_of(layout) for layout in layouts]
    first = layouts[0]
    batch = first.dp * first.micro_batch * first.grad_accum_steps
    return Layouts.of(global_batch=batch, **{name: [row[name] for row in rows] for name in rows[0]})  # type: ignore[arg-type]


def resolved_of(layout: ResolvedLayout, written: Layout | None) -> ResolvedLayout:
    """A layout of a search as the worker runs it, with what only a written layout has."""
    kept = {} if written is None else {name: getattr(written, name) for name in _WRITTEN_ALONE}
    return layout.model_copy(update=kept | {"zero": layout.zero or 3})
