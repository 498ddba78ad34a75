"""Parallel coordinates: an upright axis per quantity, and a line per thing through its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from trainworks.report.rendering.document import Plot
from trainworks.report.rendering.svg import element, percent, with_title

_LOG_RATIO = 10.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class UprightAxis:
    """One axis: where each value stands between its lower (0) and its upper end (1)."""

    name: str
    ticks: Sequence[tuple[float, str]]
    positions: Sequence[float | None]
    """Position of each line; None for one without a value."""


def upright_axis(name: str, values: Sequence[object]) -> UprightAxis:
    """The axis of these values: numbers by their size, by their logarithm over a wide range, others as they come.

    >>> upright_axis("lr", [0.1, 0.001, None, 0.01]).positions
    [1.0, 0.0, None, 0.5]
    >>> upright_axis("optimizer", ["adamw", "sgd"]).ticks
    [(0.0, 'adamw'), (1.0, 'sgd')]
    """
    known = [value for value in values if value is not None]
    numbers = [float(value) for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(known) or not all(map(math.isfinite, numbers)):
        kinds = list(dict.fromkeys(str(value) for value in known))
        place = {kind: index / max(1, len(kinds) - 1) if len(kinds) > 1 else 0.5 for index, kind in enumerate(kinds)}
        ticks = [(place[kind], kind) for kind in kinds]
        return UprightAxis(name, ticks, [None if value is None else place[str(value)] for value in values])
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    is_log = low > 0 and high / low >= _LOG_RATIO

    def position(value: float) -> float:
        if high == low:
            return 0.5
        return math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)

    ends = [low] if high == low else [low, math.sqrt(low * high) if is_log else (low + high) / 2, high]
    ticks = [(position(end), f"{end:.3g}") for end in ends] if numbers else []
    remaining = iter(numbers)
    positions = [None if value is None else round(position(next(remaining)), 9) for value in values]
    return UprightAxis(f"{name}, log" if is_log else name, ticks, positions)


@dataclass(frozen=True, slots=True)
class ParallelCoordinates(Plot):
    """Lines through upright axes side by side; later lines are drawn over earlier ones."""

    title: str
    """Read aloud instead of the picture."""
    axes: Sequence[UprightAxis]
    lines: Sequence[tuple[int, str, str]]
    """Index into the positions of the axes, CSS class and tooltip of each line."""
    names: Sequence[tuple[str, str]] = ()
    """CSS class and name of each kind of line."""

    def picture(self) -> Element | None:
        """The picture; None with fewer than two axes or without a line."""
        if len(self.axes) < 2 or not self.lines:
            return None
        parts: list[Element] = []
        for index, axis in enumerate(self.axes):
            x = percent(self._x(index))
            anchor = "start" if index == 0 else "end" if index == len(self.axes) - 1 else "middle"
            parts.append(element("line", css="axis", x1=x, x2=x, y1=0, y2="100%"))
            parts.append(element("text", css="name", x=x, y=-14, text_anchor=anchor, text=axis.name))
        frame = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}
        paths = [self._path(number, css, title) for number, css, title in self.lines]
        parts.append(element("svg", *paths, **frame))
        for index, axis in enumerate(self.axes):
            side, shift = ("end", -6) if index == len(self.axes) - 1 else ("start", 6)
            for position, label in axis.ticks:
                y = percent(100 - 100 * position)
                x = percent(self._x(index))
                parts.append(element("text", css="tick", x=x, dx=shift, y=y, dy="0.32em", text_anchor=side, text=label))
        picture = element("svg", *parts, css="plot tall", role="img", aria_label=self.title)
        return element("div", picture, css="frame parallel")

    def key(self) -> Sequence[tuple[str, str]]:
        """CSS class and name of each kind of line."""
        return self.names

    def _x(self, index: int) -> float:
        return 100 * index / (len(self.axes) - 1)

    def _path(self, number: int, css: str, title: str) -> Element:
        drawn, is_on = "", False
        for index, axis in enumerate(self.axes):
            position = axis.positions[number]
            if position is None:
                is_on = False
                continue
            drawn += f"{'L' if is_on else 'M'}{10 * self._x(index):.1f} {1000 - 1000 * position:.1f}"
            is_on = True
        return with_title(element("path", css=css, d=drawn, vector_effect="non-scaling-stroke"), title)
