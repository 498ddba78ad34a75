"""Tables in columns, as /etc/exports and /etc/fstab: the fields of each line, with their places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FIELD = re.compile(r'(?:"[^"]*"|[^\s"#\\]|\\[^\n])(?:"[^"]*"|[^\s"\\]|\\[^\n])*')


@dataclass(frozen=True, slots=True)
class Field:
    """Text between blanks."""

    text: str
    line: int
    column: int

    def option(self, name: str) -> int | None:
        """Column of an option of a list that commas part; None without it."""
        found = re.search(rf"(?:^|[,(]){name}(?=[,=)]|$)", self.text)
        return self.column + found.end() - len(name) if found else None


def read_columns(text: str) -> Iterator[tuple[Field, ...]]:
    """Fields of each line, without comments; a backslash at its end continues a line."""
    fields: list[Field] = []
    for number, line in enumerate(text.split("\n"), start=1):
        code = re.sub(r"(?:^|(?<=\s))#.*", "", line)
        continues = code.rstrip().endswith("\\")
        for found in _FIELD.finditer(code.rstrip().removesuffix("\\") if continues else code):
            fields.append(Field(found[0], number, found.start() + 1))
        if fields and not continues:
            yield tuple(fields)
            fields = []
    if fields:
        yield tuple(fields)
