"""What a run or a year costs, as a person reads it, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trainworks.plan.cost.break_even import within_a_year
from trainworks.plan.cost.comparison import Comparison, Line, per_million
from trainworks.plan.cost.renting import CONTRACTS, Contract
from trainworks.plan.trace import Swing, Traced
from trainworks.report.parts import print_parts
from trainworks.units import format_count, format_quantity, format_short_usd, format_usd

__all__ = ["Told", "costs_as_json", "print_costs"]

_NARROW = 100
"""Columns of a terminal below which a table leaves out what can be asked for with --explain."""
_MARK = "*"


@dataclass(frozen=True, slots=True)
class Told:
    """A comparison and what is to be said beside it."""

    title: str
    comparison: Comparison
    grid: str
    count: Traced | None = None
    """Tokens or images of a run; None for a year."""
    noun: str = "tokens"
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def print_costs(told: Told, console: Console) -> None:
    """Owning, every offer, what moves the answer most, and what was assumed."""
    parts: list[Sequence[RenderableType]] = [[_text(told.title)], [_facts(told)]]
    parts.append([_offers(told, narrow=console.width < _NARROW)] if told.comparison.lines else [])
    parts.append([_text(sentence) for sentence in told.sentences])
    parts.append(_tornado(told.comparison))
    parts.append([_text(f"note: {note}") for note in told.notes])
    print_parts(parts, console)


def _text(text: str) -> Text:
    return Text(text)


def _facts(told: Told) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    found = told.comparison
    if told.count is not None:
        table.add_row("work", f"{format_count(told.count.value)} {told.noun}")
    if found.owning is not None and found.owned is not None:
        each = format_quantity(found.owning.per_accelerator_hour.value, "USD")
        bought = format_usd(found.owning.capex.value)
        table.add_row("owning", f"{format_usd(found.owned.value)}, {each} per accelerator hour; {bought} to buy")
    if found.market is not None:
        table.add_row("renting", f"{format_usd(found.market.value)} at the median on-demand price")
    if found.energy is not None and found.carbon is not None:
        used, emitted = (format_quantity(each.value, each.unit) for each in (found.energy, found.carbon))
        table.add_row("energy", f"{used}, {emitted} ({told.grid})")
    return table


def _offers(told: Told, *, narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("offer", no_wrap=narrow, overflow="ellipsis")
    spot = ["spot"] if narrow else ["spot", "by zone", "saves"]
    last = "own from" if told.count is None else "per M" if narrow else f"per M {told.noun}"
    for head in ("each h" if narrow else "each hour", "on demand", "reserved", *spot, last):
        table.add_column(head, justify="right", no_wrap=True)
    for line in told.comparison.lines:
        mark = _MARK if line.may_not_join else ""
        paid = [_each(line), *(_cost(line, contract) for contract in CONTRACTS)]
        end = _own_from(line) if told.count is None else _per_million(line, told.count, told.noun)
        table.add_row(Text(line.offer.name + mark), *paid, *([] if narrow else _of_spot(line)), end)
    return table


def _each(line: Line) -> str:
    price = line.offer.usd_per_hour
    return "-" if price is None else f"{price / line.offer.accelerators:.2f}"


def _cost(line: Line, contract: Contract) -> str:
    return format_short_usd(line.costs[contract].value) if contract in line.costs else "-"


def _of_spot(line: Line) -> list[str]:
    zones = " to ".join(format_short_usd(end) for end in line.spot_range) if line.spot_range else ""
    return [zones, "" if line.discount is None else f"{line.discount.value:.0%}"]


def _own_from(line: Line) -> str:
    if line.break_even is None or not within_a_year(line.break_even):
        return "never"
    return f"{line.break_even.value:,.0f} h"


def _per_million(line: Line, count: Traced, noun: str) -> str:
    return f"{per_million(line.first, count, noun).value:.3g}"


def _tornado(found: Comparison) -> Sequence[RenderableType]:
    if found.answer is None or not found.swings:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("what moves it most", no_wrap=True)
    for head in ("low", "high", "at low", "at high"):
        table.add_column(head, justify="right", no_wrap=True)
    for swing in found.swings:
        unit = f", {swing.of.unit}" if swing.of.unit not in ("", "s", "year") else ""
        table.add_row(Text(swing.of.name + unit), *_ends(swing))
    return [_text(f"{found.answer.name}: {format_usd(found.answer.value)}"), table]


def _ends(swing: Swing) -> tuple[str, ...]:
    unit = "s" if swing.of.unit == "s" else ""
    ends = [format_quantity(end or 0.0, unit) for end in (swing.of.low, swing.of.high)]
    return (*ends, format_short_usd(swing.at_low), format_short_usd(swing.at_high))


def costs_as_json(told: Told) -> dict[str, Any]:
    """The same, in base units."""
    found = told.comparison
    owning = found.owning
    return {
        "cluster": found.cluster.name,
        "num_accelerators": found.cluster.num_accelerators,
        "hours": found.hours.value,
        "work": _value(told.count),
        "owning_usd": _value(found.owned),
        "owning_usd_per_accelerator_hour": None if owning is None else owning.per_accelerator_hour.value,
        "owning_capex_usd": None if owning is None else owning.capex.value,
        "market_usd": _value(found.market),
        "energy_wh": _value(found.energy),
        "carbon_kg_co2e": _value(found.carbon),
        "grid": told.grid,
        "offers": [_line_as_json(line) for line in found.lines],
        "tornado": [_swing_as_json(swing) for swing in found.swings],
        "notes": [*told.sentences, *told.notes],
    }


def _value(figure: Traced | None) -> float | None:
    return None if figure is None else figure.value


def _line_as_json(line: Line) -> dict[str, Any]:
    offer = line.offer
    return {
        "name": offer.name,
        "provider": offer.provider,
        "accelerators": offer.accelerators,
        "usd_per_hour": offer.usd_per_hour,
        "region": offer.region,
        "usd": {contract: cost.value for contract, cost in line.costs.items()},
        "spot_effective_discount": _value(line.discount),
        "break_even_hours": _value(line.break_even) if within_a_year(line.break_even) else None,
    }


def _swing_as_json(swing: Swing) -> dict[str, Any]:
    ends = {"low": swing.of.low, "high": swing.of.high, "unit": swing.of.unit}
    return {"name": swing.of.name} | ends | {"usd_at_low": swing.at_low, "usd_at_high": swing.at_high}
