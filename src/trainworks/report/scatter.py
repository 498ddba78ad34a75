"""Points of two amounts as inline SVG: what costs how much and takes how long, with the front of what nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from trainworks.report.axes import Axis, build_axis, tick_labels

__all__ = ["SCATTER_RULES", "Dot", "scatter_plot"]

SCATTER_RULES = """
svg.plot .dot { fill: var(--soft); opacity: 0.45; } svg.plot .dot.front { fill: #0072b2; opacity: 1; }
svg.plot .dot.chosen { fill: #d55e00; opacity: 1; }
svg.plot .front-line { fill: none; stroke: #0072b2; stroke-width: 1.5; }
svg.plot .axis-name { fill: var(--soft); font-size: 12px; }
"""
"""Style of the points, beside the style sheet of the page."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One point; `front` and `chosen` are drawn over the others."""

    x: float
    y: float
    title: str
    front: bool = False
    chosen: bool = False


def scatter_plot(dots: Sequence[Dot], *, x_name: str, y_name: str) -> str:
    """Both axes start at zero; the points of the front are joined. The empty string without any point.

    Args:
        dots: in any order.
        x_name: amount and unit of the horizontal axis.
        y_name: of the vertical one.
    """
    if not dots:
        return ""
    x_axis, y_axis = build_axis(0, max(dot.x for dot in dots), num_ticks=7), build_axis(0, max(dot.y for dot in dots))
    ordered = sorted(dots, key=lambda dot: (dot.front, dot.chosen))
    points = "".join(_point(dot, x_axis, y_axis) for dot in ordered)
    label = escape(f"{y_name} over {x_name}, {len(dots)} points")
    drawn = f"{_grid(x_axis, y_axis)}{_front(dots, x_axis, y_axis)}{points}{_names(x_name, y_name)}"
    return f'<svg class="plot" role="img" aria-label="{label}">{drawn}</svg>'


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    rows = (
        f'<line class="grid" x1="0" x2="100%" y1="{_down(y_axis, tick)}" y2="{_down(y_axis, tick)}"/>'
        f'<text class="tick" x="-8" y="{_down(y_axis, tick)}" dy="0.32em" text-anchor="end">{label}</text>'
        for tick, label in zip(y_axis.ticks, tick_labels(y_axis), strict=True)
    )
    columns = (
        f'<text class="tick" x="{x_axis.percent(tick):.2f}%" y="100%" dy="20" text-anchor="middle">{label}</text>'
        for tick, label in zip(x_axis.ticks, tick_labels(x_axis), strict=True)
    )
    return "".join([*rows, *columns])


def _names(x_name: str, y_name: str) -> str:
    return (
        f'<text class="axis-name" x="100%" y="0" dy="14" text-anchor="end">to the right: {escape(x_name)}</text>'
        f'<text class="axis-name" x="4" y="0" dy="14">upwards: {escape(y_name)}</text>'
    )


def _front(dots: Sequence[Dot], x_axis: Axis, y_axis: Axis) -> str:
    front = sorted((dot.x, dot.y) for dot in dots if dot.front)
    if len(front) < 2:
        return ""
    corners = "L".join(f"{x_axis.percent(x) * 10:.1f} {1000 - y_axis.percent(y) * 10:.1f}" for x, y in front)
    path = f'<path class="front-line" d="M{corners}" vector-effect="non-scaling-stroke"/>'
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">{path}</svg>'


def _point(dot: Dot, x_axis: Axis, y_axis: Axis) -> str:
    css = " ".join(["dot", *(["front"] if dot.front else []), *(["chosen"] if dot.chosen else [])])
    radius = 6 if dot.chosen else 4
    at = f'cx="{x_axis.percent(dot.x):.2f}%" cy="{_down(y_axis, dot.y)}"'
    return f'<circle class="{css}" {at} r="{radius}"><title>{escape(dot.title)}</title></circle>'


def _down(y_axis: Axis, value: float) -> str:
    return f"{100 - y_axis.percent(value):.2f}%"
