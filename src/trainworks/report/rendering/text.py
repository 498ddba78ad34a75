"""A document on a terminal: readable in 80 columns and without colour."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import singledispatch

from rich import box
from rich import table as rich_table
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text as RichText

from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.document import (
    FULL_BLOCK,
    NARROW,
    NO_BREAK,
    Block,
    Bullets,
    Cell,
    Details,
    Document,
    Facts,
    Plot,
    Preformatted,
    Section,
    Styled,
    Table,
    Text,
)

_WIDTH = 100
_STYLES = {"": "", "bold": "bold", "dim": "dim", "good": "bold green", "warning": "yellow", "bad": "red"}


def render_text(document: Document, *, width: int = _WIDTH) -> str:
    """The document as plain text."""
    console = SafeConsole(file=io.StringIO(), width=width)
    print_document(document, console)
    return console.file.getvalue().removesuffix("\n")  # type: ignore[attr-defined, no-any-return]


def print_document(document: Document, console: Console) -> None:
    """Print with an empty line between sections; colour, encoding and NO_COLOR are the console's affair."""
    width = min(console.width, document.max_width or console.width)
    sections = [_lines(section, width) for section in document.shown("text", width)]
    if document.shows_title:
        badge = [("  ", ""), _run(document.badge)] if document.badge else []
        sections[:0] = [[RichText.assemble((document.title, "bold"), *badge)]]
    if document.notes:
        sections.append([RichText(f"note: {note}", style="yellow") for note in document.notes])
    console.file.write("\n".join(_printed(section, console, width) for section in sections))


def _printed(lines: Iterable[RenderableType], console: Console, width: int) -> str:
    """The lines of one section, without blanks at their ends."""
    with console.capture() as captured:
        for line in lines:
            console.print(line, width=width)
    text = captured.get().replace(NO_BREAK, " ")
    if console.options.ascii_only:
        text = text.replace(FULL_BLOCK, "#")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _lines(section: Section, width: int) -> list[RenderableType]:
    title = [RichText(section.title, style="bold")] if section.title else []
    return [*title, *(line for block in section.blocks for line in _block(block, width))]


def _run(run: Styled) -> tuple[str, str]:
    return run.text, _STYLES[run.style]


def _cell(cell: Cell, *, indent: bool = False) -> RichText:
    text, style = (cell, "") if isinstance(cell, str) else _run(cell)
    return RichText(f"  {text}" if indent else text, style=style)


@singledispatch
def _block(block: Block, width: int) -> Iterable[RenderableType]:
    raise TypeError(f"text cannot show {type(block).__name__}")


@_block.register
def _(block: Text, width: int) -> Iterable[RenderableType]:
    text = RichText.assemble(*map(_run, block.runs))
    yield Padding(text, (0, 0, 0, block.indent)) if block.indent else text


@_block.register
def _(block: Bullets, width: int) -> Iterable[RenderableType]:
    return (RichText(f"- {item}") for item in block.items)


@_block.register
def _(block: Preformatted, width: int) -> Iterable[RenderableType]:
    yield RichText.assemble(*map(_run, block.runs))


@_block.register
def _(block: Details, width: int) -> Iterable[RenderableType]:
    return (line for inner in block.blocks for line in _block(inner, width))


@_block.register
def _(block: Plot, width: int) -> Iterable[RenderableType]:
    return ()


@_block.register
def _(block: Facts, width: int) -> Iterable[RenderableType]:
    table = _grid()
    if block.figures:
        table.add_column()
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column(style="dim")
        for fact in block.facts:
            table.add_row(fact.name, fact.value, fact.note)
    else:
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for fact in block.facts:
            table.add_row(fact.name, RichText(fact.value))
    yield table


@_block.register
def _(block: Table, width: int) -> Iterable[RenderableType]:
    shown = [
        index
        for index, column in enumerate(block.columns)
        if column.only in (None, "text") and width >= column.min_width
    ]
    table = _grid(has_header=block.has_header, ruled=block.ruled)
    for index in shown:
        column = block.columns[index]
        name = column.short_name if column.short_name and width < NARROW else column.name
        table.add_column(name, justify="right" if column.numeric else "left", no_wrap=not column.wrap)
    for row in block.styled_rows():
        cells = [_cell(row.cells[index], indent=row.is_term and index == shown[0]) for index in shown]
        table.add_row(*cells, style=_STYLES[row.style] or None)
    yield table
    if block.caption:
        yield RichText(block.caption)


def _grid(*, has_header: bool = False, ruled: bool = False) -> rich_table.Table:
    if ruled:
        return rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    return rich_table.Table(box=None, show_header=has_header, padding=(0, 2, 0, 0), pad_edge=False)
