"""A document as the bytes of a PDF: its title and verdict, its sections, and a number at the foot of every page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, singledispatchmethod
from itertools import takewhile
from typing import Any

from reportlab.lib.pagesizes import A4, landscape
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import CondPageBreak, Flowable, Paragraph, SimpleDocTemplate, Spacer

from trainworks.report.rendering.document import (
    Block,
    Bullets,
    Column,
    Details,
    Document,
    Fact,
    Facts,
    Plot,
    Preformatted,
    Row,
    Section,
    Styled,
    Table,
    Text,
)
from trainworks.report.rendering.pdf.fonts import Typeface
from trainworks.report.rendering.pdf.pictures import Figures
from trainworks.report.rendering.pdf.setting import (
    BODY,
    LARGE,
    PADDING,
    SIZES,
    SMALL,
    ColumnWidth,
    Typesetter,
    broken_columns,
    class_colour,
    fit_columns,
    longest_word,
    named_colour,
    paper_table,
    paragraph_style,
    shown,
    shown_cells,
    shown_columns,
)
from trainworks.results import PdfFile

_EDGE = 48.0
"""Points of margin; of the foot, too, which has the number of the page."""
_FRAME_PADDING = 6.0
"""Points that a frame of reportlab adds to its margin."""
_TITLE, _HEADING, _VERDICT = 18.0, 12.5, 12.0
"""Sizes of type, in points."""
_LEAST_ROOM = 90.0
"""Points below which a section begins on the next page."""
_FIGURES_IN_A_ROW = 4
_TERM_INDENT = 8.0
_LEAST_LISTING, _COURIER = 6.0, 0.6
"""Smallest type of a listing, in points, and the width of a letter in sizes of its type."""
_MOST_NAME = 0.4
"""Share of the width that the names of facts take at most."""


def render_pdf(document: Document, *, face: Typeface | None = None) -> PdfFile:
    """The document on A4, in landscape if a table needs the room.

    The same document has the same bytes: no date and no random number is in them.

    Args:
        document: of any result.
        face: fonts; those of this machine when left out.
    """
    setter = Typesetter(face or Typeface())
    sections = document.shown("page")
    for size in (A4, landscape(A4)):
        frame = size[0] - 2 * _EDGE, size[1] - 2 * _EDGE
        blocks = Blocks(setter, *frame)
        if blocks.holds(sections):
            break
    story = [*_heading(document, setter, frame[0])]
    for number, section in enumerate(sections):
        story += _section(number, section, setter, blocks)
    notes = setter.face.notes()
    story += _foot(document, notes, setter, frame[0])
    buffer = io.BytesIO()
    pages = SimpleDocTemplate(
        buffer,
        pagesize=size,
        leftMargin=_EDGE - _FRAME_PADDING,
        rightMargin=_EDGE - _FRAME_PADDING,
        topMargin=_EDGE - _FRAME_PADDING,
        bottomMargin=_EDGE - _FRAME_PADDING,
        title=shown(f"{document.title}: {document.kind}"),
        author="Trainworks",
        subject=shown(document.verdict.sentence if document.verdict else document.kind),
        lang="en",
        invariant=1,
    )
    pages.build(story, canvasmaker=partial(_NumberedCanvas, document, setter, size[0]))
    return PdfFile(buffer.getvalue(), tuple(notes))


def _tables(block: Block) -> Iterator[Table]:
    if isinstance(block, Table):
        yield block
    elif isinstance(block, Details):
        for inner in block.blocks:
            yield from _tables(inner)


def _heading(document: Document, setter: Typesetter, width: float) -> Iterator[Flowable]:
    yield setter.paragraph([Styled(document.title, "bold")], size=_TITLE, after=2.0)
    if document.badge is not None:
        yield setter.paragraph([Styled(document.badge.text, document.badge.style or "bold")], size=SMALL)
    if document.about:
        yield setter.paragraph([Styled(document.about, "dim")], after=4.0)
    if (line := document.verdict_line) is not None:
        bar = ("LINEBEFORE", (0, 0), (0, -1), 3.0, class_colour(f"is-{line.style}", "color"))
        yield Spacer(0, 8.0)
        yield paper_table(
            [[setter.paragraph([line], size=_VERDICT)]], [width], [bar, ("LEFTPADDING", (0, 0), (-1, -1), 10.0)]
        )


def _section(number: int, section: Section, setter: Typesetter, blocks: Blocks) -> Iterator[Flowable]:
    yield Spacer(0, 16.0 if section.title else 8.0)
    yield CondPageBreak(_LEAST_ROOM)
    if section.title:
        title = section.title[:1].upper() + section.title[1:]
        yield _OutlineEntry(title, number)
        yield setter.paragraph([Styled(title, "bold")], size=_HEADING, after=3.0, together=True)
    told = [*takewhile(lambda block: isinstance(block, Text), section.blocks)]
    rest = section.blocks[len(told) :]
    for block in told:
        for flowable in blocks.of(block):
            flowable.keepWithNext = bool(rest) and isinstance(rest[0], Plot)
            yield flowable
    for block in rest:
        yield from blocks.of(block)


def _foot(document: Document, notes: list[str], setter: Typesetter, width: float) -> Iterator[Flowable]:
    texts = [*document.notes, *notes, *([document.footer] if document.footer else [])]
    if texts:
        yield Spacer(0, 20.0)
        yield paper_table([[""]], [width], [("LINEABOVE", (0, 0), (-1, 0), 0.5, named_colour("rule"))])
    for text in texts:
        yield setter.paragraph([Styled(text, "dim")], size=SMALL, after=4.0)


class _OutlineEntry(Flowable):
    """Place of a section, which the outline of the file lists; it takes no room."""

    def __init__(self, title: str, number: int) -> None:
        super().__init__()
        self.keepWithNext = True
        self._title, self._key = shown(title), f"section {number}"

    def wrap(self, available_width: float, available_height: float) -> tuple[float, float]:
        """No room."""
        return 0.0, 0.0

    def draw(self) -> None:
        """Add it to the outline."""
        self.canv.bookmarkHorizontal(self._key, 0, _HEADING)
        self.canv.addOutlineEntry(self._title, self._key, level=0)


class _NumberedCanvas(Canvas):
    """Pages that say at their foot what they are, and how many there are."""

    def __init__(self, document: Document, setter: Typesetter, width: float, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._document, self._setter, self._right = document, setter, width - _EDGE
        self._pages: list[Mapping[str, object]] = []

    def showPage(self) -> None:  # noqa: N802, reportlab's name
        """Keep the page until the number of all is known."""
        self._pages.append(dict(self.__dict__))
        self._startPage()  # type: ignore[attr-defined]  # missing in the stubs

    def save(self) -> None:
        """Write every page with its foot."""
        for number, page in enumerate(self._pages, start=1):
            self.__dict__.update(page)
            self._foot(number, len(self._pages))
            super().showPage()
        super().save()

    def _foot(self, number: int, count: int) -> None:
        count_text = f"{number} of {count}"
        self._line(f"{self._document.title}: {self._document.kind}", _EDGE)
        self._line(count_text, self._right - self._setter.width(count_text, SMALL))

    def _line(self, text: str, left: float) -> None:
        self.setFillColor(named_colour("soft"))
        line = self.beginText(left, 0.55 * _EDGE)
        for run, font in self._setter.face.runs(shown(text), "Helvetica"):
            line.setFont(font, SMALL)
            line.textOut(run)
        self.drawText(line)


class Blocks:
    """Makes the flowables of one document."""

    def __init__(self, setter: Typesetter, width: float, height: float) -> None:
        """Flowables are at most `width` and `height` points large."""
        self._set, self._width = setter, width
        self._figures_of = Figures(setter, width, height)

    def holds(self, sections: Sequence[Section]) -> bool:
        """Whether every table of the sections has room for whole words."""
        tables = (table for section in sections for block in section.blocks for table in _tables(block))
        return all(self.table_layout(table) is not None for table in tables)

    @singledispatchmethod
    def of(self, block: Block) -> Iterator[Flowable]:
        """The flowables of a block."""
        raise TypeError(f"a PDF cannot show {type(block).__name__}")

    @of.register
    def _(self, block: Text) -> Iterator[Flowable]:
        yield self._set.paragraph(block.runs, left=15.0 * bool(block.indent), after=3.0)

    @of.register
    def _(self, block: Bullets) -> Iterator[Flowable]:
        for item in block.items:
            yield Paragraph(
                self._set.markup([Styled(item)], BODY), paragraph_style(BODY, left=12.0, after=2.0), bulletText="\u2022"
            )

    @of.register
    def _(self, block: Preformatted) -> Iterator[Flowable]:
        text = "".join(shown(run.text) for run in block.runs)
        longest = max((len(line) for line in text.splitlines()), default=1)
        size = min(SMALL, max(_LEAST_LISTING, (self._width - 12.0) / (_COURIER * longest)))
        runs = (self._set.run(run, size, base="Courier", blanks=True).replace("\n", "<br/>") for run in block.runs)
        style = paragraph_style(size, left=6.0, before=8.0, after=12.0, font="Courier")
        panel = ParagraphStyle("", style, backColor=named_colour("panel"), borderPadding=6.0)
        yield Paragraph("".join(runs), panel)

    @of.register
    def _(self, block: Details) -> Iterator[Flowable]:
        yield self._set.paragraph([Styled(block.summary, "bold")], size=SMALL, before=6.0, together=True)
        for inner in block.blocks:
            yield from self.of(inner)

    @of.register
    def _(self, block: Facts) -> Iterator[Flowable]:
        yield Spacer(0, 6.0)
        if block.figures:
            yield from self._figures(block.facts)
        elif block.facts:
            widest = max(self._set.width(fact.name, BODY) for fact in block.facts)
            name = min(widest + 2 * PADDING, _MOST_NAME * self._width)
            rows = [
                [
                    self._set.paragraph([Styled(fact.name, "dim")], size=BODY),
                    self._set.paragraph([Styled(fact.value), Styled(f"  {fact.note}" * bool(fact.note), "dim")]),
                ]
                for fact in block.facts
            ]
            yield paper_table(rows, [name, self._width - name], [("BOTTOMPADDING", (0, 0), (-1, -1), 3.0)])

    def _figures(self, facts: Sequence[Fact]) -> Iterator[Flowable]:
        """Names with large values, so many in a row."""
        cells = [
            [
                self._set.paragraph([Styled(fact.name, "dim")], size=SMALL),
                self._set.paragraph([Styled(fact.value, "bold")], size=LARGE),
                *([self._set.paragraph([Styled(fact.note, "dim")], size=SMALL)] if fact.note else []),
            ]
            for fact in facts
        ]
        cells += [[]] * (-len(cells) % _FIGURES_IN_A_ROW)
        rows = [cells[at : at + _FIGURES_IN_A_ROW] for at in range(0, len(cells), _FIGURES_IN_A_ROW)]
        widths = [self._width / _FIGURES_IN_A_ROW] * _FIGURES_IN_A_ROW
        yield paper_table(rows, widths, [("BOTTOMPADDING", (0, 0), (-1, -1), 10.0)])

    @of.register
    def _(self, block: Table) -> Iterator[Flowable]:
        columns, rows = shown_columns(block), block.styled_rows()
        layout = self.table_layout(block)
        if layout is None:
            narrow = self._column_widths(block, SIZES[-1], keeps_lines=False)
            layout = SIZES[-1], broken_columns(narrow, self._width)
        size, widths = layout
        heading = [Row([Styled(column.name, "dim") for column in block.columns])] if block.has_header else []
        cells = [
            [
                self._cell(cell, column, row, size, is_first=index == 0)
                for index, (cell, column) in enumerate(zip(shown_cells(block, row), columns, strict=True))
            ]
            for row in [*heading, *rows]
        ]
        if cells and columns:
            rule = named_colour("rule")
            lines = [("LINEBELOW", (0, 0), (-1, -1), 0.5, rule), ("VALIGN", (0, 0), (-1, -1), "TOP")]
            yield Spacer(0, 6.0)
            yield paper_table(cells, widths, lines, heading=len(heading))
        if block.caption:
            yield self._set.paragraph([Styled(block.caption, "dim")], size=SMALL, before=4.0, after=4.0)

    def table_layout(self, table: Table) -> tuple[float, list[float]] | None:
        """Size of type and widths of the columns with whole words; None if no size leaves room for them."""
        for keeps_lines in (True, False):  # smaller type before broken lines, but for columns of sentences
            for size in SIZES:
                columns = self._column_widths(table, size, keeps_lines=keeps_lines)
                if (widths := fit_columns(columns, self._width)) is not None:
                    return size, widths
        return None

    def _column_widths(self, table: Table, size: float, *, keeps_lines: bool) -> list[ColumnWidth]:
        """Widths that the columns can have; with `keeps_lines` only sentences go over several lines."""
        found = []
        rows = table.styled_rows()
        cells = [shown_cells(table, row) for row in rows]
        for index, column in enumerate(shown_columns(table)):
            texts = [shown(row[index].text) for row in cells]
            swatches = size if any(row[index].swatch for row in cells) else 0.0
            indent = swatches + (_TERM_INDENT if index == 0 and any(row.is_term for row in rows) else 0.0)
            name = column.name if table.has_header else ""
            heading = self._width_of(longest_word(name), size)
            natural = max([heading, *(self._width_of(text, size) + indent for text in texts)])
            least = max([heading, *(self._width_of(longest_word(text), size) + indent for text in texts)])
            is_whole = column.numeric or (keeps_lines and not column.wrap)
            found.append(ColumnWidth(natural, natural if is_whole else least))
        return found

    def _width_of(self, text: str, size: float) -> float:
        """Width in bold, which a row may be, with room for rounding."""
        return self._set.width(text, size, bold=True) + 0.5

    def _cell(self, cell: Styled, column: Column, row: Row, size: float, *, is_first: bool) -> Flowable:
        left = _TERM_INDENT if row.is_term and is_first else 0.0
        run = cell if cell.style or not row.style else Styled(cell.text, row.style, cell.swatch, cell.href)
        text = self._set.markup([run], size)
        if not cell.swatch:
            return Paragraph(text, paragraph_style(size, left=left, right=column.numeric))
        indented = paragraph_style(size, left=left + size, right=column.numeric)
        return SwatchParagraph(text, ParagraphStyle("", indented, swatch=class_colour(f"fill-{cell.swatch}", "fill")))

    @of.register
    def _(self, block: Plot) -> Iterator[Flowable]:
        return self._figures_of.of(block)


class SwatchParagraph(Paragraph):
    """Text after a small square in the colour `swatch` of its style, as a part of a picture has it."""

    def draw(self) -> None:
        """Draw the square at the height of the first line, and the text."""
        style, canvas = self.style, self.canv
        size = 0.7 * style.fontSize
        canvas.saveState()
        canvas.setFillColor(style.swatch)
        canvas.rect(style.leftIndent - style.fontSize, self.height - style.fontSize, size, size, stroke=0, fill=1)
        canvas.restoreState()
        super().draw()
