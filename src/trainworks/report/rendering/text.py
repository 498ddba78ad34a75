"""A document on a terminal: readable in 80 columns and without colour."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import singledispatch

from rich import box
from rich import table as rich_table
from rich.cells import cell_len
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
    Styled,
    Table,
    Text,
)
from trainworks.report.rendering.printable import printable

_WIDTH = 100
_GAP = "  "
"""Between two columns."""
_STYLES = {"": "", "bold": "bold", "dim": "dim", "good": "bold green", "warning": "yellow", "bad": "red"}


def render_text(document: Document, *, width: int = _WIDTH) -> str:
    """The document as plain text."""
    console = SafeConsole(file=io.StringIO(), width=width, plain=True)
    print_document(document, console)
    return console.file.getvalue().removesuffix("\n")  # type: ignore[attr-defined, no-any-return]


def print_document(document: Document, console: Console) -> None:
    """Print with an empty line between sections; colour, encoding and NO_COLOR are the console's affair."""
    width = min(console.width, document.max_width or console.width)
    sections: list[list[RenderableType]] = []
    for section in document.shown("text", width):
        title = [RichText(section.title, style="bold")] if section.title else []
        sections.append([*title, *(line for block in section.blocks for line in _block(block, width))])
    if document.shows_title:
        badge = [("  ", ""), _run(document.badge)] if document.badge else []
        sections[:0] = [[RichText.assemble((document.title, "bold"), *badge)]]
    if (line := document.verdict_line) is not None:
        sections[:0] = [[RichText(line.text, style=f"bold {_STYLES[line.style]}")]]
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
    shown = [index for index, column in block.columns_on("text") if width >= column.min_width]
    columns = [block.columns[index] for index in shown]
    names = [one.short_name if one.short_name and width < NARROW else one.name for one in columns]
    rows = [
        ([_cell(row.cells[index], indent=row.is_term and index == shown[0]) for index in shown], _STYLES[row.style])
        for row in block.styled_rows()
    ]
    heading = [([RichText(name) for name in names], "bold")] if block.has_header else []
    aligned = None if block.ruled else _aligned(heading + rows, [column.numeric for column in columns], width)
    if aligned is not None:
        yield aligned
    else:
        table = _grid(has_header=block.has_header, ruled=block.ruled)
        for name, column in zip(names, columns, strict=True):
            table.add_column(name, justify="right" if column.numeric else "left", no_wrap=not column.wrap)
        for cells, style in rows:
            table.add_row(*cells, style=style or None)
        yield table
    if block.caption:
        yield RichText(block.caption)


def _aligned(rows: Sequence[tuple[Sequence[RichText], str]], is_numeric: Sequence[bool], width: int) -> RichText | None:
    """Rows whose cells stand below each other; None if a cell would have to be wrapped.

    A table of Rich measures and wraps each cell several times, which takes seconds for thousands of rows. The cells of
    a row come with its style, the heading first.
    """
    if not rows or any("\n" in cell.plain or "\t" in cell.plain for cells, _ in rows for cell in cells):
        return None
    lengths = [[cell_len(printable(cell.plain)) for cell in cells] for cells, _ in rows]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return None
    lines = RichText(no_wrap=True, overflow="ignore")
    for row, (cells, style) in enumerate(rows):
        for column, cell in enumerate(cells):
            fill = " " * (widths[column] - lengths[row][column])
            before, after = (fill, "") if is_numeric[column] else ("", fill)
            lines.append(_GAP[: 2 * min(column, 1)] + before, style)
            lines.append(printable(cell.plain), f"{style} {cell.style}".strip())
            lines.append(after, style)
        lines.append("\n" if row < len(rows) - 1 else "")
    return lines


def _grid(*, has_header: bool = False, ruled: bool = False) -> rich_table.Table:
    if ruled:
        return rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    return rich_table.Table(box=None, show_header=has_header, padding=(0, 2, 0, 0), pad_edge=False)
