"""Plots as inline SVG: lines over steps, and stacked bars.

No viewBox: positions are percentages and text is in pixels, so that a plot fits any width and its labels stay
readable. Only the curves themselves are stretched, in a nested SVG whose strokes do not scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trainworks.report.axes import Axis, build_axis, tick_labels
from trainworks.report.curves import Line

__all__ = ["Mark", "Segment", "line_plot", "stacked_bar"]

MAX_MARKS = 60
LABEL_SHARE, NARROW_LABEL_SHARE = 0.065, 0.15
"""Shares of a bar from which a segment has room for its label: on a wide page, and on a narrow one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A step at which something happened: `restart` (a line) or `checkpoint` (a tick on the axis)."""

    step: int
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a stacked bar."""

    name: str
    value: float
    label: str


def line_plot(
    lines: Sequence[Line],
    *,
    title: str,
    marks: Sequence[Mark] = (),
    reference: tuple[str, float] | None = None,
    from_zero: bool = False,
) -> str:
    """Values over steps; the empty string without any point.

    Args:
        lines: drawn in order, lost ones as a broad faint stroke under the others.
        title: read aloud instead of the picture.
        marks: restarts and checkpoints; more than 60 of a kind are thinned out evenly.
        reference: label and value of a dashed horizontal line.
        from_zero: the value axis starts at zero.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    values = [value for _, value in points] + ([reference[1]] if reference else []) + ([0.0] if from_zero else [])
    steps = [step for step, _ in points]
    x_axis = build_axis(min(steps) if min(steps) > 1 else 0, max(steps), num_ticks=7, whole=True)
    y_axis = build_axis(min(values), max(values))
    end = x_axis.percent(max(steps))
    parts = [
        _grid(x_axis, y_axis),
        _reference(reference, y_axis) if reference else "",
        "".join(_mark(mark, x_axis) for mark in _thinned(marks) if 0 <= x_axis.percent(mark.step) <= 100),
        _curves(lines, x_axis, y_axis),
    ]
    label = escape(f"{title}, steps {min(steps)} to {max(steps)}, at {end:.0f} % of the axis")
    return f'<svg class="plot" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def stacked_bar(segments: Sequence[Segment], *, whole: float, title: str) -> str:
    """One horizontal bar whose segments are shares of `whole`; each is labelled where there is room.

    Segments of zero are left out. The name of a segment is its colour class and, with the label, its tooltip.
    """
    parts, left = [], 0.0
    for segment in segments:
        share = segment.value / whole if whole > 0 else 0.0
        if share > 0:
            parts.append(_segment(segment, left, share))
            left += share
    return f'<svg class="bar" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    rows = [
        f'<line class="grid" x1="0" x2="100%" y1="{_down(y_axis, tick)}%" y2="{_down(y_axis, tick)}%"/>'
        f'<text class="tick" x="-8" y="{_down(y_axis, tick)}%" dy="0.32em" text-anchor="end">{label}</text>'
        for tick, label in zip(y_axis.ticks, tick_labels(y_axis), strict=True)
    ]
    last = len(x_axis.ticks) - 1
    columns = [
        _step_tick(x_axis.percent(tick), label, from_last=last - index)
        for index, (tick, label) in enumerate(zip(x_axis.ticks, tick_labels(x_axis), strict=True))
    ]
    return "".join(rows + columns)


def _step_tick(percent: float, label: str, *, from_last: int) -> str:
    """The last tick carries the unit; every second one makes room for it on a narrow page."""
    anchor, unit = ("end", " steps") if from_last == 0 else ("middle", "")
    css = "tick wide" if from_last % 2 else "tick"
    return f'<text class="{css}" x="{percent:.2f}%" y="100%" dy="20" text-anchor="{anchor}">{label}{unit}</text>'


def _reference(reference: tuple[str, float], y_axis: Axis) -> str:
    name, value = reference
    y = _down(y_axis, value)
    return (
        f'<line class="reference" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>'
        f'<text class="tick" x="100%" y="{y}%" dy="-6" text-anchor="end">{escape(name)}</text>'
    )


def _mark(mark: Mark, x_axis: Axis) -> str:
    x = f"{x_axis.percent(mark.step):.2f}%"
    top = "96%" if mark.kind == "checkpoint" else "0"
    line = f'<line class="{escape(mark.kind)}" x1="{x}" x2="{x}" y1="{top}" y2="100%">'
    return f"{line}<title>{escape(mark.title)}</title></line>"


def _thinned(marks: Sequence[Mark]) -> list[Mark]:
    kept: list[Mark] = []
    for kind in dict.fromkeys(mark.kind for mark in marks):
        same = [mark for mark in marks if mark.kind == kind]
        stride = -(-len(same) // MAX_MARKS)
        kept += same[::-1][::stride]
    return kept


def _curves(lines: Sequence[Line], x_axis: Axis, y_axis: Axis) -> str:
    paths = "".join(_path(line, x_axis, y_axis) for line in lines if line.points)
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">{paths}</svg>'


def _path(line: Line, x_axis: Axis, y_axis: Axis) -> str:
    corners = [f"{x_axis.percent(s) * 10:.1f} {1000 - y_axis.percent(v) * 10:.1f}" for s, v in line.points]
    # A path of one point is invisible; a zero-length line with round caps is a dot.
    drawn = "M" + "L".join(corners if len(corners) > 1 else corners * 2)
    return f'<path class="{"lost-line" if line.lost else "line"}" d="{drawn}" vector-effect="non-scaling-stroke"/>'


def _segment(segment: Segment, left: float, share: float) -> str:
    name = escape(segment.name)
    tooltip = f"<title>{name} {escape(segment.label)}</title>"
    rect = f'<rect class="fill-{name}" x="{left:.4%}" width="{share:.4%}" height="100%">{tooltip}</rect>'
    if share < LABEL_SHARE:
        return rect
    css = f"on-{name}" if share >= NARROW_LABEL_SHARE else f"on-{name} wide"
    label, middle = escape(segment.label), f"{left + share / 2:.4%}"
    return f'{rect}<text class="{css}" x="{middle}" y="50%" dy="0.34em" text-anchor="middle">{label}</text>'


def _down(y_axis: Axis, value: float) -> str:
    return f"{100 - y_axis.percent(value):.2f}"
