"""`--explain FIGURE`: the formula of a number, its inputs, and the source of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from trainworks.errors import UsageError
from trainworks.plan.trace import Traced, walk
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


def trace_lines(root: Traced) -> Iterator[str]:
    """The number and, indented below it, its inputs; a repeated one is named without its inputs."""
    yield from _lines(root, "", set())


def _lines(item: Traced, indent: str, shown: set[str]) -> Iterator[str]:
    value = f"{indent}{item.name} = {format_quantity(item.value, item.unit)}"
    if item.name in shown and item.inputs:
        yield f"{value} (above)"
        return
    shown.add(item.name)
    yield f"{value}{_range(item)}"
    yield from textwrap.wrap(_origin(item), _WIDTH, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}      ")
    for each in item.inputs.values():
        yield from _lines(each, f"{indent}  ", shown)


def _origin(item: Traced) -> str:
    if item.formula is None:
        return item.source or ""
    renamed = [f"{key} is {each.name}" for key, each in item.inputs.items() if key != each.name.replace(" ", "_")]
    return f"= {item.formula}" + (f"   where {', '.join(renamed)}" if renamed else "")


def _range(item: Traced) -> str:
    if item.low is None or item.high is None or item.formula is not None:
        return ""
    return f" ({format_quantity(item.low, item.unit)} to {format_quantity(item.high, item.unit)})"


def trace_json(root: Traced) -> dict[str, Any]:
    """The number with its whole derivation, in base units."""
    facts = {"name": root.name, "value": root.value, "unit": root.unit, "formula": root.formula, "source": root.source}
    facts |= {"low": root.low, "high": root.high} if root.low is not None else {}
    return facts | {"inputs": {key: trace_json(value) for key, value in root.inputs.items()}}
