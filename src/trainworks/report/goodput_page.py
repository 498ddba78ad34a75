"""A forecast as a page: when a run is done, how surely, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.report.axes import Axis, build_axis, tick_labels
from trainworks.report.line_plots import Segment, stacked_bar
from trainworks.report.style import html_page
from trainworks.units import DAY_S, format_duration

__all__ = ["FINISH_RULES", "badput_section", "finish_section", "render_goodput_page", "write_goodput_page"]

_POINTS = 200
_FILLS = {
    "work": "compute",
    "checkpoint": "checkpoint",
    "lost work": "lost",
    "recovery": "restart",
    "waiting for nodes": "idle",
    "straggling": "other",
    "fewer nodes": "data",
    "preempted": "start",
    "queueing": "communication",
}
"""Cause of a simulation -> colour of the style sheet."""


def write_goodput_page(
    path: Path,
    *,
    title: str,
    about: str,
    finishes_s: Sequence[float],
    shares: Mapping[str, Mapping[str, float]],
    deadline_s: float | None,
) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    page = render_goodput_page(title=title, about=about, finishes_s=finishes_s, shares=shares, deadline_s=deadline_s)
    write_atomic(path, page)


def render_goodput_page(
    *,
    title: str,
    about: str,
    finishes_s: Sequence[float],
    shares: Mapping[str, Mapping[str, float]],
    deadline_s: float | None,
) -> str:
    """The whole page.

    Args:
        title: of the run.
        about: one line below it.
        finishes_s: wall-clock times of the simulated runs.
        shares: where the time goes, by case; each adds up to 1.
        deadline_s: drawn as a line; None where there is none.
    """
    body = (
        f'<header><h1>{escape(title)}</h1><p class="about">{escape(about)}</p></header>'
        + finish_section(finishes_s, deadline_s)
        + badput_section(shares)
    )
    return html_page(title, "goodput", body, rules=FINISH_RULES)


FINISH_RULES = """
.cases > div { margin-top: 18px; } .cases .name { display: flex; justify-content: space-between; gap: 16px;
  max-width: none; } .cases .name b { font-variant-numeric: tabular-nums; white-space: nowrap; }
.deadline { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 5 4; }
"""
"""Style of these sections, beside the style sheet of the page."""


def finish_section(finishes_s: Sequence[float], deadline_s: float | None) -> str:
    """Share of the runs that are done by a day."""
    days = sorted(seconds / DAY_S for seconds in finishes_s)
    ends = [days[0], days[-1]] + ([] if deadline_s is None else [deadline_s / DAY_S])
    x_axis = build_axis(min(ends), max(ends), num_ticks=7)
    grid = "".join(_row(share) for share in (0, 25, 50, 75, 100))
    labels = tick_labels(x_axis)
    ticks = [
        _column(x_axis.percent(tick), label, unit=" days" if index == len(labels) - 1 else "", wide=index % 2 == 1)
        for index, (tick, label) in enumerate(zip(x_axis.ticks, labels, strict=True))
    ]
    line = "" if deadline_s is None else _deadline(x_axis.percent(deadline_s / DAY_S), deadline_s)
    label = escape(f"share of runs done, {days[0]:.3g} to {days[-1]:.3g} days")
    return (
        '<section><h2>Finish</h2><p class="soft">Share of the simulated runs that are done by then.</p>'
        f'<figure class="frame"><svg class="plot" role="img" aria-label="{label}">{grid}{"".join(ticks)}{line}'
        f"{_curve(days, x_axis)}</svg></figure></section>"
    )


def _row(share: int) -> str:
    y = f"{100 - share}%"
    return (
        f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="-8" y="{y}" dy="0.32em" text-anchor="end">{share}%</text>'
    )


def _column(percent: float, label: str, *, unit: str, wide: bool) -> str:
    anchor = "end" if unit else "middle"
    css = "tick wide" if wide and not unit else "tick"
    return f'<text class="{css}" x="{percent:.2f}%" y="100%" dy="20" text-anchor="{anchor}">{label}{unit}</text>'


def _deadline(percent: float, deadline_s: float) -> str:
    x, anchor, dx = f"{percent:.2f}%", "end" if percent > 50 else "start", -6 if percent > 50 else 6
    return (
        f'<line class="deadline" x1="{x}" x2="{x}" y1="0" y2="100%"/>'
        f'<text class="tick" x="{x}" y="92%" dx="{dx}" text-anchor="{anchor}">'
        f"deadline {escape(format_duration(deadline_s))}</text>"
    )


def _curve(days: Sequence[float], x_axis: Axis) -> str:
    """The empirical distribution at 200 of its points."""
    count = len(days)
    picked = sorted({round(index * (count - 1) / (_POINTS - 1)) for index in range(_POINTS)})
    corners = ["0.0 1000.0", f"{x_axis.percent(days[0]) * 10:.1f} 1000.0"]
    corners += [f"{x_axis.percent(days[at]) * 10:.1f} {1000 - (at + 1) / count * 1000:.1f}" for at in picked]
    drawn = "M" + "L".join([*corners, "1000.0 0.0"])
    return (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
        f'<path class="line" d="{drawn}" vector-effect="non-scaling-stroke"/></svg>'
    )


def badput_section(shares: Mapping[str, Mapping[str, float]]) -> str:
    """Where wall-clock time goes, one bar per case."""
    rows = []
    for name, parts in shares.items():
        segments = [Segment(_FILLS[cause], share, f"{100 * share:.1f} %") for cause, share in parts.items()]
        bar = stacked_bar(segments, whole=1.0, title=f"{name}: {100 * parts['work']:.1f} % work")
        rows.append(
            f'<div><p class="name"><span>{escape(name)}</span><b>{100 * parts["work"]:.1f} % work</b></p>{bar}</div>'
        )
    shown = dict.fromkeys(cause for parts in shares.values() for cause, share in parts.items() if share > 0)
    key = "".join(f'<span><i class="swatch fill-{_FILLS[cause]}"></i>{escape(cause)}</span>' for cause in shown)
    return (
        '<section><h2>Where the time goes</h2><p class="soft">Of all wall-clock time, over all simulated runs.</p>'
        f'<div class="cases">{"".join(rows)}</div><figure><figcaption>{key}</figcaption></figure></section>'
    )
