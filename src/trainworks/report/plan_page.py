"""A plan's layouts as a page: where the time of a step and the memory of a rank would go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.report.line_plots import Segment, stacked_bar
from trainworks.report.style import html_page
from trainworks.units import format_gib, format_step_time

__all__ = ["PlannedLayout", "render_plan_page", "write_plan_page"]

_Bar = tuple[str, dict[str, float], str]
"""Name, parts and what stands beside it."""


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """One layout of the page, in base units."""

    name: str
    step_time_s: float
    low_s: float
    high_s: float
    terms_s: dict[str, float]
    memory_bytes: dict[str, float]


def write_plan_page(path: Path, *, title: str, about: str, layouts: Sequence[PlannedLayout]) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_plan_page(title=title, about=about, layouts=layouts))


def render_plan_page(*, title: str, about: str, layouts: Sequence[PlannedLayout]) -> str:
    """The whole page; bars of one section share one scale."""
    times = [(row.name, row.terms_s, _time(row)) for row in layouts]
    memories = [(row.name, row.memory_bytes, format_gib(sum(row.memory_bytes.values()))) for row in layouts]
    body = (
        f'<header><h1>{escape(title)}</h1><p class="about">{escape(about)}</p></header>'
        + _section(
            "Step time", "Predicted seconds of one optimizer step, with the 80 % interval.", times, format_step_time
        )
        + _section("Memory", "Allocated on the fullest rank at its peak.", memories, format_gib)
    )
    return html_page(title, "plan", body, rules=_RULES)


_RULES = """
.layouts > div { margin-top: 18px; } .layouts .name { display: flex; justify-content: space-between; gap: 16px;
  max-width: none; }
.layouts .name b { font-variant-numeric: tabular-nums; white-space: nowrap; }
figcaption span { margin-right: 14px; white-space: nowrap; }
"""


def _time(row: PlannedLayout) -> str:
    return f"{format_step_time(row.step_time_s)} ({format_step_time(row.low_s)} to {format_step_time(row.high_s)})"


def _section(title: str, text: str, bars: list[_Bar], written: Callable[[float], str]) -> str:
    whole = max((sum(parts.values()) for _, parts, _ in bars), default=0.0)
    rows = []
    for name, parts, total in bars:
        segments = [Segment(part, value, written(value)) for part, value in parts.items()]
        bar = stacked_bar(segments, whole=whole, title=f"{name}: {total}")
        rows.append(f'<div><p class="name"><span>{escape(name)}</span><b>{escape(total)}</b></p>{bar}</div>')
    shown = dict.fromkeys(part for _, parts, _ in bars for part, value in parts.items() if value)
    key = "".join(f'<span><i class="swatch fill-{escape(name)}"></i>{escape(name)}</span>' for name in shown)
    return (
        f'<section><h2>{title}</h2><p class="soft">{text}</p><div class="layouts">{"".join(rows)}</div>'
        f"<figure><figcaption>{key}</figcaption></figure></section>"
    )
