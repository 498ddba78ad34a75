"""What a sweep varies: values to choose from and ranges to draw from, by key of the run file."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainworks.config.source import parse_value
from trainworks.errors import RunFileError, UsageError

_RANGE = re.compile(r"\s*(\S+?)\s*\.\.\s*(\S+)\s*")
_LOG_RATIO = 10.0
"""Least ratio of the ends of a positive range that is drawn from on a logarithmic scale."""
_MOST_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Values to try."""

    values: tuple[Any, ...]

    def draw(self, generator: np.random.Generator) -> Any:
        """One of the values, all with the same probability."""
        return self.values[int(generator.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers between two ends, both included."""

    low: float
    high: float
    whole: bool
    """Only whole numbers."""

    @property
    def is_log(self) -> bool:
        """Whether its logarithm is uniform: a positive range over a factor of ten or more."""
        return self.low > 0 and self.high / self.low >= _LOG_RATIO

    def draw(self, generator: np.random.Generator) -> float | int:
        """A number of the range, uniform on its scale."""
        if self.whole and not self.is_log:
            return int(generator.integers(int(self.low), int(self.high) + 1))
        if not self.is_log:
            return float(generator.uniform(self.low, self.high))
        drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return min(int(self.high), max(int(self.low), round(drawn))) if self.whole else drawn


Dimension = Choice | NumberRange
Space = Mapping[str, Dimension]
"""Dimension by key of the run file, in the order in which the user gave them."""


def parse_dimension(key: str, written: Any) -> Dimension:
    """Read `1e-4,3e-4` or a list as values, `1e-5..1e-2` as a range.

    Raises:
        UsageError: no values, or a range with wrong ends.
    """
    if not isinstance(written, str):
        values = tuple(written) if isinstance(written, Sequence) else (written,)
        return _choice(key, values)
    if match := _RANGE.fullmatch(written):
        return _range(key, match[1], match[2])
    try:
        values = parse_value(f"[{written}]")
    except RunFileError:
        raise UsageError(f"`{written}` is not a list of values", place=f"--set {key}") from None
    return _choice(key, tuple(values))


def _choice(key: str, values: tuple[Any, ...]) -> Choice:
    if not values:
        raise UsageError(f"`{key}` has no values", hint=f"write it like `--set {key}=1,2,3`")
    return Choice(values)


def _range(key: str, low: str, high: str) -> NumberRange:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise UsageError(f"`{low}..{high}` is not a range of numbers", place=f"--set {key}") from None
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise UsageError(f"`{low}..{high}` is not a range: {low} is not below {high}", place=f"--set {key}")
    whole = all(re.fullmatch(r"[+-]?\d+", end) is not None for end in (low, high))
    return NumberRange(*ends, whole=whole)


def grid(space: Space) -> list[dict[str, object]]:
    """Every combination of the values; the last key varies fastest.

    Raises:
        UsageError: a dimension is a range, or there are too many combinations.

    >>> grid({"a": Choice((1, 2)), "b": Choice(("x", "y"))})[1]
    {'a': 1, 'b': 'y'}
    """
    for key, dimension in space.items():
        if isinstance(dimension, NumberRange):
            raise UsageError(
                f"a grid needs values of `{key}`, not the range {dimension.low:g}..{dimension.high:g}",
                hint="list values, or draw from the range with `--random N` or `--optuna N`",
            )
    count = math.prod(len(each.values) for each in space.values() if isinstance(each, Choice))
    if count > _MOST_POINTS:
        raise UsageError(f"the grid has {count:,} points, more than {_MOST_POINTS:,}", hint="use `--random N`")
    lists = [each.values for each in space.values() if isinstance(each, Choice)]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]


def random_point(space: Space, seed: int, number: int) -> dict[str, object]:
    """Settings of the trial `number`: a function of (seed, number), so that a continued sweep draws the same."""
    generator = np.random.default_rng([seed, number])
    return {key: dimension.draw(generator) for key, dimension in space.items()}
