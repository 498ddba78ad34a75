"""Plots as inline SVG: charts of two axes, stacked bars, ranges, and drawings.

No viewBox: positions are percentages and text is in pixels, so that a plot fits any width and its labels stay
readable. Only the curves themselves are stretched, in a nested SVG whose strokes do not scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal
from xml.etree.ElementTree import Element

from trainworks.record.metric_columns import thinned
from trainworks.report.rendering.axes import Axis
from trainworks.report.rendering.document import Plot
from trainworks.report.rendering.svg import element, percent, with_title

_MAX_MARKS = 60
_LABEL_SHARE, _NARROW_LABEL_SHARE = 0.065, 0.15
"""Shares of a bar from which a segment has room for its label: on a wide page, and on a narrow one."""
_LABEL_ROOM = 9.0
"""Percent of the width of a range that is left free on either side for the values."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points."""

    css: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Dot:
    """One point with a tooltip."""

    x: float
    y: float
    title: str
    css: str = "dot"
    radius: int = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across the chart at a value of one axis."""

    axis: Literal["x", "y"]
    value: float
    label: str
    css: str = "reference"


@dataclass(frozen=True, slots=True)
class ShadedRange:
    """A range of the vertical axis across the chart."""

    low: float
    high: float
    title: str
    css: str = "interval"


@dataclass(frozen=True, slots=True)
class Mark:
    """A step at which something happened: `restart` (a line) or `checkpoint` (a tick on the axis)."""

    step: int
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Chart(Plot):
    """Curves, dots and marks between two axes; later ones are drawn over earlier ones."""

    title: str
    """Read aloud instead of the picture."""
    x: Axis
    y: Axis
    x_unit: str = ""
    """After the label of the last tick."""
    y_unit: str = ""
    bands: Sequence[ShadedRange] = ()
    curves: Sequence[Curve] = ()
    dots: Sequence[Dot] = ()
    rules: Sequence[Rule] = ()
    marks: Sequence[Mark] = ()
    """More than 60 of a kind are thinned out evenly."""
    names: Sequence[tuple[str, str]] = ()
    """CSS class and name of each kind of mark."""
    is_tall: bool = False
    metric: str = ""
    """Metric of one run that the curves show, by its name in the API; empty for anything else."""

    def picture(self) -> Element | None:
        """The chart as `<svg>`; None without a curve or dot."""
        if not self.dots and not any(curve.points for curve in self.curves):
            return None
        parts = [
            *map(self._shaded, self.bands),
            *self._rows(),
            *self._columns(),
            *map(self._rule, self.rules),
            *(self._mark(mark) for mark in _thinned(self.marks) if 0 <= self.x.percent(mark.step) <= 100),
            *self._curves(),
            *map(self._dot, self.dots),
        ]
        css = "plot tall" if self.is_tall else "plot"
        return element("div", element("svg", *parts, css=css, role="img", aria_label=self.title), css="frame")

    def key(self) -> Sequence[tuple[str, str]]:
        """CSS class and name of each kind of mark."""
        return self.names

    def thinned(self, points: int, marks: int) -> Chart:
        """The same chart with at most so many points of a curve, every spike among them, and marks of a kind."""
        kept = [(curve, thinned([y for _, y in curve.points], points).tolist()) for curve in self.curves]
        curves = [replace(curve, points=[curve.points[place] for place in places]) for curve, places in kept]
        return replace(self, curves=curves, marks=_thinned(self.marks, marks))

    def _depth(self, value: float) -> float:
        return 100 - self.y.percent(value)

    def _rows(self) -> Iterator[Element]:
        for position, label in self.y.labelled_ticks():
            y = percent(100 - position)
            yield element("line", css="grid", x1=0, x2="100%", y1=y, y2=y)
            yield element("text", css="tick", x=-8, y=y, dy="0.32em", text_anchor="end", text=label)
        if self.y_unit:
            yield element("text", css="tick", x=0, y="0%", dy=-10, text=self.y_unit)

    def _columns(self) -> Iterator[Element]:
        """The last label carries the unit; every second one makes room for it on a narrow page."""
        for from_last, (position, label) in enumerate(reversed(self.x.labelled_ticks())):
            anchor, unit = ("end", self.x_unit) if from_last == 0 and self.x_unit else ("middle", "")
            css = "tick wide" if from_last % 2 else "tick"
            text = f"{label} {unit}" if unit else label
            yield element("text", css=css, x=percent(position), y="100%", dy=20, text_anchor=anchor, text=text)

    def _shaded(self, band: ShadedRange) -> Element:
        height = percent(self.y.percent(band.high) - self.y.percent(band.low))
        rect = element("rect", css=band.css, x=0, width="100%", y=percent(self._depth(band.high)), height=height)
        return with_title(rect, band.title)

    def _rule(self, rule: Rule) -> Element:
        if rule.axis == "y":
            y = percent(self._depth(rule.value))
            line = element("line", css=rule.css, x1=0, x2="100%", y1=y, y2=y)
            label = element("text", css="tick", x="100%", y=y, dy=-6, text_anchor="end", text=rule.label)
        else:
            at = self.x.percent(rule.value)
            anchor, shift = ("end", -6) if at > 50 else ("start", 6)
            x = percent(at)
            line = element("line", css=rule.css, x1=x, x2=x, y1=0, y2="100%")
            label = element("text", css="tick", x=x, y="92%", dx=shift, text_anchor=anchor, text=rule.label)
        return element("g", line, label)

    def _mark(self, mark: Mark) -> Element:
        x, top = percent(self.x.percent(mark.step)), "96%" if mark.css == "checkpoint" else "0"
        return with_title(element("line", css=mark.css, x1=x, x2=x, y1=top, y2="100%"), mark.title)

    def _curves(self) -> Iterator[Element]:
        paths = [self._path(curve) for curve in self.curves if curve.points]
        if paths:
            frame = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none", "width": "100%", "height": "100%"}
            yield element("svg", *paths, **frame)

    def _path(self, curve: Curve) -> Element:
        corners = [f"{self.x.percent(x) * 10:.1f} {self._depth(y) * 10:.1f}" for x, y in curve.points]
        # A path of one point is invisible; a zero-length line with round caps is a dot.
        drawn = "M" + "L".join(corners if len(corners) > 1 else corners * 2)
        return element("path", css=curve.css, d=drawn, vector_effect="non-scaling-stroke")

    def _dot(self, dot: Dot) -> Element:
        cx, cy = percent(self.x.percent(dot.x)), percent(self._depth(dot.y))
        return with_title(element("circle", css=dot.css, cx=cx, cy=cy, r=dot.radius), dot.title)


@dataclass(frozen=True, slots=True)
class LiveChart(Plot):
    """A chart of one metric of runs that a script replaces by one to zoom in; the drawing stays where none runs."""

    chart: Chart
    runs: Sequence[str]
    """Names of the runs in the API."""
    metric: str

    def picture(self) -> Element | None:
        """The drawing, with what the script needs beside the values that it asks for; None without a curve or dot."""
        chart, drawn = self.chart, self.chart.picture()
        if drawn is None:
            return None
        held_out = [curve for curve in chart.curves if curve.css.startswith("eval-line")]
        names = [name for css, name in chart.names if css.startswith("key eval-key")]
        facts = {
            "runs": list(self.runs),
            "metric": self.metric,
            "title": chart.title,
            "marks": [[mark.step, mark.css, mark.title] for mark in chart.marks],
            "bands": [[band.low, band.high, band.title] for band in chart.bands],
            "rules": [[rule.value, rule.label] for rule in chart.rules if rule.axis == "y"],
            "heldOut": [[name, list(curve.points)] for name, curve in zip(names, held_out, strict=False)],
        }
        return element("div", drawn, css="live-chart", data_chart=json.dumps(facts))

    def key(self) -> Sequence[tuple[str, str]]:
        """CSS class and name of each kind of mark in the drawing."""
        return self.chart.names


def step_path(points: Sequence[Point], top: float, last: float) -> list[Point]:
    """Corners of a staircase from `top` down through the points, which ascend in x, and on to `last`."""
    corners = [(points[0][0], top), points[0]]
    for (_, y), (x, next_y) in pairwise(points):
        corners += [(x, y), (x, next_y)]
    return [*corners, (last, points[-1][1])]


def _thinned(marks: Sequence[Mark], most: int = _MAX_MARKS) -> list[Mark]:
    """At most so many marks of each kind, the last one among them."""
    kept: list[Mark] = []
    for css in dict.fromkeys(mark.css for mark in marks):
        same = [mark for mark in marks if mark.css == css]
        kept += same[:: len(same) // -most]
    return kept


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar; its name is its colour class and, with the label, its tooltip."""

    name: str
    value: float
    label: str
    fill: str = ""
    """Colour class, where the name is not one."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar with its name and total; segments of zero are left out."""

    name: str
    total: str
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Bars(Plot):
    """Horizontal bars below each other on one scale."""

    bars: Sequence[Bar]
    whole: float | None = None
    """Value of a full width; None for the longest bar."""
    has_key: bool = True
    is_compact: bool = False
    """Name, bar and total on one line."""
    least_share: float = 0.0
    """Share of the whole from which a segment is in the key."""

    def picture(self) -> Element | None:
        """The bars; None without any."""
        if not self.bars:
            return None
        whole = self._whole()
        if self.is_compact:
            rows = [part for bar in self.bars for part in (*_caption(bar), _stacked(bar, whole))]
            return element("div", *rows, css="bars")
        rows = []
        for bar in self.bars:
            name = [element("p", *_caption(bar), css="name")] if bar.name or bar.total else []
            rows.append(element("div", *name, _stacked(bar, whole)))
        return element("div", *rows, css="rows")

    def key(self) -> Sequence[tuple[str, str]]:
        """Colour and name of every segment that some bar has."""
        least = self.least_share * self._whole()
        shown = {
            segment.name: segment.fill or segment.name
            for bar in self.bars
            for segment in bar.segments
            if segment.value > least
        }
        return [(f"swatch fill-{fill}", name) for name, fill in shown.items()] if self.has_key else []

    def _whole(self) -> float:
        sums = [sum(segment.value for segment in bar.segments) for bar in self.bars]
        return max(sums, default=0.0) if self.whole is None else self.whole


def _caption(bar: Bar) -> tuple[Element, ...]:
    return element("span", text=bar.name), element("b", text=bar.total)


def _stacked(bar: Bar, whole: float) -> Element:
    parts: list[Element] = []
    left = 0.0
    for segment in bar.segments:
        share = segment.value / whole if whole > 0 else 0.0
        if share > 0:
            parts += _segment(segment, left, share)
            left += share
    return element("svg", *parts, css="bar", role="img", aria_label=f"{bar.name}: {bar.total}")


def _segment(segment: Segment, left: float, share: float) -> Iterator[Element]:
    fill = segment.fill or segment.name
    rect = element("rect", css=f"fill-{fill}", x=f"{left:.4%}", width=f"{share:.4%}", height="100%")
    yield with_title(rect, f"{segment.name} {segment.label}")
    if share >= _LABEL_SHARE:
        css = f"on-{fill}" if share >= _NARROW_LABEL_SHARE else f"on-{fill} wide"
        middle = f"{left + share / 2:.4%}"
        yield element("text", css=css, x=middle, y="50%", dy="0.34em", text_anchor="middle", text=segment.label)


@dataclass(frozen=True, slots=True)
class Range:
    """What a result would be with one assumption at either end of its range."""

    name: str
    about: str
    """The range of the assumption."""
    at_low: float
    at_high: float


@dataclass(frozen=True, slots=True)
class Ranges(Plot):
    """A tornado chart: one row per assumption on one scale, each a bar from the result at one end to the other."""

    base: float
    ranges: Sequence[Range]
    labels: Mapping[float, str]
    """Text of every value."""

    def picture(self) -> Element | None:
        """The rows; None without any."""
        if not self.ranges:
            return None
        ends = [self.base, *(end for each in self.ranges for end in (each.at_low, each.at_high))]
        low, width = min(ends), (max(ends) - min(ends)) or 1.0

        def position(value: float) -> float:
            return _LABEL_ROOM + (value - low) / width * (100 - 2 * _LABEL_ROOM)

        rows = []
        for each in self.ranges:
            rows.append(element("div", element("p", text=each.name), element("p", css="soft", text=each.about)))
            first, last = sorted((each.at_low, each.at_high))
            middle = position(self.base)
            parts = [
                self._half(middle, position(each.at_low), "fill-compute", each.name, each.at_low),
                self._half(middle, position(each.at_high), "fill-start", each.name, each.at_high),
                element("line", css="base", x1=percent(middle), x2=percent(middle), y1=0, y2="100%"),
                self._label(position(min(first, self.base)), first, "end"),
                self._label(position(max(last, self.base)), last, "start"),
            ]
            label = f"{each.name}: {self.labels[each.at_low]} to {self.labels[each.at_high]}"
            rows.append(element("svg", *parts, role="img", aria_label=label))
        return element("div", *rows, css="tornado")

    def key(self) -> Sequence[tuple[str, str]]:
        """The two ends of a range."""
        return [("swatch fill-compute", "at the low end"), ("swatch fill-start", "at the high end")]

    def _half(self, middle: float, end: float, css: str, name: str, value: float) -> Element:
        x, width = percent(min(middle, end)), percent(abs(end - middle))
        rect = element("rect", css=css, x=x, width=width, y="20%", height="60%")
        return with_title(rect, f"{name}: {self.labels[value]}")

    def _label(self, x: float, value: float, anchor: str) -> Element:
        shift = -6 if anchor == "end" else 6
        text = self.labels[value]
        return element("text", x=percent(x), dx=shift, y="50%", dy="0.34em", text_anchor=anchor, text=text)


@dataclass(frozen=True, slots=True)
class Drawing(Plot):
    """A picture that was drawn elsewhere."""

    drawing: Element

    def picture(self) -> Element | None:
        """The picture, which scrolls where the page is too narrow."""
        return element("div", self.drawing, css="drawing")
