"""A document as HTML: a page that needs nothing else, and the beginning of one in a cell of a notebook.

A page has no request and no script, and its plots are inline SVG. A notebook stores what its cells show, so a cell has
the beginning of a document, of bounded size and in the notebook's colours: short tables, thinned curves, and those
rules of the style sheet that they use. It names the sections that it shortens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from trainworks.errors import ArgumentError
from trainworks.files import write_atomic
from trainworks.report.rendering.document import (
    NO_BREAK,
    Block,
    Cell,
    Details,
    Document,
    Plot,
    Row,
    Section,
    Styled,
    Table,
)
from trainworks.report.rendering.plots import Chart
from trainworks.report.rendering.printable import printable
from trainworks.report.rendering.svg import element, markup
from trainworks.report.rendering.text import render_text
from trainworks.results import Picture

_LONG = re.compile(r"\S{25,}")
"""A path, an address or a hash: no word is that long."""
_PART = re.compile(r"[^/_.,:;=@&?]{0,31}[/_.,:;=@&?]+|[^/_.,:;=@&?]{32}")
"""Part of one, after which a line may end."""
_BREAK = "\u200b"
"""Stands for that place until the text is escaped."""
_MOST_CHARACTERS = 8_000
"""Length of the HTML of all blocks, without its style sheet."""
_MOST_LINES = 24
"""Lines of text."""
_MOST_ROWS = 12
"""Rows of a table."""
_MOST_POINTS, _MOST_MARKS = 120, 10
"""Points of a curve, and marks of a kind in its chart."""
_MOST_NOTES = 4
_LEFT, _TOP, _WIDTH, _HEIGHT, _BELOW = 60, 34, 690, 240, 40
"""Place and size of the axes in a file of SVG, and the room below them for labels; in pixels."""


def render_page(document: Document) -> str:
    """The whole page; every text is escaped."""
    return _template("page.html").render(document=document, sections=document.shown("page"))


def write_page(document: Document, path: Path) -> None:
    """Write the page, atomically.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    write_atomic(path, render_page(document))


@cache
def _template(name: str) -> Template:
    return page_environment().get_template(name)


def page_environment(*folders: str) -> Environment:
    """Environment of the page's template and of those in more folders of the package that extend it.

    A template gets `document` and its `sections`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("trainworks", folder) for folder in ("report/templates", *folders)]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "block": lambda block: "Plot" if isinstance(block, Plot) else type(block).__name__,
        "picture": _picture,
        "run": _run,
        "rows": _rows,
        "breakable": breakable,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Text with control characters escaped and unbreakable blanks as HTML has them."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value).replace(NO_BREAK, "\u00a0")


def _rows(table: Table, stacked: bool) -> Iterator[tuple[Row, Markup]]:
    """The rows of a table with their cells, which have the heading of their column with them where rows are stacked."""
    shown = []
    for place, column in table.columns_on("page"):
        kind = "" if column.numeric else ' class="text"' if column.wrap else ' class="left"'
        label = f' data-label="{_escaped(column.name)}"' if stacked else ""
        shown.append((place, f"<td{kind}{label}>"))
    for row in table.styled_rows():
        cells = "".join([f"{begin}{_cell(row.cells[place])}</td>" for place, begin in shown])
        yield row, Markup(cells)  # noqa: S704, every text is escaped


def _run(cell: Cell, *, in_table: bool = False) -> Markup:
    """A checkbox where the run of text has one, its swatch, and the text as a link or in its style."""
    run = cell if isinstance(cell, Styled) else Styled(cell)
    text = breakable(run.text) if in_table else run.text
    shown = _escaped(text)
    if run.href:
        shown = f'<a href="{_escaped(run.href)}">{shown}</a>'
    elif run.style and text:
        shown = f'<span class="is-{run.style}">{shown}</span>'
    if run.swatch:
        shown = f'<i class="swatch fill-{_escaped(run.swatch)}"></i>{shown}'
    if run.choice:
        value, label = _escaped(run.choice), _escaped(run.choice_name)
        shown = f'<input type="checkbox" name="run" value="{value}" form="chosen" aria-label="Choose {label}"> {shown}'
    return Markup(shown)  # noqa: S704, every text is escaped


_cell = lru_cache(maxsize=4096)(partial(_run, in_table=True))
"""A cell of a table; kept, because a server shows the same rows again and again."""


def _escaped(text: str) -> str:
    return str(escape(_finalize(text)))


def breakable(text: str) -> Markup:
    """Text of a cell as HTML: a line may end within a path or a hash, and never within a word.

    >>> print(breakable("SUCCEEDED: see /home/ada/runs/llama_3_chats-1"))
    SUCCEEDED: see /<wbr>home/<wbr>ada/<wbr>runs/<wbr>llama_<wbr>3_<wbr>chats-1
    """
    shown = _LONG.sub(lambda token: _PART.sub(f"\\g<0>{_BREAK}", token[0]), text)
    return Markup(str(escape(_finalize(shown))).replace(_BREAK, "<wbr>"))  # noqa: S704, the text is escaped


def _picture(plot: Plot) -> Markup:
    drawn = plot.picture()
    return Markup(_finalize(markup(drawn)) if drawn is not None else "")  # noqa: S704, ElementTree escaped every text


def render_cell(document: Document) -> dict[str, str]:
    """The beginning of a document by media type: HTML, and text for a notebook that shows no HTML."""
    lines = render_text(document).splitlines()
    if more := max(0, len(lines) - _MOST_LINES):
        lines[_MOST_LINES:] = [f"... {more:,} more lines: `print` shows all"]
    return {"text/plain": "\n".join(lines), "text/html": _element(document)}


def plots_of(document: Document) -> Mapping[str, Picture]:
    """The plots of a page by their metric, or by the heading that they are below, with a number from the second on."""
    found: dict[str, Picture] = {}
    for section in document.shown("page"):
        for plot in _plots_in(section.blocks):
            name = (plot.metric if isinstance(plot, Chart) else "") or section.title.lower() or document.kind
            number = sum(other.partition(" #")[0] == name for other in found) + 1
            name += f" #{number}" if number > 1 else ""
            found[name] = DrawnPlot(f"{document.title}: {name}", plot)
    return found


def _plots_in(blocks: Iterable[Block]) -> Iterator[Plot]:
    """Plots that have something to draw, those that a page folds away among them."""
    for block in blocks:
        if isinstance(block, Details):
            yield from _plots_in(block.blocks)
        elif isinstance(block, Plot) and block.picture() is not None:
            yield block


@dataclass(slots=True, repr=False)
class DrawnPlot:
    """A plot of a result; see `trainworks.results.Picture`."""

    title: str
    plot: Plot

    def __repr__(self) -> str:
        return f"<plot of {self.title}>"

    def _repr_html_(self) -> str:
        return _in_cell(_html(_shortened(self.plot)))

    def save(self, path: Path | str) -> None:
        """Write the plot, atomically: a chart with two axes to `.svg`, any plot with its key to `.html`.

        Raises:
            ArgumentError: the path ends otherwise, or ends in `.svg` for bars or a drawing.
            DiskFullError: no space left; an older file is untouched.
        """
        path = Path(path)
        if path.suffix == ".html":
            write_page(Document(self.title, "plot", [Section("", [self.plot])]), path)
        elif path.suffix == ".svg" and isinstance(self.plot, Chart):
            write_atomic(path, _svg(self.plot))
        else:
            ends = "`.svg` or `.html`" if isinstance(self.plot, Chart) else "`.html`"
            hint = f"take a path that ends in {ends}"
            raise ArgumentError(f"cannot write this plot as `{path.name}`", argument="path", hint=hint)


def _element(document: Document) -> str:
    """Title, verdict, the blocks that fit, notes, and the names of the sections that are shortened."""
    room, sections, shortened = _MOST_CHARACTERS, list[Section](), dict[str, None]()
    for section in document.shown("page"):
        kept: list[Block] = []
        for block in section.blocks:
            short = _shortened(block)
            fits = (size := len(_html(short))) <= room
            if fits:
                room -= size
                kept.append(short)
            if not fits or short is not block:
                shortened[section.title.lower() or document.kind] = None
        sections += [replace(section, blocks=kept)] if kept else []
    notes = [*document.notes[:_MOST_NOTES]]
    if more := len(document.notes) - len(notes):
        notes.append(f"{more} more notes: `print` shows all.")
    if shortened:
        notes.append(f"Shortened here: {', '.join(shortened)}. `write_html` writes all of it.")
    return _in_cell(_template("cell.html").render(document=document, sections=sections, notes=notes).strip())


def _shortened(block: Block) -> Block:
    """The block, or its beginning if it is long."""
    if isinstance(block, Chart) and any(len(curve.points) > _MOST_POINTS for curve in block.curves):
        return block.thinned(_MOST_POINTS, _MOST_MARKS)
    if isinstance(block, Table) and (more := len(block.rows) - _MOST_ROWS) > 0:
        return replace(block, rows=block.rows[:_MOST_ROWS], caption=f"{more:,} more rows. {block.caption}".rstrip())
    return block


def _html(*blocks: Block) -> str:
    return _template("section.html").render(section=Section("", blocks)).strip()


def _in_cell(html: str) -> str:
    """The element with the rules that it uses; its colours are those of the notebook's theme."""
    rules = _rules_for(html, scope=".trainworks ")
    return f'<div class="trainworks"><style>{rules}{_sheet("cell.css")}</style>{html}</div>'


def _svg(chart: Chart) -> str:
    """A chart as a file of its own, in the colours of a light page."""
    drawn = chart.picture()
    axes = drawn[0] if drawn is not None else element("svg")
    axes.attrib |= {"x": str(_LEFT), "y": str(_TOP), "style": f"width: {_WIDTH}px; height: {_HEIGHT}px"}
    paper = element("rect", width="100%", height="100%", fill="#ffffff")
    width, height = _LEFT + _WIDTH + 10, _TOP + _HEIGHT + _BELOW
    root = element("svg", paper, axes, xmlns="http://www.w3.org/2000/svg", width=width, height=height)
    colours = dict(re.findall(r"(--[\w-]+): ([^;]+);", _sheet("style.css").partition("@media")[0]))
    rules = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], _rules_for(markup(root), scope=""))
    root.insert(0, element("style", text=rules))
    return markup(root)


def _rules_for(html: str, *, scope: str) -> str:
    """Rules of the style sheet whose classes and elements all occur; those of a medium or a width are left out."""
    classes = {name for names in re.findall(r'class="([^"]*)"', html) for name in names.split()}
    known = {"": set(re.findall(r"<(\w+)", html)), ".": classes}

    def applies(selector: str) -> bool:
        names = [found for found in re.findall(r"([.:]*)([\w-]+)", selector) if not found[0].startswith(":")]
        return bool(names) and all(name in known[kind] for kind, name in names)

    always = re.sub(r"/\*.*?\*/|@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", _sheet("style.css"), flags=re.DOTALL)
    rules = []
    for selectors, declared in re.findall(r"([^{}]+)\{([^{}]*)\}", always):
        if chosen := [f"{scope}{each}" for each in map(str.strip, selectors.split(",")) if applies(each)]:
            rules.append(f"{', '.join(chosen)} {{ {' '.join(declared.split())} }}\n")
    return "".join(rules)


@cache
def _sheet(name: str) -> str:
    return (Path(__file__).parents[1] / "templates" / name).read_text(encoding="utf-8")
