"""Numbers that say where they come from: a fact with its source, or a formula of other numbers.

The formula that a reader sees is the text that was computed, so the two cannot differ. Because every number knows its
inputs, one walk answers three questions: how it came about (`--explain`), what it would be if a fact were another one
(`with_changed`), and which fact moves it most (`tornado`).

    hours = fact("hours per year", 5000.0, "h", source="asked for")
    price = fact("price", 55.04, "USD/h", source="AWS, 2026-11", low=10.24, high=98.32)
    rent = derive("rent per year", "USD", "hours * price", hours=hours, price=price)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import CodeType, MappingProxyType

__all__ = ["Swing", "Traced", "computed", "derive", "fact", "leaves", "tornado", "walk", "with_changed"]

_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "ceil": math.ceil,
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}
"""What a formula may call."""


@dataclass(frozen=True, slots=True)
class Traced:
    """One number, its unit and its origin; `fact`, `derive` and `computed` make them."""

    name: str
    value: float
    unit: str
    """`s`, `bytes`, `bytes/s`, `USD`, `USD/h`, `W`, `kWh` ...; empty for a plain number or share."""
    formula: str | None = None
    """Of the inputs' keys; None for a fact, and for a number that a search or simulation found."""
    inputs: Mapping[str, Traced] = field(default_factory=lambda: MappingProxyType({}))
    source: str | None = None
    """Of a fact: who says so, and when. Of a computed number: what computed it."""
    low: float | None = None
    high: float | None = None
    """Range in which the value may well lie; None where nothing is known of it."""

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Swing:
    """What one uncertain number does to a result."""

    of: Traced
    at_low: float
    """The result with the number at its low end."""
    at_high: float

    @property
    def width(self) -> float:
        """How far the result moves."""
        return abs(self.at_high - self.at_low)


def fact(
    name: str, value: float, unit: str, *, source: str, low: float | None = None, high: float | None = None
) -> Traced:
    """A number that somebody published, assumed or asked for."""
    return Traced(name=name, value=float(value), unit=unit, source=source, low=low, high=high)


def derive(name: str, unit: str, formula: str, /, **inputs: Traced) -> Traced:
    """A number that a formula gives.

    Args:
        name: of the result.
        unit: of the result.
        formula: arithmetic of the inputs' keys, with `sqrt`, `max`, `ceil` and their like.
        inputs: every name in the formula.

    >>> derive("power", "W", "nodes * each", nodes=fact("nodes", 4, "", source="asked"),
    ...     each=fact("node power", 10200, "W", source="DGX H100")).value
    40800.0
    """
    return Traced(name=name, value=_evaluate(formula, inputs), unit=unit, formula=formula, inputs=inputs)


def computed(
    name: str,
    value: float,
    unit: str,
    *,
    by: str,
    low: float | None = None,
    high: float | None = None,
    **inputs: Traced,
) -> Traced:
    """A number that a search or a simulation found from its inputs; changing these does not change it."""
    return Traced(name=name, value=float(value), unit=unit, inputs=inputs, source=by, low=low, high=high)


def walk(root: Traced) -> Iterator[Traced]:
    """The number and all that it comes from, each once, results before their inputs."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += item.inputs.values()


def leaves(root: Traced) -> list[Traced]:
    """Numbers that no formula gives."""
    return [item for item in walk(root) if item.formula is None]


def with_changed(root: Traced, changed: Mapping[str, float]) -> Traced:
    """The same number where the leaves of these names have other values; everything between is computed anew."""
    done: dict[int, Traced] = {}

    def visit(item: Traced) -> Traced:
        if id(item) not in done:
            done[id(item)] = _changed_leaf(item, changed) if item.formula is None else _again(item, visit)
        return done[id(item)]

    return visit(root)


def _changed_leaf(item: Traced, changed: Mapping[str, float]) -> Traced:
    return replace(item, value=changed[item.name]) if item.name in changed else item


def _again(item: Traced, visit: Callable[[Traced], Traced]) -> Traced:
    inputs = {name: visit(value) for name, value in item.inputs.items()}
    return replace(item, value=_evaluate(item.formula or "", inputs), inputs=inputs)


def tornado(root: Traced) -> list[Swing]:
    """Every uncertain leaf, the one that moves the result most first; those that move nothing are left out."""
    swings = [
        Swing(
            of=leaf,
            at_low=with_changed(root, {leaf.name: leaf.low}).value,
            at_high=with_changed(root, {leaf.name: leaf.high}).value,
        )
        for leaf in {item.name: item for item in leaves(root)}.values()
        if leaf.low is not None and leaf.high is not None
    ]
    return sorted((swing for swing in swings if swing.width > 0), key=lambda swing: -swing.width)


def _evaluate(formula: str, inputs: Mapping[str, Traced]) -> float:
    values = {name: value.value for name, value in inputs.items()}
    return float(eval(_compiled(formula), {"__builtins__": {}, **_FUNCTIONS}, values))  # noqa: S307, our own text


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")
