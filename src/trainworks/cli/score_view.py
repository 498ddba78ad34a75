"""A score as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from trainworks.measure.scoring import (
    CollectiveScore,
    Group,
    MemoryScore,
    Refusal,
    RowPrediction,
    RunScore,
    Score,
    Sweep,
)
from trainworks.plan.score import Errors, Rejections

__all__ = ["print_refusals", "print_score"]

_TITLES = {"yes": "step time", "moe": "step time, models with experts"}
_SHOWN_IDS = 3
_LONGEST_SOURCE = 80
_STATISTICS = ("n", "MAPE", "median", "p90", "bias")


def print_score(score: Score, console: Console) -> None:
    """Print the errors of a table, source by source."""
    if isinstance(score, RunScore):
        for kind, group in score.kinds.items():
            _print_group(_TITLES.get(kind, f"step time, rows marked `{kind}`"), group, console)
        _print_sweeps(score.sweeps, console)
        if not score.kinds:
            console.print("no row has a measured step time to score")
    elif isinstance(score, MemoryScore):
        for kind, group in score.kinds.items():
            _print_group(f"memory, {kind}", group, console)
        _print_rejections(score.rejections, console)
    else:
        _print_collectives(score, console)


def _print_group(title: str, group: Group, console: Console) -> None:
    has_intervals = group.rows.coverage is not None
    after = [f"after {learned}" for learned in group.calibrated]
    table = _table(title, *_STATISTICS, *(["in 80 %"] if has_intervals else []), *after)
    for source, errors in group.sources.items():
        learned = {name: calibrated.sources.get(source) for name, calibrated in group.calibrated.items()}
        table.add_row(_shortened(source), *_cells(errors), *_mapes(learned))
    macros = {name: calibrated.macro for name, calibrated in group.calibrated.items()}
    table.add_section()
    table.add_row("macro average over sources", *_cells(group.macro), *_mapes(macros))
    table.add_row(
        "all rows",
        *_cells(group.rows),
        *_mapes({name: calibrated.rows for name, calibrated in group.calibrated.items()}),
    )
    console.print(table)
    if after:
        console.print("after 1, 3: MAPE on a row after learning from so many others of its source and accelerator")
    console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title, box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(errors: Errors) -> list[str]:
    covered = [] if errors.coverage is None else [_percent(errors.coverage, digits=0)]
    shares = (errors.mape, errors.median, errors.p90)
    return [f"{errors.n:,}", *(_percent(share) for share in shares), f"{100 * errors.bias:+.1f} %", *covered]


def _mapes(calibrated: Mapping[int, Errors | None]) -> list[str]:
    return ["" if errors is None else _percent(errors.mape) for errors in calibrated.values()]


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _shortened(source: str) -> str:
    return source if len(source) <= _LONGEST_SOURCE else f"{source[: _LONGEST_SOURCE - 3]}..."


def _print_sweeps(sweeps: Sequence[Sweep], console: Console) -> None:
    if not sweeps:
        return
    table = _table("layouts of one job", "layouts", "rank correlation", "regret")
    for sweep in sweeps:
        name = f"{sweep.source}: {sweep.model}, {sweep.accelerators}"
        table.add_row(name, f"{sweep.layouts}", f"{sweep.rank_correlation:.2f}", _percent(sweep.regret))
    table.add_section()
    correlation = sum(sweep.rank_correlation for sweep in sweeps) / len(sweeps)
    cost = sum(sweep.regret for sweep in sweeps) / len(sweeps)
    table.add_row("mean", "", f"{correlation:.2f}", _percent(cost))
    console.print(table)
    console.print("regret: what the layout that is predicted fastest takes longer than the fastest one")
    console.print()


def _print_rejections(rejections: Rejections, console: Console) -> None:
    console.print(f"rejected: {rejections.out_of_memory_rejected} of {rejections.out_of_memory} that ran out of memory")
    console.print(f"rejected: {rejections.fitting_rejected} of {rejections.fitting} that fitted")
    console.print()


def _print_collectives(score: CollectiveScore, console: Console) -> None:
    if score.every is None:
        console.print("no row has a measured time to score")
    if score.large is not None:
        _print_group("collectives from 64 KiB", score.large, console)
    if score.every is not None:
        _print_group("collectives of all sizes", score.every, console)


def print_refusals(results: Sequence[RowPrediction], console: Console) -> None:
    """Print how many rows were predicted, and what was wrong with the others, by reason."""
    refused = [result for result in results if isinstance(result, Refusal)]
    console.print(f"{len(results) - len(refused)} of {len(results)} rows predicted")
    by_reason: dict[tuple[str, str], list[str]] = {}
    for refusal in refused:
        own = f"line {refusal.line}"
        at = refusal.id if refusal.line is None or refusal.id == own else f"{refusal.id} ({own})"
        by_reason.setdefault((refusal.source, refusal.reason), []).append(at)
    if not by_reason:
        return
    console.print()
    table = Table("refused", "rows", "reason", box=None, padding=(0, 2, 0, 0))
    for (source, reason), ids in by_reason.items():
        more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        table.add_row(_shortened(source), ", ".join(ids[:_SHOWN_IDS]) + more, reason)
    console.print(table, markup=False)
