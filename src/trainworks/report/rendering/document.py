"""A result as people read it: facts, tables, text and plots, built once and rendered as text or as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self

from trainworks.results import ResultVerdict

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Style = Literal["", "bold", "dim", "good", "warning", "bad"]
Medium = Literal["text", "page"]
NARROW = 100
"""Columns of a terminal below which a table has short headings and leaves columns out."""
FULL_BLOCK = "\u2588"
"""Character of bars in text; `#` on a terminal that has only ASCII."""
NO_BREAK = "\ue000"
"""Stands for a blank at which no line is broken."""
_SIGNALS: Mapping[str, Style] = {"go": "good", "check": "warning", "stop": "bad"}
"""Style of a verdict by its signal."""


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with a style; the style is never the only thing that says something."""

    text: str
    style: Style = ""
    swatch: str = ""
    """Colour class of a small square before the text on a page, as in the key of a plot."""
    href: str = ""
    """Address that the text links to on a page."""
    choice: str = ""
    """Value of a checkbox before the text, on a page that has the form `chosen`."""
    choice_name: str = ""
    """What the checkbox chooses, for readers who do not see it."""


Cell = str | Styled


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Base of what a section contains."""

    only: Medium | None = None
    """The one medium that shows it; None for both."""
    min_width: int = 0
    """Columns of a terminal below which text leaves it out."""
    max_width: int | None = None
    """Columns of a terminal from which text, and a page, leave it out."""


@dataclass(frozen=True, slots=True)
class Text(Block):
    """A paragraph."""

    content: Cell | Sequence[Cell]
    """One run of text, or several with a style each."""
    style: Style = ""
    indent: int = 0

    @property
    def runs(self) -> tuple[Styled, ...]:
        """The text in runs of one style."""
        cells = [self.content] if isinstance(self.content, str | Styled) else self.content
        return tuple(cell if isinstance(cell, Styled) else Styled(cell, self.style) for cell in cells)


@dataclass(frozen=True, slots=True)
class Bullets(Block):
    """A list of short texts."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Preformatted(Block):
    """Text whose lines and blanks stay as they are."""

    content: Cell | Sequence[Cell]

    @property
    def runs(self) -> tuple[Styled, ...]:
        """The text in runs of one style."""
        return Text(self.content).runs


@dataclass(frozen=True, slots=True)
class Details(Block):
    """Blocks that a page folds away behind a summary; text prints them in full."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Fact:
    """A name, its value as text, and a remark."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts(Block):
    """Names with their values."""

    facts: Sequence[Fact]
    figures: bool = False
    """The values are short numbers, which a page shows large, with the remark below."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, str | None]) -> Self:
        """Facts without remarks; one without a text is left out."""
        return cls([Fact(name, value) for name, value in values.items() if value])


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = False
    """Aligned right and never wrapped."""
    wrap: bool = False
    min_width: int = 0
    """Columns of a terminal below which the table leaves this one out."""
    short_name: str = ""
    """Heading on a narrow terminal."""
    href: str = ""
    """Address of the page with the table in the order of this column."""
    order: Literal["", "ascending", "descending"] = ""
    """Set where the rows are in the order of this column."""
    only: Medium | None = None


def left(*names: str, wrap: bool = False) -> list[Column]:
    """Columns of words."""
    return [Column(name, wrap=wrap) for name in names]


def right(*names: str, min_width: int = 0) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, numeric=True, min_width=min_width) for name in names]


def join_unbroken(items: Iterable[str], separator: str) -> str:
    """The items, with line breaks allowed only between them."""
    return separator.join(item.replace(" ", NO_BREAK) for item in items)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table; a term belongs to the row above it and is indented."""

    cells: Sequence[Cell]
    style: Style = ""
    is_term: bool = False


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Rows and columns of text."""

    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Cell]]
    caption: str = ""
    """What the columns mean, below the table."""
    has_header: bool = True
    ruled: bool = False
    """A line below the heading in text."""

    def columns_on(self, medium: Medium) -> list[tuple[int, Column]]:
        """The columns that a medium shows, each with its place in the rows."""
        return [(place, column) for place, column in enumerate(self.columns) if column.only in (None, medium)]

    def styled_rows(self) -> list[Row]:
        """The rows, each with its style."""
        return [row if isinstance(row, Row) else Row(row) for row in self.rows]


class Plot(Block):
    """A picture on the page; text leaves it out, because the facts and tables beside it have the same figures."""

    __slots__ = ()

    def picture(self) -> Element | None:
        """The picture as SVG or HTML elements; None where there is nothing to draw."""
        raise NotImplementedError

    def key(self) -> Sequence[tuple[str, str]]:
        """CSS class and name of each kind of mark."""
        return ()


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks below a heading; a section without blocks is left out."""

    title: str
    blocks: Sequence[Block]
    only: Medium | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A whole result."""

    title: str
    kind: str
    """What it is: `cost`, `plan`, `report` ..."""
    sections: Sequence[Section]
    about: str = ""
    """One line below the title of the page."""
    notes: Sequence[str] = ()
    """Assumptions and remarks, at the end."""
    badge: Styled | None = None
    """State beside the title."""
    shows_title: bool = False
    """Text begins with the title."""
    max_width: int | None = None
    """Columns of text at most."""
    footer: str = field(default="", kw_only=True)
    verdict: ResultVerdict | None = field(default=None, kw_only=True)
    """The sentence that comes first, in every medium."""

    @property
    def verdict_line(self) -> Styled | None:
        """The verdict in the style of its signal; None without one."""
        if self.verdict is None:
            return None
        return Styled(self.verdict.sentence.replace(" %", f"{NO_BREAK}%"), _SIGNALS[self.verdict.signal])

    def without(self, title: str) -> Document:
        """The same document without one section."""
        return replace(self, sections=[section for section in self.sections if section.title != title])

    def shown(self, medium: Medium, width: int | None = None) -> list[Section]:
        """The sections of one medium with its blocks alone, at a width of text; a page shows the widest form."""
        sections = [
            Section(section.title, [block for block in section.blocks if _is_shown(block, medium, width)])
            for section in self.sections
            if section.only in (None, medium)
        ]
        return [section for section in sections if section.blocks]


def _is_shown(block: Block, medium: Medium, width: int | None) -> bool:
    if block.only not in (None, medium):
        return False
    if width is None:
        return block.max_width is None
    return block.min_width <= width and (block.max_width is None or width < block.max_width)
