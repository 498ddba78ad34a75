"""Policies of one trace as a page: what each costs, how long jobs wait, and the front that nothing beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.report.axes import Axis, build_axis, tick_labels
from trainworks.report.style import html_page
from trainworks.units import DAY_S, HOUR_S, WEEK_S, format_duration, format_usd

__all__ = ["PolicyPoint", "render_capacity_page", "write_capacity_page"]

_TICKS_S = {
    "0": 0.0,
    "1m": 60.0,
    "10m": 600.0,
    "1h": HOUR_S,
    "4h": 14400.0,
    "1d": DAY_S,
    "1w": WEEK_S,
    "8w": 4838400.0,
}
"""Of the wait; its axis is logarithmic above a minute and linear below."""


@dataclass(frozen=True, slots=True)
class PolicyPoint:
    """One policy of the page, in base units."""

    kind: str
    """`fixed`, `on-demand`, `spot` or `both`: what it may buy beside fixed nodes."""
    text: str
    """What is bought, in words."""
    cost_usd_per_week: float
    wait_p90_s: float
    on_front: bool


def write_capacity_page(
    path: Path, *, title: str, about: str, points: Sequence[PolicyPoint], target_s: float | None
) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_capacity_page(title=title, about=about, points=points, target_s=target_s))


def render_capacity_page(*, title: str, about: str, points: Sequence[PolicyPoint], target_s: float | None) -> str:
    """The whole page: a dot per policy, the front as steps, a dashed line at the target, and the front as a table."""
    body = (
        f'<header><h1>{escape(title)}</h1><p class="about">{escape(about)}</p></header>'
        "<section><h2>Cost against wait</h2>"
        f'<p class="soft">{_ABOUT}</p>'
        f'<figure><div class="frame">{_plot(points, target_s)}</div><figcaption>{_key(points)}</figcaption></figure>'
        f"</section><section><h2>Nothing beats these in both</h2>{_table(points)}</section>"
    )
    return html_page(title, "capacity", body, rules=_RULES)


_ABOUT = (
    "One dot per policy, replayed on the same jobs. Upwards: the wait that 90 % of every team's jobs do not exceed, "
    "logarithmic above a minute. To the right: USD per week. Nothing lies below and left of the line."
)
_COLOURS = {"fixed": "#0072b2", "on-demand": "#e69f00", "spot": "#009e73", "both": "#cc79a7"}
_NAMES = {
    "fixed": "fixed nodes alone",
    "on-demand": "with on-demand nodes",
    "spot": "with spot nodes",
    "both": "with spot and on-demand nodes",
}
_RULES = """
svg.plot { height: 420px; } .frame { padding-bottom: 46px; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.25; }
circle { fill-opacity: 0.35; } circle.best { fill-opacity: 1; stroke: var(--paper); stroke-width: 1.5; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 8px; }
""" + "\n".join(f".of-{name} {{ fill: {colour}; background: {colour}; }}" for name, colour in _COLOURS.items())


def _plot(points: Sequence[PolicyPoint], target_s: float | None) -> str:
    waits = [point.wait_p90_s for point in points] + ([target_s] if target_s is not None else [])
    top = _height(max(waits, default=0.0)) * 1.04 or 1.0
    costs = [point.cost_usd_per_week for point in points]
    x_axis = build_axis(0.0, max(costs, default=1.0), num_ticks=7)
    drawn = sorted(points, key=lambda point: point.on_front)
    parts = [
        _rows(top),
        _columns(x_axis),
        "" if target_s is None else _target(target_s, top),
        _steps([point for point in drawn if point.on_front], x_axis, top),
        "".join(_dot(point, x_axis, top) for point in drawn),
    ]
    label = (
        f"Cost against wait of {len(points)} policies, {sum(point.on_front for point in points)} of them on the front"
    )
    return f'<svg class="plot" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _height(wait_s: float) -> float:
    return math.log1p(wait_s / 60.0)


def _down(wait_s: float, top: float) -> str:
    return f"{100 - 100 * _height(wait_s) / top:.2f}%"


def _rows(top: float) -> str:
    shown = [(label, _down(wait_s, top)) for label, wait_s in _TICKS_S.items() if _height(wait_s) <= top]
    return "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="-8" y="{y}" dy="0.32em" text-anchor="end">{label}</text>'
        for label, y in shown
    )


def _columns(x_axis: Axis) -> str:
    last = len(x_axis.ticks) - 1
    texts = []
    for index, (tick, label) in enumerate(zip(x_axis.ticks, tick_labels(x_axis), strict=True)):
        anchor, unit = ("end", " USD per week") if index == last else ("middle", "")
        css = "tick wide" if (last - index) % 2 else "tick"
        x = f"{x_axis.percent(tick):.2f}%"
        texts.append(f'<text class="{css}" x="{x}" y="100%" dy="22" text-anchor="{anchor}">{label}{unit}</text>')
    return "".join(texts)


def _target(target_s: float, top: float) -> str:
    y = _down(target_s, top)
    return (
        f'<line class="reference" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="100%" y="{y}" dy="-6" text-anchor="end">target {format_duration(target_s)}</text>'
    )


def _steps(best: Sequence[PolicyPoint], x_axis: Axis, top: float) -> str:
    """Down where a dearer point waits less: between two of the front the cheaper one is what one can have."""
    if not best:
        return ""
    by_cost = sorted(best, key=lambda point: point.cost_usd_per_week)
    corners = [(10 * x_axis.percent(p.cost_usd_per_week), 1000 - 1000 * _height(p.wait_p90_s) / top) for p in by_cost]
    path = f"M{corners[0][0]:.1f} 0V{corners[0][1]:.1f}"
    path += "".join(f"H{x:.1f}V{y:.1f}" for x, y in corners[1:]) + "H1000"
    line = f'<path class="front" d="{path}" vector-effect="non-scaling-stroke"/>'
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">{line}</svg>'


def _dot(point: PolicyPoint, x_axis: Axis, top: float) -> str:
    css, radius = (f"of-{point.kind} best", 6) if point.on_front else (f"of-{point.kind}", 4)
    wait, cost = format_duration(point.wait_p90_s), format_usd(point.cost_usd_per_week)
    title = f"<title>{escape(point.text)}: {cost} per week, p90 wait {wait}</title>"
    x = f"{x_axis.percent(point.cost_usd_per_week):.2f}%"
    return f'<circle class="{css}" cx="{x}" cy="{_down(point.wait_p90_s, top)}" r="{radius}">{title}</circle>'


def _key(points: Sequence[PolicyPoint]) -> str:
    kinds = [kind for kind in _NAMES if any(point.kind == kind for point in points)]
    return "".join(f'<span><i class="dot of-{kind}"></i>{_NAMES[kind]}</span>' for kind in kinds)


def _table(points: Sequence[PolicyPoint]) -> str:
    best = sorted((point for point in points if point.on_front), key=lambda point: point.cost_usd_per_week)
    rows = "".join(
        f"<tr><td>{escape(point.text)}</td><td>{format_usd(point.cost_usd_per_week)}</td>"
        f"<td>{format_duration(point.wait_p90_s)}</td></tr>"
        for point in best
    )
    head = "<tr><th>bought</th><th>per week</th><th>p90 wait</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
