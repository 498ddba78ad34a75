"""`--explain FIGURE`: the formula of a number, its inputs, and where each of them comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import typer

from trainworks.errors import UsageError
from trainworks.plan.trace import Traced, walk
from trainworks.units import format_quantity

__all__ = ["explain", "find_figure", "trace_as_json", "trace_lines"]

_WIDTH = 118
_MANY = 24


def explain(roots: Sequence[Traced], name: str) -> None:
    """Print how the number of that name comes about.

    Raises:
        UsageError: nothing has that name; the hint lists what there is.
    """
    for line in trace_lines(find_figure(roots, name)):
        typer.echo(line)


def find_figure(roots: Sequence[Traced], name: str) -> Traced:
    """The number of that name among the results and everything that they come from."""
    figures = {item.name: item for root in reversed(roots) for item in reversed(list(walk(root)))}
    if name in figures:
        return figures[name]
    near = get_close_matches(name, figures, n=3, cutoff=0.5) or list(figures)[::-1][:_MANY]
    raise UsageError(
        f"no figure `{name}` in this answer",
        place="--explain",
        hint=f"it has {', '.join(f'`{known}`' for known in near)}",
    )


def trace_lines(root: Traced) -> Iterator[str]:
    """The number and, indented below it, its inputs; one that was shown already is named only."""
    yield from _lines(root, "", set())


def _lines(item: Traced, indent: str, shown: set[str]) -> Iterator[str]:
    value = f"{indent}{item.name} = {format_quantity(item.value, item.unit)}"
    if item.name in shown and item.inputs:
        yield f"{value} (above)"
        return
    shown.add(item.name)
    spread = _range(item)
    yield f"{value}{spread}"
    yield from _wrapped(item, f"{indent}    ")
    for each in item.inputs.values():
        yield from _lines(each, f"{indent}  ", shown)


def _wrapped(item: Traced, indent: str) -> Iterator[str]:
    if item.formula is not None:
        names = ", ".join(f"{key} is {value.name}" for key, value in item.inputs.items() if _differs(key, value.name))
        text = f"= {item.formula}" + (f"   where {names}" if names else "")
    else:
        text = item.source or ""
    yield from textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _differs(key: str, name: str) -> bool:
    return key != name.replace(" ", "_")


def _range(item: Traced) -> str:
    if item.low is None or item.high is None or item.formula is not None:
        return ""
    return f" ({format_quantity(item.low, item.unit)} to {format_quantity(item.high, item.unit)})"


def trace_as_json(root: Traced) -> dict[str, Any]:
    """The number with all that it comes from, in base units."""
    facts = {"name": root.name, "value": root.value, "unit": root.unit, "formula": root.formula, "source": root.source}
    facts |= {"low": root.low, "high": root.high} if root.low is not None else {}
    return facts | {"inputs": {key: trace_as_json(value) for key, value in root.inputs.items()}}
