"""Numbers with their origin: a fact and its source, or a formula over other numbers.

Arithmetic on numbers builds the formula that `--explain` prints, so the printed formula and the computed value cannot
differ. Because every number keeps its inputs, one tree answers three questions: how the value is computed, what it
would be if a fact changed (`with_changed`), and which fact moves it most (`tornado`).

    hours = fact("hours per year", 5000.0, "h", source="assumed")
    price = fact("price", 55.04, "USD/h", source="AWS, 2026-11", low=10.24, high=98.32)
    rent = (hours * price).named("rent per year", "USD", hours=hours)
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import TypeAlias


class Expression(ABC):
    """A term of a formula. Operators combine terms and plain numbers; `named` makes a number of the result."""

    __slots__ = ()

    @abstractmethod
    def __float__(self) -> float:
        """Value of the term."""

    def __add__(self, other: Operand) -> Formula:
        return Formula(_ADD, (self, other))

    def __radd__(self, other: Operand) -> Formula:
        return Formula(_ADD, (other, self))

    def __sub__(self, other: Operand) -> Formula:
        return Formula(_SUBTRACT, (self, other))

    def __rsub__(self, other: Operand) -> Formula:
        return Formula(_SUBTRACT, (other, self))

    def __mul__(self, other: Operand) -> Formula:
        return Formula(_MULTIPLY, (self, other))

    def __rmul__(self, other: Operand) -> Formula:
        return Formula(_MULTIPLY, (other, self))

    def __truediv__(self, other: Operand) -> Formula:
        return Formula(_DIVIDE, (self, other))

    def __rtruediv__(self, other: Operand) -> Formula:
        return Formula(_DIVIDE, (other, self))

    def __floordiv__(self, other: Operand) -> Formula:
        return Formula(_FLOOR_DIVIDE, (self, other))

    def __pow__(self, other: Operand) -> Formula:
        return Formula(_POWER, (self, other))

    def __neg__(self) -> Formula:
        return Formula(_NEGATE, (self,))

    def __lt__(self, other: Operand) -> Formula:
        return Formula(_LESS, (self, other))

    def __gt__(self, other: Operand) -> Formula:
        return Formula(_GREATER, (self, other))

    def named(self, name: str, unit: str, /, **symbols: Traced) -> Traced:
        """Number with this term as its formula.

        Args:
            name: of the result.
            unit: of the result.
            symbols: inputs that the printed formula abbreviates, by their symbols. The others appear under their name.

        >>> nodes = fact("nodes", 4, "", source="given")
        >>> each = fact("node power", 10200, "W", source="DGX H100")
        >>> power = (nodes * each).named("power", "W", each=each)
        >>> power.value, power.formula
        (40800.0, 'nodes * each')
        """
        abbreviations = {id(item): symbol for symbol, item in symbols.items()}
        inputs: dict[str, Traced] = {}
        formula = _bind(self, abbreviations, inputs)
        return Traced(name=name, value=_evaluate(formula, inputs), unit=unit, expression=formula, inputs=inputs)


Operand: TypeAlias = Expression | float


@dataclass(frozen=True, slots=True)
class Formula(Expression):
    """An operation on terms."""

    operation: _Operation
    operands: tuple[Operand, ...]

    def __float__(self) -> float:
        return float(self.operation.function(*map(float, self.operands)))

    def __bool__(self) -> bool:
        return bool(float(self))

    def __str__(self) -> str:
        return self.operation.text(*self.operands)


@dataclass(frozen=True, slots=True)
class _Symbol(Expression):
    key: str

    def __float__(self) -> float:
        raise TypeError(f"`{self.key}` has a value only among the inputs of a formula")

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class _Operation:
    symbol: str
    function: Callable[..., float]
    precedence: int
    """Higher binds tighter, as in Python."""

    def text(self, *operands: Operand) -> str:
        if self.precedence == _CALL:
            return f"{self.symbol}({', '.join(map(str, operands))})"
        if self.precedence == _CONDITIONAL:
            condition, value, otherwise = operands
            return f"{value} if {condition} else {otherwise}"
        if self is _NEGATE:
            return f"-{_parenthesised(operands[0], self.precedence)}"
        left, right = operands
        return f"{_parenthesised(left, self.precedence)} {self.symbol} {_parenthesised(right, self.precedence + 1)}"


def _parenthesised(operand: Operand, precedence: int) -> str:
    loose = isinstance(operand, Formula) and operand.operation.precedence < precedence
    return f"({operand})" if loose else str(operand)


_CONDITIONAL, _COMPARISON, _SUM, _PRODUCT, _UNARY, _RAISED, _CALL = range(7)
_ADD = _Operation("+", operator.add, _SUM)
_SUBTRACT = _Operation("-", operator.sub, _SUM)
_MULTIPLY = _Operation("*", operator.mul, _PRODUCT)
_DIVIDE = _Operation("/", operator.truediv, _PRODUCT)
_FLOOR_DIVIDE = _Operation("//", operator.floordiv, _PRODUCT)
_POWER = _Operation("**", operator.pow, _RAISED)
_NEGATE = _Operation("-", operator.neg, _UNARY)
_LESS = _Operation("<", operator.lt, _COMPARISON)
_GREATER = _Operation(">", operator.gt, _COMPARISON)
_WHERE = _Operation("if", lambda condition, value, otherwise: value if condition else otherwise, _CONDITIONAL)


def ceil(term: Operand) -> Formula:
    """Smallest integer not below the term."""
    return Formula(_Operation("ceil", math.ceil, _CALL), (term,))


def exp(term: Operand) -> Formula:
    """Exponential function."""
    return Formula(_Operation("exp", math.exp, _CALL), (term,))


def expm1(term: Operand) -> Formula:
    """exp(term) - 1, precise near 0."""
    return Formula(_Operation("expm1", math.expm1, _CALL), (term,))


def log(term: Operand) -> Formula:
    """Natural logarithm."""
    return Formula(_Operation("log", math.log, _CALL), (term,))


def sqrt(term: Operand) -> Formula:
    """Square root."""
    return Formula(_Operation("sqrt", math.sqrt, _CALL), (term,))


def maximum(*terms: Operand) -> Formula:
    """Largest of the terms."""
    return Formula(_Operation("max", max, _CALL), terms)


def minimum(*terms: Operand) -> Formula:
    """Smallest of the terms."""
    return Formula(_Operation("min", min, _CALL), terms)


def where(condition: Formula, value: Operand, otherwise: Operand) -> Formula:
    """Value if the condition holds, else the other term. Both are evaluated."""
    return Formula(_WHERE, (condition, value, otherwise))


def total(*terms: Expression) -> Expression:
    """Sum of at least one term."""
    return reduce(operator.add, terms)


@dataclass(frozen=True, slots=True)
class Traced(Expression):
    """A number, its unit and its origin. Made by `fact`, `computed` and `Expression.named`."""

    name: str
    value: float
    unit: str
    """`s`, `bytes`, `bytes/s`, `USD`, `USD/h`, `W`, `kWh` ...; empty for a plain number or share."""
    expression: Operand | None = None
    """Formula over the keys of `inputs`; None for a fact and for the result of a search or simulation."""
    inputs: Mapping[str, Traced] = field(default_factory=lambda: MappingProxyType({}))
    source: str | None = None
    """Publication of a fact, with date; the search or simulation of a computed number."""
    low: float | None = None
    high: float | None = None
    """Plausible range of the value; None if unknown."""

    def __float__(self) -> float:
        return self.value

    @property
    def formula(self) -> str | None:
        """Text of the formula; None for a fact and for the result of a search or simulation."""
        return None if self.expression is None else str(self.expression)


@dataclass(frozen=True, slots=True)
class Swing:
    """Effect of one uncertain number on a result."""

    of: Traced
    at_low: float
    """The result with the number at its low end."""
    at_high: float

    @property
    def width(self) -> float:
        """Distance between the two results."""
        return abs(self.at_high - self.at_low)


def fact(
    name: str, value: float, unit: str, *, source: str, low: float | None = None, high: float | None = None
) -> Traced:
    """A published, assumed or given number."""
    return Traced(name=name, value=float(value), unit=unit, source=source, low=low, high=high)


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
    """Result of a search or simulation over the inputs. `with_changed` does not repeat the search."""
    return Traced(name=name, value=float(value), unit=unit, inputs=inputs, source=by, low=low, high=high)


def walk(root: Traced) -> Iterator[Traced]:
    """The number and its transitive inputs, each once, results before their inputs."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += item.inputs.values()


def leaves(root: Traced) -> list[Traced]:
    """Numbers without a formula."""
    return [item for item in walk(root) if item.expression is None]


def with_changed(root: Traced, changed: Mapping[str, float]) -> Traced:
    """The number recomputed with new values for the leaves of these names."""
    done: dict[int, Traced] = {}

    def visit(item: Traced) -> Traced:
        if id(item) not in done:
            done[id(item)] = recompute(item)
        return done[id(item)]

    def recompute(item: Traced) -> Traced:
        if item.expression is None:
            return replace(item, value=changed[item.name]) if item.name in changed else item
        inputs = {key: visit(value) for key, value in item.inputs.items()}
        return replace(item, value=_evaluate(item.expression, inputs), inputs=inputs)

    return visit(root)


def tornado(root: Traced) -> list[Swing]:
    """Effect of every uncertain leaf, widest first, without those that change nothing."""
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


def symbol_of(name: str) -> str:
    """Symbol of a number in formulas that do not abbreviate it.

    >>> symbol_of("dataset read")
    'dataset_read'
    """
    return name.replace(" ", "_")


def _bind(term: Operand, abbreviations: Mapping[int, str], inputs: dict[str, Traced]) -> Operand:
    """The term with symbols in place of numbers, which it adds to the inputs in order of appearance."""
    if isinstance(term, Formula):
        return Formula(term.operation, tuple(_bind(each, abbreviations, inputs) for each in term.operands))
    if not isinstance(term, Traced):
        return term
    symbol = abbreviations.get(id(term)) or symbol_of(term.name)
    if inputs.setdefault(symbol, term).value != term.value:
        raise ValueError(f"two inputs of one formula are called `{symbol}`: abbreviate one of them")
    return _Symbol(symbol)


def _evaluate(term: Operand, inputs: Mapping[str, Traced]) -> float:
    if isinstance(term, _Symbol):
        return inputs[term.key].value
    if isinstance(term, Formula):
        return float(term.operation.function(*[_evaluate(each, inputs) for each in term.operands]))
    return float(term)
