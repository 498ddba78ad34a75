"""Parts of an answer on the terminal: facts by name, plain tables, notes; an empty line between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

GLUE = "\ue000"
"""Stands for a blank at which no line is broken, until the lines are."""


def print_parts(parts: Sequence[Sequence[RenderableType]], console: Console) -> None:
    """Print with an empty line between parts, and no blanks at the end of a line; empty parts are left out."""
    blocks = []
    for part in filter(None, parts):
        with console.capture() as captured:
            for renderable in part:
                console.print(renderable)
        blocks.append("".join(f"{line.rstrip()}\n" for line in captured.get().replace(GLUE, " ").splitlines()))
    console.file.write("\n".join(blocks))


def title(text: str) -> Text:
    """Title of a part."""
    return Text(text, style="bold")


def note_lines(notes: Iterable[str]) -> list[RenderableType]:
    """What is to be said at the end, a line each."""
    return [Text(f"note: {note}", style="yellow") for note in notes]


def fact_table(facts: Mapping[str, str]) -> Table:
    """Names on the left, what is to be said of each on the right."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in facts.items():
        table.add_row(name, Text(text))
    return table


def plain_table(*heads: str, text_columns: int | None = None) -> Table:
    """A table without lines.

    Args:
        heads: of the columns.
        text_columns: columns of words; those behind them are numbers, on the right, and nothing is wrapped. When left
            out all are words, and the last column alone is wrapped.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, head in enumerate(heads):
        if text_columns is None:
            table.add_column(head, no_wrap=index < len(heads) - 1)
        else:
            table.add_column(head, justify="left" if index < text_columns else "right", no_wrap=True)
    return table
