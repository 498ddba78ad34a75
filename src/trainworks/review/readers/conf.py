"""Configuration files by line, with places: `Key=Value` of Slurm's, columns of /etc/exports and /etc/fstab.

Source: https://slurm.schedmd.com/slurm.conf.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PAIR = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_]{0,99})\s*[-+*/]?=\s*(\"[^\"]*\"|[^\s#]*)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One pair of a line."""

    name: str
    """In lower case, because Slurm ignores the case."""
    written: str
    value: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class ConfLine:
    """The parameters of one line, continued lines joined."""

    parameters: tuple[Parameter, ...]

    def get(self, name: str) -> Parameter | None:
        """The parameter of that name in lower case."""
        return next((each for each in self.parameters if each.name == name), None)


def read_conf(text: str) -> Iterator[ConfLine]:
    """Lines of a file that set something."""
    pairs: list[Parameter] = []
    for number, line in enumerate(text.split("\n"), start=1):
        code = line.split("#", 1)[0]
        pairs += [
            Parameter(found[1].lower(), found[1], found[2].strip('"'), number, found.start() + 1)
            for found in _PAIR.finditer(code)
        ]
        if not code.rstrip().endswith("\\"):
            if pairs:
                yield ConfLine(tuple(pairs))
            pairs = []
    if pairs:
        yield ConfLine(tuple(pairs))


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
