"""A number explained: its formula, its inputs and the source of each (`--explain FIGURE`), and what moves it most."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from trainworks.catalog.exchange import Exchange
from trainworks.errors import UsageError
from trainworks.plan.trace import Swing, Traced, walk
from trainworks.report.rendering.document import Block, Details, Preformatted, Section, Text
from trainworks.report.rendering.plots import Range, Ranges
from trainworks.units import format_quantity

_WIDTH = 118
_MAX_SUGGESTIONS = 24


def explain(figures: Sequence[Traced], name: str) -> str:
    """The derivation of the number of that name, as text.

    Raises:
        UsageError: no figure has that name; the hint lists the nearest ones.
    """
    return "\n".join(trace_lines(find_figure(figures, name)))


def find_figure(figures: Sequence[Traced], name: str) -> Traced:
    """The number of that name among the figures and all their inputs."""
    known = {item.name: item for root in reversed(figures) for item in reversed(list(walk(root)))}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=3, cutoff=0.5) or list(known)[::-1][:_MAX_SUGGESTIONS]
    raise UsageError(
        f"no figure `{name}` in this answer",
        place="--explain",
        hint=f"it has {', '.join(f'`{each}`' for each in near)}",
    )


def sources_section(figures: Sequence[Traced]) -> Section:
    """Every number with its derivation, on a page; one that an earlier number has derived is named with that number."""
    blocks: list[Block] = [Text("Formula, inputs, and the source of each.", "dim")] if figures else []
    derived: dict[str, tuple[str, float]] = {}
    for figure in figures:
        lines = list(_lines(figure, "", figure.name, derived))
        blocks.append(Details(lines[0], [Preformatted("\n".join(lines))]))
    return Section("where the figures come from", blocks, only="page")


def trace_lines(root: Traced) -> Iterator[str]:
    """The number and, indented below it, its inputs; a repeated one is named without its inputs."""
    yield from _lines(root, "", root.name, {})


def _lines(item: Traced, indent: str, root: str, derived: dict[str, tuple[str, float]]) -> Iterator[str]:
    """Lines of one number; `derived` has the root and the value of each number that was derived before."""
    value = f"{indent}{item.name} = {format_quantity(item.value, item.unit)}"
    place, amount = derived.get(item.name, ("", None))
    if place and item.inputs and (place == root or amount == item.value):
        yield f"{value} ({'above' if place == root else f'see {place}'})"
        return
    derived[item.name] = (root, item.value)
    has_range = item.low is not None and item.high is not None and item.formula is None
    low, high = (format_quantity(end or 0.0, item.unit) for end in (item.low, item.high))
    yield f"{value} ({low} to {high})" if has_range else value
    yield from textwrap.wrap(_origin(item), _WIDTH, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}      ")
    for each in item.inputs.values():
        yield from _lines(each, f"{indent}  ", root, derived)


def _origin(item: Traced) -> str:
    if item.formula is None:
        return item.source or ""
    renamed = [f"{key} is {each.name}" for key, each in item.inputs.items() if key != each.name.replace(" ", "_")]
    return f"= {item.formula}" + (f"   where {', '.join(renamed)}" if renamed else "")


def trace_json(root: Traced) -> Mapping[str, object]:
    """The number with its whole derivation, in base units."""
    facts: dict[str, object] = {
        "name": root.name,
        "value": root.value,
        "unit": root.unit,
        "formula": root.formula,
        "source": root.source,
    }
    facts |= {"low": root.low, "high": root.high} if root.low is not None else {}
    return facts | {"inputs": {key: trace_json(value) for key, value in root.inputs.items()}}


def tornado_plot(answer: Traced, swings: Sequence[Swing], money: Exchange) -> list[Block]:
    """Assumptions by how much they move a cost, on a page, with amounts in this currency."""
    text = (
        "What moves the answer most: each bar shows what it would be with one assumption at either end of its range, "
        "and all others as they are."
    )
    ranges, labels = [], dict[float, str]()
    for swing in swings:
        unit = swing.of.unit
        low = format_quantity(swing.of.low or 0.0, unit if unit == "s" else "")
        about = f"{low} to {format_quantity(swing.of.high or 0.0, unit)}"
        ranges.append(Range(swing.of.name, about, swing.at_low, swing.at_high))
        labels |= {end: money.short(end) for end in (swing.at_low, swing.at_high)}
    return [Text(text, "dim", only="page"), Ranges(answer.value, ranges, labels, only="page")]
