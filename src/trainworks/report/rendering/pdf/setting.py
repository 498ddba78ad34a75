"""Type on paper: paragraphs of styled runs and tables, in the fonts of a document and the colours of the HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from reportlab.lib.colors import Color
from reportlab.lib.styles import ParagraphStyle
from reportlab.platypus import Flowable, Paragraph, Table

from trainworks.report.rendering.document import NO_BREAK, Cell, Column, Row, Styled
from trainworks.report.rendering.document import Table as TableBlock
from trainworks.report.rendering.pdf.fonts import Typeface
from trainworks.report.rendering.pdf.stylesheet import colour, page_style
from trainworks.report.rendering.printable import printable

BODY, SMALL, LARGE = 9.5, 8.0, 15.0
"""Sizes of type, in points: of text, of remarks, and of figures."""
PADDING = 5.0
"""Points on either side of a column, but at the edges of a table."""
SIZES = (8.5, 7.5, 6.5)
"""Sizes of type that are tried, in points."""
_LONGEST_WORD = 16
"""Letters of a path or a hash that a narrow column shows on one line."""
_LEADING = 1.32
_BLANKS = re.compile(r"^ +|  +", re.MULTILINE)
_BLANK = "\u00a0"


class Typesetter:
    """Makes the paragraphs of one document."""

    def __init__(self, face: Typeface) -> None:
        self.face = face

    def width(self, text: str, size: float, *, bold: bool = False) -> float:
        """Width of a line in points."""
        return self.face.width(shown(text), "Helvetica-Bold" if bold else "Helvetica", size)

    def paragraph(
        self,
        runs: Sequence[Styled],
        *,
        size: float = BODY,
        left: float = 0.0,
        before: float = 0.0,
        after: float = 0.0,
        right: bool = False,
        together: bool = False,
    ) -> Paragraph:
        """Text in runs; `together` keeps it on the page of what follows."""
        style = paragraph_style(size, left=left, before=before, after=after, right=right, together=together)
        return Paragraph(self.markup(runs, size), style)

    def markup(self, runs: Sequence[Styled], size: float) -> str:
        """Runs in the markup of reportlab, everything in them escaped."""
        return "".join(self.run(run, size) for run in runs) or _BLANK

    def run(self, run: Styled, size: float, *, base: str = "Helvetica", blanks: bool = False) -> str:
        """One run in that markup; `blanks` keeps every one of them."""
        look = page_style().of_classes(f"is-{run.style}") if run.style else {}
        bold = run.style == "bold" or int(look.get("font-weight", "400")) >= 600
        text = shown(run.text)
        if blanks:
            text = _BLANKS.sub(lambda match: _BLANK * len(match[0]), text)
        parts = [
            f"<font name={quoteattr(font)}>{escape(part)}</font>"
            for part, font in self.face.runs(text, f"{base}-Bold" if bold else base)
        ]
        marked = "".join(parts)
        if colour_text := look.get("color"):
            marked = f'<font color="{colour_text}">{marked}</font>'
        if run.href.startswith(("http://", "https://", "mailto:")):
            marked = f"<a href={quoteattr(run.href)}>{marked}</a>"
        return marked


def class_colour(css: str, name: str) -> Color:
    """A colour that the sheet of pages gives a class; black if it does not."""
    return colour(page_style().of_classes(css).get(name)) or Color(0, 0, 0, 1)


def named_colour(name: str) -> Color:
    """A colour of the sheet of pages by its name: `ink`, `soft`, `rule`, `panel`."""
    return colour(page_style().variable(name)) or Color(0, 0, 0, 1)


@cache
def paragraph_style(
    size: float,
    *,
    left: float = 0.0,
    before: float = 0.0,
    after: float = 0.0,
    right: bool = False,
    together: bool = False,
    font: str = "Helvetica",
) -> ParagraphStyle:
    """Style of a paragraph; lengths in points."""
    return ParagraphStyle(
        "",
        fontName=font,
        fontSize=size,
        leading=_LEADING * size,
        leftIndent=left,
        bulletIndent=0.0,
        spaceBefore=before,
        spaceAfter=after,
        alignment=2 if right else 0,
        keepWithNext=together,
        textColor=named_colour("ink"),
    )


def shown(text: str) -> str:
    """Text with control characters escaped and unbreakable blanks as fonts have them."""
    return printable(text).replace(NO_BREAK, "\u00a0")


class WholeRowTable(Table):
    """A table whose rows are kept whole, but for one that a page of its own does not hold."""

    def split(self, available_width: float, available_height: float) -> list[Flowable]:
        """Parts for this page and the next ones; reportlab marks what did not fit on a page before as postponed."""
        self.splitInRow = int(hasattr(self, "_postponed"))
        parts: list[Flowable] = super().split(available_width, available_height)
        return parts


def paper_table(
    rows: Sequence[Sequence[Any]], widths: Sequence[float], commands: Sequence[tuple[Any, ...]], *, heading: int = 0
) -> Table:
    """A table without padding at its left and right edge; `commands` win over what all tables have."""
    edges: list[tuple[Any, ...]] = [
        ("LEFTPADDING", (0, 0), (-1, -1), PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), PADDING),
        ("LEFTPADDING", (0, 0), (0, -1), 0.0),
        ("RIGHTPADDING", (-1, 0), (-1, -1), 0.0),
        ("TOPPADDING", (0, 0), (-1, -1), 2.0),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ]
    return WholeRowTable(
        [list(row) for row in rows],
        colWidths=list(widths),
        repeatRows=heading,
        style=[*edges, *commands],
        hAlign="LEFT",
    )


@dataclass(frozen=True, slots=True)
class ColumnWidth:
    """Widths that a column can have, in points, without its padding."""

    natural: float
    """Every text on one line."""
    least: float
    """Every word on one line."""


def shown_columns(table: TableBlock) -> list[Column]:
    """Columns that a page shows."""
    return [column for column in table.columns if column.only != "text"]


def shown_cells(table: TableBlock, row: Row) -> list[Styled]:
    """Cells of those columns, each with its style."""
    pairs = zip(table.columns, row.cells, strict=True)
    return [styled(cell) for column, cell in pairs if column.only != "text"]


def styled(cell: Cell) -> Styled:
    """A cell with its style."""
    return cell if isinstance(cell, Styled) else Styled(cell)


def fit_columns(columns: Sequence[ColumnWidth], width: float) -> list[float] | None:
    """Widths of the columns with their padding, which fill `width`; None if a word has to be broken.

    Spare room is shared out evenly. Where it is short, columns give way in proportion to what they have above their
    longest word.

    >>> fit_columns([ColumnWidth(100, 100), ColumnWidth(300, 50)], 270)
    [110.0, 160.0]
    """
    room = width - 2 * PADDING * len(columns)
    spare = room - sum(column.natural for column in columns)
    if spare >= 0:
        return [column.natural + 2 * PADDING + spare / len(columns) for column in columns]
    gives = [column.natural - column.least for column in columns]
    if sum(gives) < -spare:
        return None
    share = -spare / sum(gives)
    return [column.natural - share * give + 2 * PADDING for column, give in zip(columns, gives, strict=True)]


def broken_columns(columns: Sequence[ColumnWidth], width: float) -> list[float]:
    """Widths where words have to be broken: in proportion to the longest word of each column."""
    whole = sum(column.least + 2 * PADDING for column in columns)
    return [(column.least + 2 * PADDING) * width / whole for column in columns]


def longest_word(text: str) -> str:
    """The longest part of a text that is not broken; of a path or a hash the part that a line has at least."""
    return max((word[:_LONGEST_WORD] for word in text.split()), key=len, default="")
