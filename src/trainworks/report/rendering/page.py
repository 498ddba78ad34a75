"""A document as one HTML page that needs nothing else: no request, no script, plots as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from trainworks.files import write_atomic
from trainworks.report.rendering.document import NO_BREAK, Cell, Document, Plot, Row, Styled, Table
from trainworks.report.rendering.printable import printable
from trainworks.report.rendering.svg import markup

_LONG = re.compile(r"\S{25,}")
"""A path, an address or a hash: no word is that long."""
_PART = re.compile(r"[^/_.,:;=@&?]{0,31}[/_.,:;=@&?]+|[^/_.,:;=@&?]{32}")
"""Part of one, after which a line may end."""
_BREAK = "\u200b"
"""Stands for that place until the text is escaped."""


def render_page(document: Document) -> str:
    """The whole page; every text is escaped."""
    return _template("page.html").render(document=document, sections=document.shown("page"))


def render_frame(document: Document) -> str:
    """The page in a frame, whose styles do not touch the notebook around it."""
    return _template("frame.html").render(title=document.title, page=render_page(document))


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
        value = _escaped(run.choice)
        shown = f'<input type="checkbox" name="run" value="{value}" form="chosen" aria-label="Choose {value}"> {shown}'
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
