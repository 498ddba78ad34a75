"""The output of a benchmark program, and the errors of one that cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement

MEBIBYTE, KIBIBYTE = 2.0**20, 2.0**10


@dataclass(frozen=True)
class ToolOutput:
    """What a program printed."""

    name: str
    """File that has it."""
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the text."""
        return self.text.splitlines()

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers, from 1."""
        return enumerate(self.lines, start=1)

    def find(self, pattern: str) -> re.Match[str] | None:
        """The first match of a pattern; `^` and `$` are the ends of a line."""
        return re.search(pattern, self.text, re.MULTILINE)

    def line_of(self, pattern: str) -> int | None:
        """Number of the first line in which a pattern is found."""
        return next((number for number, line in self.numbered() if re.search(pattern, line)), None)

    def part(self, start: int, end: int) -> ToolOutput:
        """The lines after the first `start`, up to the line `end`; they keep their numbers."""
        return ToolOutput(self.name, "\n" * start + "\n".join(self.lines[start:end]))

    def error(self, message: str, line: int | None = None, hint: str | None = None) -> UsageError:
        """An error at a line; at the last one where it is left out."""
        return UsageError(message, place=f"{self.name}:{line or max(1, len(self.lines))}", hint=hint)

    def truncated(self, missing: str) -> UsageError:
        """The error of an output that ends too early."""
        return self.error(f"the output ends before {missing}", hint="run the benchmark to its end, and keep all lines")

    @cached_property
    def data(self) -> Mapping[str, Any] | None:
        """The JSON object of the output, behind warnings; None where there is none.

        Raises:
            UsageError: the object is not complete, or another one follows.
        """
        start = next((at for at, line in enumerate(self.lines) if line.startswith("{")), None)
        if start is None:
            return None
        try:
            text = "\n".join(self.lines[start:])
            found, end = json.JSONDecoder().raw_decode(text)
        except json.JSONDecodeError as error:
            raise self.error(f"the JSON is not complete: {error.msg}", start + error.lineno) from None
        rest = text[end:]
        if rest.lstrip().startswith("{"):
            line = start + 1 + text[: len(text) - len(rest.lstrip())].count("\n")
            raise self.error("a second JSON object follows", line, hint="give each output a file of its own")
        return dict(found)


@dataclass(frozen=True, slots=True)
class OutputReader:
    """A program whose output can be read."""

    tool: str
    signature: str
    """Pattern of a line that no other program prints, or the key of a JSON object."""
    read: Callable[[ToolOutput], list[Measurement]]
    includes: tuple[str, ...] = ()
    """Programs whose signatures are also in its output."""
