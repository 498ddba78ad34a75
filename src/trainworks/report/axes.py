"""Axes: round ticks and their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Axis", "build_axis", "tick_labels"]

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
SMALLEST_WRITTEN_OUT, LARGEST_WRITTEN_OUT = 1e-3, 1e13


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis that ends on round ticks: ascending, evenly spaced, at least two."""

    ticks: tuple[float, ...]

    def percent(self, value: float) -> float:
        """Where a value lies between the first tick (0) and the last (100)."""
        low, high = self.ticks[0], self.ticks[-1]
        return (value - low) / (high - low) * 100


def build_axis(low: float, high: float, *, num_ticks: int = 5, whole: bool = False) -> Axis:
    """The axis with about `num_ticks` round ticks that holds [low, high].

    Args:
        low: smallest value; equal ends are spread by a tenth, or by one.
        high: largest value.
        num_ticks: wished for; the result has between about half and one and a half times as many.
        whole: ticks are whole numbers, for steps.

    >>> build_axis(0, 97).ticks
    (0.0, 25.0, 50.0, 75.0, 100.0)
    """
    if high <= low:
        spread = abs(low) / 10 or 1.0
        low, high = low - spread, high + spread
    step = _round_step((high - low) / max(1, num_ticks - 1), whole=whole)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(tuple(index * step for index in range(first, last + 1)))


def tick_labels(axis: Axis) -> list[str]:
    """Labels with just the decimals that tell the ticks apart; thousands as `k`, millions as `M`.

    Very large and very small values are written with an exponent.

    >>> tick_labels(build_axis(0, 2)), tick_labels(build_axis(0, 40_000))
    (['0', '0.5', '1', '1.5', '2'], ['0', '10k', '20k', '30k', '40k'])
    """
    largest = max(abs(tick) for tick in axis.ticks)
    if not SMALLEST_WRITTEN_OUT <= largest < LARGEST_WRITTEN_OUT:
        return [f"{tick + 0.0:.3g}" for tick in axis.ticks]
    suffixes = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, suffix = next((pair for pair in suffixes if largest >= 10 * pair[0]), (1.0, ""))
    scaled = [tick / size for tick in axis.ticks]
    step = scaled[1] - scaled[0]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (0 if _one_figure(step) else 1))
    return [_label(value, decimals) + (suffix if value else "") for value in scaled]


def _round_step(raw: float, *, whole: bool) -> float:
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in ROUND_STEPS if magnitude * factor >= raw * (1 - 1e-9))
    return max(1.0, math.ceil(step)) if whole else step


def _one_figure(step: float) -> bool:
    figure = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
    return abs(figure - round(figure)) < 1e-6


def _label(value: float, decimals: int) -> str:
    text = f"{value + 0.0:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
