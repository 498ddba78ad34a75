"""Axes of a plot: round ticks, their labels, and where a value lies between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_SMALLEST_WRITTEN_OUT, _LARGEST_WRITTEN_OUT = 1e-3, 1e13


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis between its ends; `build_axis` makes one with round ticks."""

    ticks: tuple[float, ...]
    """Ascending, at least two of them on a linear axis."""
    labels: tuple[str, ...] = ()
    scale: Callable[[float], float] = field(default=float)
    """Monotonic; the position of a value is linear in it."""
    end: float | None = None
    """Last value of the axis; None for the last tick."""

    def percent(self, value: float) -> float:
        """Position of a value between the first tick (0) and the end (100)."""
        low, high = self.scale(self.ticks[0]), self.scale(self.ticks[-1] if self.end is None else self.end)
        return (self.scale(value) - low) / (high - low) * 100

    def labelled_ticks(self) -> list[tuple[float, str]]:
        """Position and label of every tick."""
        labels = self.labels or tick_labels(self)
        return [(self.percent(tick), label) for tick, label in zip(self.ticks, labels, strict=True)]


def build_axis(low: float, high: float, *, num_ticks: int = 5, whole: bool = False) -> Axis:
    """The linear axis with about `num_ticks` round ticks that contains [low, high].

    Args:
        low: smallest value; equal ends are spread by a tenth, or by one.
        high: largest value.
        num_ticks: a target; the result has between about half and one and a half times as many.
        whole: ticks are whole numbers, for steps.

    >>> build_axis(0, 97).ticks
    (0.0, 25.0, 50.0, 75.0, 100.0)
    """
    if high <= low:
        spread = abs(low) / 10 or 1.0
        low, high = low - spread, high + spread
    raw = (high - low) / max(1, num_ticks - 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in _ROUND_STEPS if magnitude * factor >= raw * (1 - 1e-9))
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(tuple(index * step for index in range(first, last + 1)))


def labelled_axis(ticks: Mapping[str, float], end: float, scale: Callable[[float], float]) -> Axis:
    """The axis with given ticks by label up to `end`; those beyond it are left out."""
    shown = {label: value for label, value in ticks.items() if value <= end}
    return Axis(tuple(shown.values()), tuple(shown), scale, end)


def tick_labels(axis: Axis) -> list[str]:
    """Labels with just the decimals that tell the ticks apart; thousands as `k`, millions as `M`.

    Very large and very small values are written with an exponent.

    >>> tick_labels(build_axis(0, 2)), tick_labels(build_axis(0, 40_000))
    (['0', '0.5', '1', '1.5', '2'], ['0', '10k', '20k', '30k', '40k'])
    """
    largest = max(abs(tick) for tick in axis.ticks)
    if not _SMALLEST_WRITTEN_OUT <= largest < _LARGEST_WRITTEN_OUT:
        return [f"{tick + 0.0:.3g}" for tick in axis.ticks]
    suffixes = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, suffix = next((pair for pair in suffixes if largest >= 10 * pair[0]), (1.0, ""))
    scaled = [tick / size for tick in axis.ticks]
    step = scaled[1] - scaled[0]
    exponent = math.floor(math.log10(step) + 1e-9)
    digit = step / 10.0**exponent
    decimals = max(0, -exponent + (0 if abs(digit - round(digit)) < 1e-6 else 1))
    texts = [f"{value + 0.0:,.{decimals}f}" for value in scaled]
    shortest = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    return [text + (suffix if value else "") for text, value in zip(shortest, scaled, strict=True)]
