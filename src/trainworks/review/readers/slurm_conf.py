"""slurm.conf, gres.conf and cgroup.conf: `Key=Value` pairs of lines, with places.

Source: https://slurm.schedmd.com/slurm.conf.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PAIR = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_]{0,99})\s*=\s*(\"[^\"]*\"|[^\s#]*)")


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

    def number(self, name: str) -> int | None:
        """A parameter that is a whole number; else None."""
        found = self.get(name)
        return int(found.value) if found and found.value.isascii() and found.value.isdecimal() else None


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
