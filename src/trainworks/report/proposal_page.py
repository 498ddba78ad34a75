"""A proposal of `trainworks size` as a page that needs nothing else: no request, no script, plots as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.plan.trace import Swing, Traced
from trainworks.report.cost_page import TORNADO_RULES, tornado_section
from trainworks.report.goodput_page import FINISH_RULES, badput_section, finish_section
from trainworks.report.line_plots import Segment, stacked_bar
from trainworks.report.scatter import SCATTER_RULES, Dot, scatter_plot
from trainworks.report.style import html_page
from trainworks.units import format_step_time

__all__ = ["ProposalPage", "Sheet", "render_proposal_page", "write_proposal_page"]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table, as text."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    about: str = ""
    spared: frozenset[str] = frozenset()
    """Heads of columns that a narrow terminal leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalPage:
    """What the page shows; base units."""

    title: str
    facts: Mapping[str, str]
    reasons: Sequence[str]
    dots: Sequence[Dot]
    """Days to the 90 % quantile, and USD, of every alternative."""
    sheets: Sequence[Sheet]
    terms_s: Mapping[str, float]
    """Of one step."""
    finishes_s: Sequence[float]
    shares: Mapping[str, float]
    """Of the wall-clock time, by cause."""
    deadline_s: float | None
    cost: Traced
    swings: Sequence[Swing]
    drawing: str
    """Of the network, as SVG; empty where it is the provider's."""
    owning: Sequence[str]
    traces: Sequence[str]
    """Every figure with its formula, inputs and sources."""
    notes: Sequence[str]


def write_proposal_page(path: Path, page: ProposalPage) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_proposal_page(page))


def render_proposal_page(page: ProposalPage) -> str:
    """The whole page; sections without content are left out."""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in page.notes)
    tables = {sheet.title: _sheet(sheet) for sheet in page.sheets}
    body = (
        _header(page)
        + _list("Why", page.reasons)
        + _cost_and_time(page.dots)
        + tables.pop("alternatives", "")
        + tables.pop("not proposed", "")
        + tables.pop("smallest clusters", "")
        + _step(page.terms_s)
        + finish_section(page.finishes_s, page.deadline_s)
        + badput_section({"proposed": page.shares})
        + tables.pop("which network", "")
        + _drawing(page.drawing)
        + "".join(tables.values())
        + (tornado_section(page.cost, page.swings) if page.swings else "")
        + _list("Own or rent", page.owning)
        + _traces(page.traces)
        + f"<footer>{notes}</footer>"
    )
    rules = f"{TORNADO_RULES}{FINISH_RULES}{SCATTER_RULES}{_RULES}"
    return html_page(page.title, "proposal", body, rules=rules)


_RULES = """
dl.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 6px 18px; margin-top: 24px; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; }
main { max-width: 1120px; }
table.sheet td, table.sheet th { text-align: left; font-size: 13px; padding-left: 14px; }
table.sheet td:first-child, table.sheet th:first-child { padding-left: 0; }
table.sheet td:last-child { white-space: normal; min-width: 220px; }
table.sheet tr.chosen td { font-weight: 600; }
.drawing { overflow-x: auto; margin-top: 16px; } .drawing svg { max-width: 100%; height: auto; }
"""


def _header(page: ProposalPage) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in page.facts.items())
    return f'<header><h1>{escape(page.title)}</h1><dl class="facts">{rows}</dl></header>'


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<section><h2>{title}</h2><ul>{items}</ul></section>"


def _cost_and_time(dots: Sequence[Dot]) -> str:
    plot = scatter_plot(dots, x_name="days to the 90 % quantile", y_name="USD")
    text = "Every alternative that was tried. Blue: nothing beats it in both. Orange: proposed."
    return (
        f'<section><h2>Cost and time</h2><p class="soft">{text}</p>'
        f'<figure><div class="frame">{plot}</div></figure></section>'
    )


def _sheet(sheet: Sheet) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in sheet.heads)
    rows = "".join(
        f"<tr{' class=chosen' if row[0] == '>' else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in sheet.rows
    )
    about = f'<p class="soft">{escape(sheet.about)}</p>' if sheet.about else ""
    return (
        f"<section><h2>{escape(sheet.title.capitalize())}</h2>{about}"
        f'<div class="scroll"><table class="sheet"><tr>{head}</tr>{rows}</table></div></section>'
    )


def _step(terms_s: Mapping[str, float]) -> str:
    whole = sum(terms_s.values())
    segments = [Segment(name, seconds, format_step_time(seconds)) for name, seconds in terms_s.items()]
    bar = stacked_bar(segments, whole=whole, title=f"One step: {format_step_time(whole)}")
    shown = [name for name, seconds in terms_s.items() if seconds > 0.005 * whole]
    key = "".join(f'<span><i class="swatch fill-{escape(name)}"></i>{escape(name)}</span>' for name in shown)
    return (
        f'<section><h2>One step</h2><p class="soft">{format_step_time(whole)}, by term.</p>{bar}'
        f"<figure><figcaption>{key}</figcaption></figure></section>"
    )


def _drawing(drawing: str) -> str:
    return f'<section><h2>The network</h2><div class="drawing">{drawing}</div></section>' if drawing else ""


def _traces(traces: Sequence[str]) -> str:
    items = "".join(
        f"<details><summary>{escape(trace.splitlines()[0])}</summary><pre>{escape(trace)}</pre></details>"
        for trace in traces
    )
    text = "Formula, inputs, and the source of each."
    return f'<section><h2>Where the figures come from</h2><p class="soft">{text}</p>{items}</section>'
