"""What a run or a year costs, as a page: what moves the answer most, every offer, energy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from trainworks.files import write_atomic
from trainworks.plan.cost.break_even import within_a_year
from trainworks.plan.cost.comparison import CostComparison, CostLine
from trainworks.plan.cost.renting import CONTRACTS, Contract
from trainworks.plan.trace import Swing, Traced
from trainworks.report.style import html_page
from trainworks.units import format_quantity, format_short_usd, format_usd

__all__ = ["TORNADO_RULES", "render_cost_page", "tornado_bars", "tornado_section", "write_cost_page"]


def write_cost_page(path: Path, *, title: str, found: CostComparison, grid: str, notes: Sequence[str]) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_cost_page(title=title, found=found, grid=grid, notes=notes))


def render_cost_page(*, title: str, found: CostComparison, grid: str, notes: Sequence[str]) -> str:
    """The whole page."""
    root = found.answer
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    about = f"{found.cluster.num_accelerators:,} {found.cluster.accelerator.name}"
    body = (
        f'<header><h1>{escape(title)}</h1><p class="about">{escape(about)}</p>{_figures(found, grid)}</header>'
        + (tornado_section(root, found.swings) if root is not None and found.swings else "")
        + (_offers(found) if found.lines else "")
        + f"<footer>{remarks}</footer>"
    )
    return html_page(title, "cost", body, rules=TORNADO_RULES)


TORNADO_RULES = """
.tornado { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 6px 18px; align-items: center;
  margin-top: 18px; }
.tornado p { margin: 0; line-height: 1.25; } .tornado .soft { font-variant-numeric: tabular-nums; }
.tornado svg { display: block; width: 100%; height: 40px; overflow: visible; }
.tornado text { fill: var(--ink); } .base { stroke: var(--ink); stroke-width: 1.5; }
figcaption span { margin-right: 14px; white-space: nowrap; }
@media (max-width: 600px) { .tornado { grid-template-columns: minmax(0, 1fr); } .tornado svg { margin-bottom: 8px; } }
"""
"""Style of the bars, beside the style sheet of the page."""


def _figures(found: CostComparison, grid: str) -> str:
    shown = [
        ("owning", found.owned, "" if found.owning is None else f"{format_usd(found.owning.capex.value)} to buy"),
        ("renting", found.market, "at the median on-demand price"),
        ("electricity", found.energy, ""),
        ("carbon", found.carbon, f"grid: {grid}"),
    ]
    divs = "".join(
        f"<div><dt>{name}</dt><dd>{escape(_short(figure))}</dd><dd>{escape(remark)}</dd></div>"
        for name, figure, remark in shown
        if figure is not None
    )
    return f'<dl class="figures">{divs}</dl>'


def _short(figure: Traced) -> str:
    if figure.unit.startswith("USD"):
        return f"{format_short_usd(figure.value)} USD"
    return format_quantity(figure.value, figure.unit)


def tornado_section(root: Traced, swings: Sequence[Swing]) -> str:
    """Which assumption moves the result most."""
    text = (
        f"{root.name.capitalize()}: {format_usd(root.value)}. Each bar shows what it would be with one assumption at "
        "either end of its range, and all others as they are."
    )
    key = (
        '<span><i class="swatch fill-compute"></i>at the low end</span>'
        '<span><i class="swatch fill-start"></i>at the high end</span>'
    )
    return (
        f'<section><h2>What moves the answer most</h2><p class="soft">{escape(text)}</p>'
        f'<div class="tornado">{tornado_bars(root, swings)}</div>'
        f"<figure><figcaption>{key}</figcaption></figure></section>"
    )


def tornado_bars(root: Traced, swings: Sequence[Swing]) -> str:
    """One row per assumption, on one scale: its range, and the bar from the result at one end to that at the other."""
    ends = [root.value, *(end for swing in swings for end in (swing.at_low, swing.at_high))]
    low, whole = min(ends), (max(ends) - min(ends)) or 1.0
    return "".join(_row(root.value, swing, low, whole) for swing in swings)


_LABEL_ROOM = 9.0
"""Percent of the width that is kept free at either side for the values."""


def _at(value: float, low: float, whole: float) -> float:
    return _LABEL_ROOM + (value - low) / whole * (100 - 2 * _LABEL_ROOM)


def _row(base: float, swing: Swing, low: float, whole: float) -> str:
    unit = swing.of.unit
    lowest = format_quantity(swing.of.low or 0.0, unit if unit == "s" else "")
    spread = f"{lowest} to {format_quantity(swing.of.high or 0.0, unit)}"
    name = f'<div><p>{escape(swing.of.name)}</p><p class="soft">{escape(spread)}</p></div>'
    middle = _at(base, low, whole)
    parts = [
        _half(middle, _at(end, low, whole), css, escape(f"{swing.of.name}: {format_usd(end)}"))
        for end, css in ((swing.at_low, "compute"), (swing.at_high, "start"))
    ]
    first, last = sorted((swing.at_low, swing.at_high))
    labels = _label(_at(min(first, base), low, whole), first, "end") + _label(
        _at(max(last, base), low, whole), last, "start"
    )
    line = f'<line class="base" x1="{middle:.2f}%" x2="{middle:.2f}%" y1="0" y2="100%"/>'
    told = escape(f"{swing.of.name}: {format_usd(swing.at_low)} to {format_usd(swing.at_high)}")
    return f'{name}<svg role="img" aria-label="{told}">{"".join(parts)}{line}{labels}</svg>'


def _half(middle: float, end: float, css: str, tooltip: str) -> str:
    left, width = min(middle, end), abs(end - middle)
    return (
        f'<rect class="fill-{css}" x="{left:.2f}%" width="{width:.2f}%" y="20%" height="60%">'
        f"<title>{tooltip}</title></rect>"
    )


def _label(x: float, value: float, anchor: str) -> str:
    shift, text = "-6" if anchor == "end" else "6", escape(format_short_usd(value))
    return f'<text x="{x:.2f}%" dx="{shift}" y="50%" dy="0.34em" text-anchor="{anchor}">{text}</text>'


def _offers(found: CostComparison) -> str:
    heads = ["per accelerator hour", *CONTRACTS, "spot saves", "owning from"]
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(_offer_row(line) for line in found.lines)
    text = "USD for all hours. Spot is at the median zone, with the hours that preemptions waste."
    return (
        f'<section><h2>Offers</h2><p class="soft">{text}</p><div class="scroll"><table><tr><th>offer</th>{head}</tr>'
        f"{rows}</table></div></section>"
    )


def _offer_row(line: CostLine) -> str:
    price = line.offer.usd_per_hour
    each = "" if price is None else f"{price / line.offer.accelerators:.2f}"
    saves = "" if line.discount is None else f"{line.discount.value:.0%}"
    even = f"{line.break_even.value:,.0f} h" if line.break_even and within_a_year(line.break_even) else "never"
    cells = [each, *(_cost(line, contract) for contract in CONTRACTS), saves, even]
    name = line.offer.name + ("*" if line.may_not_join else "")
    return f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _cost(line: CostLine, contract: Contract) -> str:
    return format_short_usd(line.costs[contract].value) if contract in line.costs else ""
